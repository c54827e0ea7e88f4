"""What goes wrong around a file sink, or is asked of it wrongly, and what it says then; and its subclasses."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.schemas.errors import ConfigurationError, StateError, SubtaskError
from penstock.sinks import FileSink, JsonLines, staging
from penstock.sinks.staging import HIDDEN

from .driving import hidden, opened, records, restored, snapshot, visible, write

# ---- what goes wrong


def test_a_named_file_that_is_nowhere_is_an_error_that_names_both_places_and_the_ways_out(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    write(sink, 1)
    state = snapshot(sink, 7)
    (name,) = hidden(tmp_path)
    kept = (tmp_path / HIDDEN / name).rename(tmp_path / ".kept")
    with pytest.raises(StateError) as raised:
        restored(tmp_path, 7, state, attempt=2)
    said = str(raised.value)
    (entry,) = json.loads(state)["files"]
    assert str(tmp_path / HIDDEN / name) in said and str(tmp_path / entry[2]) in said
    for words in ("subtask out/1 of job 'flights'", "checkpoint 7", "Put it back", "may_be_taken=True"):
        assert words in said
    kept.rename(tmp_path / HIDDEN / name)
    restored(tmp_path, 7, state, attempt=3)
    assert records(tmp_path) == [1]


def test_another_folder_than_the_state_was_written_for_is_named_in_the_error(tmp_path: Path) -> None:
    sink = opened(tmp_path / "old")
    write(sink, 1)
    state = snapshot(sink, 7)
    with pytest.raises(StateError, match=f"written to the folder {tmp_path / 'old'}: start the job with that folder"):
        restored(tmp_path / "new", 7, state, attempt=2)


def test_a_folder_that_was_moved_as_a_whole_goes_on_at_its_new_place(tmp_path: Path) -> None:
    sink = opened(tmp_path / "old")
    write(sink, 1)
    state = snapshot(sink, 7)
    (tmp_path / "old").rename(tmp_path / "new")
    restored(tmp_path / "new", 7, state, attempt=2)
    assert records(tmp_path / "new") == [1]


def test_files_that_readers_take_away_are_missed_only_where_that_was_not_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = opened(tmp_path, sink=FileSink(tmp_path, may_be_taken=True))
    write(sink, 1)
    state = snapshot(sink, 7)
    sink.notify_checkpoint_complete(7)
    (name,) = visible(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(StateError):
        restored(tmp_path, 7, state, attempt=2)
    opened(tmp_path, attempt=3, sink=(again := FileSink(tmp_path, may_be_taken=True)))
    again.restore_state(7, state)
    assert name in caplog.text


def test_a_full_disk_fails_the_attempt_and_shows_nothing(tmp_path: Path) -> None:
    class Full(JsonLines):
        def open(self, path: Path) -> Any:
            path.write_bytes(b'{"half a rec')
            return self

        def write(self, record: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    sink = opened(tmp_path, sink=FileSink(tmp_path, Full()))
    with pytest.raises(OSError, match="No space left"):
        write(sink, 1)
    for again in (lambda: write(sink, 2), lambda: snapshot(sink, 7)):  # user code that passes over the error
        with pytest.raises(StateError, match=r"may be incomplete.*No space left"):
            again()
    sink.close()
    assert visible(tmp_path) == {} and hidden(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_in_either_phase_fails_the_attempt_and_its_successor_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    sink = opened(tmp_path)
    state, n = snapshot(sink, 6), 6
    write(sink, 1)
    if call == "replace":
        state, n = snapshot(sink, 7), 7
    with monkeypatch.context() as patched:
        patched.setattr(staging.os, call, fails)
        with pytest.raises(OSError, match="Input/output"):
            snapshot(sink, 7) if call == "fsync" else sink.notify_checkpoint_complete(7)
    sink.close()
    assert visible(tmp_path) == {}
    again = restored(tmp_path, n, state, attempt=2)
    if call == "fsync":
        write(again, 1)
    snapshot(again, 8)
    again.notify_checkpoint_complete(8)
    assert records(tmp_path) == [1]


def test_a_folder_without_permission_is_refused_when_the_subtask_opens(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:  # root may write everywhere
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigurationError, match="cannot write to its folder"):
            opened(tmp_path / "out")
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_one_is_refused_when_the_subtask_opens(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"subtask out/1 of job 'flights' cannot write to its folder .*file"):
        opened(tmp_path / "file")


def test_a_folder_that_a_rename_cannot_reach_is_refused_when_the_subtask_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crosses(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(staging.os, "replace", crosses)
    with pytest.raises(ConfigurationError, match="one file system"):
        opened(tmp_path)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("url", ["s3://bucket/out", "hdfs:/out", "gs://b", "abfss://c@a/x", "file://elsewhere/out"])
def test_an_object_store_is_refused_where_the_sink_is_made(url: str) -> None:
    with pytest.raises(ConfigurationError, match="rename a file in one step"):
        FileSink(url)


@pytest.mark.parametrize("folder", ["out", "./out", "", 7, None, b"/out"])
def test_a_folder_that_is_no_absolute_path_is_refused_where_the_sink_is_made(folder: Any) -> None:
    with pytest.raises(ConfigurationError, match="the folder of a file sink must be"):
        FileSink(folder)


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    sink = opened(tmp_path, sink=FileSink(f"file://{tmp_path}/with%20space"))
    write(sink, 1)
    snapshot(sink, 7)
    sink.notify_checkpoint_complete(7)
    assert records(tmp_path / "with space") == [1]


@pytest.mark.parametrize(
    "state",
    [
        b"", b"garbage", b"[]", b"7", b"{}", b'{"version":2,"folder":"/x","files":[]}',
        b'{"version":1,"folder":"/x","files":[7]}', b'{"version":1,"folder":"/x","files":[["7","a","b"]]}',
        b'{"version":1,"folder":"/x","files":[[7,"../a","b"]]}', b'{"version":1,"folder":"/x","files":[[7,"a","/b"]]}',
    ],
)  # fmt: skip
def test_a_state_that_is_none_of_a_sinks_is_refused_and_nothing_is_touched(tmp_path: Path, state: bytes) -> None:
    first = opened(tmp_path)
    write(first, 1)
    snapshot(first, 7)
    before = hidden(tmp_path)
    sink = opened(tmp_path, attempt=2)
    with pytest.raises(StateError, match="state in checkpoint 7 is not that of a file sink"):
        sink.restore_state(7, state)
    assert hidden(tmp_path) == before


# ---- subclasses


def test_a_subclass_encodes_records_and_keeps_a_state_of_its_own(tmp_path: Path) -> None:
    class Totals(FileSink):
        total = 0

        def handle_operator_event(self, event: Any) -> None:
            self.total += event
            self.write(event)

        def encode(self, record: Any) -> Any:
            return {"value": record, "total": self.total}

        def snapshot_state(self, checkpoint_id: int) -> Any:
            return {"total": self.total, "sink": super().snapshot_state(checkpoint_id).decode()}

        def restore_state(self, checkpoint_id: int, state: Any) -> None:
            self.total = state["total"]
            super().restore_state(checkpoint_id, state["sink"])

    sink = opened(tmp_path, sink=Totals(tmp_path))
    for event in (1, 2):
        sink.handle_operator_event(event)
    state = json.loads(json.dumps(sink.snapshot_state(7)))  # as the codec "json" would
    again = opened(tmp_path, attempt=2, sink=Totals(tmp_path))
    again.restore_state(7, state)
    again.handle_operator_event(3)
    again.snapshot_state(8)
    again.notify_checkpoint_complete(8)
    expected = [[{"value": 1, "total": 1}, {"value": 2, "total": 3}], [{"value": 3, "total": 6}]]
    assert list(visible(tmp_path).values()) == expected


def test_a_sink_is_settled_when_all_that_was_written_is_visible(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    assert sink.settled
    write(sink, 1)
    assert not sink.settled
    snapshot(sink, 7)
    assert not sink.settled
    sink.notify_checkpoint_aborted(7, "declined")
    snapshot(sink, 8)
    assert not sink.settled
    sink.notify_checkpoint_complete(8)
    assert sink.settled


def test_calls_in_an_order_that_would_lose_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SubtaskError, match=r"used before open\(context\)"):
        write(FileSink(tmp_path), 1)
    sink = opened(tmp_path)
    write(sink, 1)
    with pytest.raises(SubtaskError, match=r"before super\(\)\.restore_state\(\)"):
        sink.restore_state(7, None)
    sink.close()
    with pytest.raises(StateError, match="closed"):
        write(sink, 1)


@pytest.mark.parametrize("format", [JsonLines, "json", object()])
def test_what_is_no_format_is_refused_where_the_sink_is_made(tmp_path: Path, format: Any) -> None:
    with pytest.raises(ConfigurationError, match="format"):
        FileSink(tmp_path, format)


@pytest.mark.parametrize("suffix", ["", "json", "/../x", ".a/b", ".", 7])
def test_a_suffix_that_would_lead_elsewhere_is_refused(tmp_path: Path, suffix: Any) -> None:
    format = JsonLines()
    format.suffix = suffix
    with pytest.raises(ConfigurationError, match="suffix"):
        FileSink(tmp_path, format)
