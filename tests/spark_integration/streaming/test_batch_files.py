"""Files of a batch: visible once, to a reader that knows nothing of us, wherever a run of the batch ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.schemas.errors import ConfigurationError, JobRefused, StateError
from penstock.spark_integration.streaming import batch_files
from penstock.spark_integration.streaming.batch_files import (
    HIDDEN,
    BatchFolder,
    _blind_host,
    batch_folder,
    checked_format,
    require_shared,
)
from penstock.spark_integration.streaming.batch_token import BatchToken

RETAINED = 100
SPARK_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def token(batch_id: int = 7, checkpoint_id: int = 12, query_id: str = "query") -> BatchToken:
    return BatchToken("penstock.flights", "reader", checkpoint_id, batch_id, query_id, "history")


class Written:
    """What Spark does in its place: a folder of Parquet files, a success marker, checksums."""

    def __init__(self, *values: int, files: int = 2, folder: str = "") -> None:
        self.values, self.files, self.folder = values, files, folder
        self.runs = 0

    def __call__(self, url: str) -> None:
        self.runs += 1
        staged = Path(urlsplit(url).path)
        (staged / self.folder).mkdir(parents=True)
        for at in range(self.files):
            name = f"part-{at:05d}-{SPARK_ID}-c000.snappy.parquet"
            pq.write_table(pa.table({"value": self.values[at :: self.files]}), staged / self.folder / name)
            (staged / self.folder / f".{name}.crc").write_bytes(b"crc")
        (staged / "_SUCCESS").touch()


def seen(folder: Path) -> list[int]:
    return sorted(ds.dataset(folder, format="parquet").to_table().column("value").to_pylist())


def hidden(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / HIDDEN))


def test_files_are_visible_under_names_that_the_batch_decides(tmp_path: Path) -> None:
    files = BatchFolder(tmp_path, token()).write(Written(1, 2, 3), RETAINED)
    assert [file.name for file in files] == [f"part-0000{i}.{token()}.snappy.parquet" for i in (0, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".penstock", *(file.name for file in files)]
    assert seen(tmp_path) == [1, 2, 3]
    assert hidden(tmp_path) == [f"{token()}.manifest"]


def test_a_batch_that_runs_again_is_not_written_again(tmp_path: Path) -> None:
    first = BatchFolder(tmp_path, token()).write(Written(1, 2), RETAINED)
    again = Written(3, 4)
    assert BatchFolder(tmp_path, token()).write(again, RETAINED) == first
    assert (again.runs, seen(tmp_path)) == (0, [1, 2])


def test_files_that_a_reader_has_taken_do_not_come_back(tmp_path: Path) -> None:
    for file in BatchFolder(tmp_path, token()).write(Written(1, 2), RETAINED):
        file.unlink()
    BatchFolder(tmp_path, token()).write(Written(1, 2), RETAINED)
    assert list(tmp_path.glob("*.parquet")) == []


def test_other_batches_queries_and_lives_of_a_job_write_their_own(tmp_path: Path) -> None:
    others = [token(), token(8, 13), token(9, 13), token(query_id="another"), token(10, 14)]
    for value, other in enumerate(sorted(others, key=lambda t: t.batch_id)):
        BatchFolder(tmp_path, other).write(Written(value, files=1), RETAINED)
    assert seen(tmp_path) == list(range(len(others)))
    assert BatchToken("penstock.flights", "reader", 12, 7, "query", "purged since").stream != token().stream


class Killed(BaseException):
    """A process ends here."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """Makes the n-th step on the file system the last one: it is not done, or it has just been done."""
    real = {name: getattr(os, name) for name in ("replace", "link", "fsync")}

    def arm(last: int) -> list[str]:
        steps: list[str] = []

        def step(name: str) -> Callable[..., None]:
            def wrapped(*args: object) -> None:
                at = len(steps)
                steps.append(name)
                if at == last // 2 and last % 2 == 0:
                    raise Killed
                real[name](*args)
                if at == last // 2:
                    raise Killed

            return wrapped

        for name in real:
            monkeypatch.setattr(batch_files.os, name, step(name))
        monkeypatch.setattr(batch_files.shutil, "rmtree", lambda *_, **__: None)  # the dead clean up nothing
        monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
        return steps

    yield arm
    monkeypatch.undo()


def test_a_run_that_is_killed_at_any_step_leaves_a_batch_that_the_next_run_completes(
    tmp_path: Path, kill_at: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = 0
    for last in range(1000):
        folder = tmp_path / str(last)
        kill_at(last)
        try:
            BatchFolder(folder, token()).write(Written(1, 2, 3, files=3), RETAINED)
        except Killed:
            points += 1
        else:
            break
        finally:
            monkeypatch.undo()
        partly = seen(folder) if list(folder.glob("*.parquet")) else []
        assert set(partly) <= {1, 2, 3} and len(set(partly)) == len(partly)
        decided = any(name.endswith(".manifest") for name in hidden(folder))
        again = Written(1, 2, 3, files=1)
        BatchFolder(folder, token()).write(again, RETAINED)
        assert (last, seen(folder), again.runs) == (last, [1, 2, 3], 0 if decided else 1)
        BatchFolder(folder, token(8, 13)).write(Written(4, files=1), RETAINED)
        assert hidden(folder) == [f"{token()}.manifest", f"{token(8, 13)}.manifest"]
    assert points > 20


def test_of_two_runs_at_once_one_decides_and_nothing_of_the_other_is_seen(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=30)
    results: list[list[Path]] = []

    def run(values: list[int], files: int) -> None:
        def write(url: str) -> None:
            Written(*values, files=files)(url)
            both.wait()

        results.append(BatchFolder(tmp_path, token()).write(write, RETAINED))

    threads = [threading.Thread(target=run, args=args) for args in (([1, 2, 3], 3), ([3, 2, 1], 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results[0] == results[1]
    assert len(results[0]) in (1, 3)
    assert sorted(tmp_path.glob("*.parquet")) == sorted(results[0])
    assert seen(tmp_path) == [1, 2, 3]
    assert hidden(tmp_path) == [f"{token()}.manifest"]


@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_run_that_another_one_overtakes_gives_what_that_one_wrote(tmp_path: Path, at_the_end: bool) -> None:
    decided: list[list[Path]] = []

    def overtaken(url: str) -> None:
        if at_the_end:
            Written(3, 2, 1)(url)
        decided.append(BatchFolder(tmp_path, token()).write(Written(1, 2, 3, files=1), RETAINED))
        if not at_the_end:
            Written(3, 2, 1)(url)

    assert BatchFolder(tmp_path, token()).write(overtaken, RETAINED) == decided[0]
    assert sorted(tmp_path.glob("*.parquet")) == decided[0]
    assert (seen(tmp_path), hidden(tmp_path)) == ([1, 2, 3], [f"{token()}.manifest"])


def test_a_run_that_fails_behind_its_decision_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = batch_files.sync

    def fails(path: Path) -> None:
        real(path)
        if list(path.glob("*.manifest")):
            raise OSError("input/output error")

    monkeypatch.setattr(batch_files, "sync", fails)
    with pytest.raises(OSError, match="input/output error"):
        BatchFolder(tmp_path, token()).write(Written(1, 2), RETAINED)
    monkeypatch.undo()
    again = Written(3)
    BatchFolder(tmp_path, token()).write(again, RETAINED)
    assert (seen(tmp_path), again.runs) == ([1, 2], 0)


def test_a_link_that_was_made_and_reported_as_refused_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def twice(draft: Path, manifest: Path) -> None:
        real(draft, manifest)
        raise FileExistsError(str(manifest))

    monkeypatch.setattr(batch_files.os, "link", twice)
    BatchFolder(tmp_path, token()).write(Written(1, 2), RETAINED)
    assert seen(tmp_path) == [1, 2]


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(draft: Path, manifest: Path) -> None:
        raise PermissionError("operation not permitted")

    monkeypatch.setattr(batch_files.os, "link", refuses)
    with pytest.raises(ConfigurationError, match="does not take a hard link"):
        BatchFolder(tmp_path, token()).write(Written(1, 2), RETAINED)
    assert (hidden(tmp_path), list(tmp_path.glob("*.parquet"))) == ([], [])


def test_a_run_that_failed_leaves_nothing_and_one_that_was_killed_is_collected(tmp_path: Path) -> None:
    def fails(url: str) -> None:
        Written(1)(url)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        BatchFolder(tmp_path, token()).write(fails, RETAINED)
    assert hidden(tmp_path) == []
    left = [f"{token()}.0123456789ab.staged", f"{token(5, 9)}.0123456789ab.staged"]
    others = [f"{token(8, 13)}.0123456789ab.staged", f"{token(query_id='x')}.0123456789ab.staged",
              f"{token()}.late.0123456789ab.staged", "flights.out.0.e1.a5.0123456789ab.parquet"]  # fmt: skip
    for name in left + others:
        (tmp_path / HIDDEN / name).mkdir()
    BatchFolder(tmp_path, token()).write(Written(1, files=1), RETAINED)
    assert hidden(tmp_path) == sorted([*others, f"{token()}.manifest"])


def test_manifests_are_kept_for_as_long_as_spark_keeps_batches(tmp_path: Path) -> None:
    for batch_id in range(6):
        BatchFolder(tmp_path, token(batch_id, batch_id)).write(Written(batch_id, files=1), 2)
    assert hidden(tmp_path) == [f"{token(n, n)}.manifest" for n in (3, 4, 5)]
    assert seen(tmp_path) == list(range(6))


def test_a_run_of_a_batch_long_gone_is_refused(tmp_path: Path) -> None:
    for batch_id in range(4):
        BatchFolder(tmp_path, token(batch_id, batch_id)).write(Written(batch_id, files=1), 1)
    before = hidden(tmp_path)
    with pytest.raises(JobRefused, match=r"comes too late.*has written batch 3 of checkpoint 3 there already"):
        BatchFolder(tmp_path, token(0, 0)).write(Written(0, files=1), 1)
    assert (hidden(tmp_path), seen(tmp_path)) == (before, [0, 1, 2, 3])


def test_a_run_of_a_batch_long_gone_that_is_killed_behind_its_decision_stays_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch_id in range(1, 6):
        BatchFolder(tmp_path, token(batch_id, batch_id)).write(Written(batch_id), 2)

    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(BatchFolder, "_made_visible", dies)
        with pytest.raises(Killed):
            BatchFolder(tmp_path, token(1, 1)).write(Written(11), 2)
    with pytest.raises(JobRefused, match="comes too late"):
        BatchFolder(tmp_path, token(1, 1)).write(Written(12), 2)
    assert seen(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("batch_id", [3, 4])
def test_a_query_that_was_set_back_with_its_job_is_told_what_to_take_away(tmp_path: Path, batch_id: int) -> None:
    """It runs the batch again, as another checkpoint: rows of both would be visible."""
    BatchFolder(tmp_path, token(3, 5)).write(Written(3), RETAINED)
    BatchFolder(tmp_path, token(4, 6)).write(Written(4), RETAINED)
    again = BatchFolder(tmp_path, token(batch_id, 105))
    with pytest.raises(JobRefused, match=rf"batch 4 of checkpoint 6.*\('\.b{batch_id}\.' in their names\)"):
        again.write(Written(30), RETAINED)
    assert seen(tmp_path) == [3, 4]
    for gone in (3, 4):
        for found in tmp_path.rglob(f"*.b{gone}.*") if gone >= batch_id else ():
            found.unlink()
    again.write(Written(30), RETAINED)
    assert seen(tmp_path) == ([30] if batch_id == 3 else [3, 30])


def test_a_frozen_run_shows_nothing_once_its_batch_was_set_back_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, rename = BatchFolder(tmp_path, token(7, 12)), BatchFolder._rename

    def thaws(self: BatchFolder, files: Any) -> None:
        monkeypatch.setattr(BatchFolder, "_rename", rename)
        for manifest in (tmp_path / HIDDEN).glob("*.b7.manifest"):  # as the refusal says
            manifest.unlink()
        BatchFolder(tmp_path, token(7, 13)).write(Written(2, files=1), RETAINED)
        rename(self, files)

    monkeypatch.setattr(BatchFolder, "_rename", thaws)
    with pytest.raises(StateError, match="cannot be read"):
        frozen.write(Written(1, files=1), RETAINED)
    assert seen(tmp_path) == [2]


def test_of_two_late_runs_at_once_both_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BatchFolder(tmp_path, token(8, 14)).write(Written(1, files=1), RETAINED)
    late, read, reads = BatchFolder(tmp_path, token(7, 12)), BatchFolder._read, list[Any]()

    def the_other_is_first(self: BatchFolder) -> dict[str, Any]:
        found = read(self)
        for manifest in (tmp_path / HIDDEN).glob("*.b7.manifest") if reads else ():
            manifest.unlink()
        reads.append(found)
        return found

    monkeypatch.setattr(BatchFolder, "_read", the_other_is_first)
    with pytest.raises(JobRefused, match="comes too late"):
        late.write(Written(2, files=1), RETAINED)


def test_two_writes_of_a_batch_are_told_apart_by_their_names(tmp_path: Path) -> None:
    for _ in range(2):
        BatchFolder(tmp_path, token()).write(Written(1, files=1), RETAINED)
        BatchFolder(tmp_path, token(), "late").write(Written(2, files=1), RETAINED)
    assert seen(tmp_path) == [1, 2]
    with pytest.raises(ConfigurationError, match=r"the name 'a/b' of a batch's files"):
        BatchFolder(tmp_path, token(), "a/b")


def test_folders_of_partitions_stay(tmp_path: Path) -> None:
    (file,) = BatchFolder(tmp_path, token()).write(Written(1, files=1, folder="carrier=AA"), RETAINED)
    assert file.parent == tmp_path / "carrier=AA"
    assert ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().to_pylist() == [
        {"value": 1, "carrier": "AA"}
    ]


def test_a_decided_file_that_is_nowhere_is_named(tmp_path: Path, kill_at: Callable[[int], list[str]],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(BatchFolder, "_rename", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        BatchFolder(tmp_path, token()).write(Written(1, files=1), RETAINED)
    monkeypatch.undo()
    (staged,) = (tmp_path / HIDDEN).glob("*.staged")
    next(staged.glob("*.parquet")).unlink()
    with pytest.raises(StateError, match=r"is neither at .*staged.* nor at .*snappy\.parquet \(visible\)"):
        BatchFolder(tmp_path, token()).write(Written(1), RETAINED)


@pytest.mark.parametrize("content", [
    "", "[]", '{"version": 2}',
    '{"version": 1, "staged": "..", "files": [], "visible": false}',
    '{"version": 1, "staged": "a", "files": [["a", "/etc/b"]], "visible": false}',
])  # fmt: skip
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / HIDDEN).mkdir(parents=True)
    (tmp_path / HIDDEN / f"{token()}.manifest").write_text(content)
    with pytest.raises(StateError, match="manifest"):
        BatchFolder(tmp_path, token()).write(Written(1), RETAINED)


def test_a_format_with_a_log_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'delta' is no such format.*batch\.token"):
        checked_format("delta")
    with pytest.raises(ConfigurationError, match=r"must be a name like 'parquet'"):
        checked_format(None)

    def unknown_table(url: str) -> None:
        Written(1)(url)
        (Path(urlsplit(url).path) / "_log").mkdir()

    with pytest.raises(ConfigurationError, match="a folder '_log' of its own"):
        BatchFolder(tmp_path, token()).write(unknown_table, RETAINED)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("folder", "message"), [
    ("s3://bucket/out", "object stores do not.*docs/exactly-once-batches.md"),
    ("file://elsewhere/out", "object stores do not"),
    ("out", "must be absolute"),
    ("", "must be a path"),
    (None, "must be a path"),
])  # fmt: skip
def test_a_folder_that_cannot_be_is_refused(folder: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        batch_folder(folder)


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    assert batch_folder(f"file://{tmp_path}/with%20space") == tmp_path / "with space"


class Executors:
    """A cluster whose second task runs where the folder is not mounted."""

    applicationId = "app"
    defaultParallelism = 2

    def __init__(self, master: str, blind: bool) -> None:
        self.master, self.blind = master, blind
        self.looked = 0

    def parallelize(self, numbers: range, tasks: int) -> Executors:
        assert len(numbers) == tasks >= 4
        return self

    def map(self, look: Callable[[int], str]) -> Executors:
        self.looked += 1
        self.found = [look(0), look(1)] if not self.blind else [look(0), "worker-7"]
        return self

    def filter(self, kind: type) -> Executors:
        self.found = [host for host in self.found if host]
        return self

    def collect(self) -> list[str]:
        return self.found


def test_executors_that_do_not_see_the_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"executors on worker-7 do not see what the driver writes"):
        require_shared(Executors("spark://master:7077", True), tmp_path)
    shared = Executors("spark://master:7077", False)
    for _ in range(2):
        require_shared(shared, tmp_path)
    assert shared.looked == 1
    for master, looks in (("local", 0), ("local[4,1000000]", 0), ("local-cluster[2,1,1024]", 1)):
        executors = Executors(master, False)
        require_shared(executors, tmp_path / "other")
        assert executors.looked == looks
    assert hidden(tmp_path) == []
    assert _blind_host(str(tmp_path / "nothing"))(0) == socket.gethostname()
    assert _blind_host(str(tmp_path))(0) == ""


def test_a_folder_that_only_spark_sees_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the driver does not see it there"):
        BatchFolder(tmp_path, token()).write(lambda _: None, RETAINED)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written to by the driver"):
        BatchFolder(tmp_path / "file", token()).write(Written(1), RETAINED)
