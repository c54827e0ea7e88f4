"""Files as the source of a job: rows go on to other operators, and new files are found while it runs."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.sources import Files
from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .driving import PATIENCE_S, empty_job, progress_of, wait_until


class Totals(penstock.Subtask):
    """Counts each number; the last checkpoint tells what came."""

    def open(self, context: penstock.Context) -> None:
        self.seen: Counter[str] = Counter()

    def process(self, record: Any, input: str) -> None:
        for row in record.to_pylist() if isinstance(record, pa.RecordBatch) else [record]:
            self.seen[str(row["n"])] += 1

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return dict(self.seen)

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.seen = Counter(state)


def counted(running: LocalJob) -> Counter[int]:
    """How often each number is in the last checkpoint."""
    total: Counter[int] = Counter()
    last = running.client.history().last
    for who, part in last.subtasks.items() if last is not None else ():
        if who.operator == "totals" and part.state is not None and part.state.inline:
            total.update({int(n): times for n, times in json.loads(part.state.inline).items()})
    return total


def files_job(files: Files, parallelism: int = 3, **options: Any) -> penstock.Job:
    job = empty_job()
    reader = job.operator("read", **files.read(**options), parallelism=parallelism)
    job.operator("totals", subtask=Totals, parallelism=2, inputs=[reader.rebalance()], state_codec="json")
    return job


def write_files(folder: Path, numbers: range, per_file: int = 50) -> None:
    """Files of all formats, each whole when it appears."""
    folder.mkdir(exist_ok=True)
    for at, begin in enumerate(range(numbers.start, numbers.stop, per_file)):
        rows = [{"n": n} for n in range(begin, min(begin + per_file, numbers.stop))]
        suffix = ("csv", "jsonl", "parquet")[at % 3]
        hidden = folder / f".{begin}.{suffix}"
        match suffix:
            case "csv":
                hidden.write_text("n\n" + "".join(f"{row['n']}\n" for row in rows))
            case "jsonl":
                hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            case _:
                pq.write_table(pa.Table.from_pylist(rows), hidden, row_group_size=20)
        hidden.rename(folder / hidden.name[1:])


@pytest.mark.parametrize("options", [{}, {"split_bytes": 100}, {"batch_rows": 7}], ids=["rows", "parts", "batches"])
@pytest.mark.parametrize("who", [None, "read", "totals", "the coordinator"])
def test_every_row_comes_once_whoever_dies(tmp_path: Path, options: dict[str, Any], who: str | None) -> None:
    write_files(tmp_path / "in", range(2_000))
    with LocalJob(files_job(Files(f"{tmp_path}/in"), **options)) as running:
        if who == "the coordinator":
            running.wait_for(lambda status: status.state == "running", PATIENCE_S)
            running.replace_coordinator()
        elif who is not None:
            running.crash_subtask(who, 0)
        assert running.wait(PATIENCE_S).ending.value == "finished"
        assert counted(running) == Counter(range(2_000))
        running.check()


def test_new_files_are_read_while_the_job_runs_and_after_a_stop_under_another_parallelism(tmp_path: Path) -> None:
    broker, folder = MemoryBroker(), tmp_path / "in"
    files = Files(str(folder), discover_every=0.05)
    with LocalJob(files_job(files), MemoryTransport(broker)) as running:
        for begin in (0, 500, 1_000):
            write_files(folder, range(begin, begin + 500), per_file=37)
            wait_until(lambda begin=begin: counted(running) == Counter(range(begin + 500)), "all rows")  # type: ignore[misc]
            running.crash_subtask("read", begin % 3)
        running.replace_coordinator()
        write_files(folder, range(1_500, 2_000))
        wait_until(lambda: counted(running) == Counter(range(2_000)), "all rows")
        wait_until(lambda: progress_of(running)["open"] == 0, "the end of every file")
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
    write_files(folder, range(2_000, 2_300))
    with LocalJob(files_job(files, parallelism=5), MemoryTransport(broker)) as running:
        wait_until(lambda: counted(running) == Counter(range(2_300)), "all rows")
        told = progress_of(running)
        assert told["found"] == told["handed_out"] == len(list(folder.iterdir()))
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)


def test_a_file_that_changes_while_it_waits_fails_the_job_by_name(tmp_path: Path) -> None:
    write_files(tmp_path / "in", range(200))
    held = threading.Event()

    class Late(penstock.sources.FileReader):
        def open(self) -> None:
            held.wait(PATIENCE_S)

        def handle(self, record: Any) -> None:
            pass

    job = empty_job()
    job.restart = penstock.RestartStrategy(budget=2, backoff_next=0.01, backoff_max=0.05)
    job.operator("read", **Files(f"{tmp_path}/in").read_by(Late), parallelism=1)
    with LocalJob(job) as running:
        wait_until(lambda: progress_of(running)["found"] == 4, "the listing")
        (tmp_path / "in" / "50.jsonl").write_text('{"n": 1}\n')
        held.set()
        end = running.wait(PATIENCE_S)
    assert "50.jsonl has changed since it was listed" in end.cause
