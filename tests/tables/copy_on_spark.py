"""Run as a program: a driver of the job that the environment names. ``penstock coordinator`` runs its coordinators.

A job copies splits to a table, slowly, until its folder says where to end. At each step of an assignment and of a
commit its processes look whether they must stop there.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock.sources import Split, SplitReader, Splits
from penstock.sources.split_coordinator import SplitCoordinator
from penstock.sources.split_reader import ReadSplits
from penstock.spark_integration import local_session, run
from penstock.tables.table_committer import TableCommitter
from penstock.tables.table_writer import TableWriter
from tests.tables.jobs import LETTERS, Place
from tests.tables.troubled import TroubledTable

JOB, FOLDER, KIND = "COPY_JOB", "COPY_FOLDER", "COPY_KIND"
"""Environment variables: the job's name, its folder, the kind of its table."""
IN_STATE = "files go into the coordinator's state"
ROWS = 10
"""In a split."""
PARALLELISM = 2
PATIENCE_S = 120.0
_PAYLOAD = 1_000
"""Bytes in each split, so that a listing has many steps."""
_ROW_S = 0.02
"""What a row takes until the job has an end."""


@dataclass(frozen=True)
class Steps:
    """The steps of a job, seen through its folder: the first process that comes to an armed one stops there."""

    folder: Path

    def at(self, step: str, subtask: int = 0) -> None:
        """Stop here if this step is armed, until the test lets it go on."""
        armed = self.folder / "armed"
        try:
            kill, wanted = json.loads(armed.read_text())
            if wanted != step:
                return
            armed.rename(self.folder / f"taken {kill}")  # by one process only
        except FileNotFoundError:
            return
        write(self.folder / f"reached {kill}", json.dumps({"pid": os.getpid(), "subtask": subtask}))
        deadline = time.monotonic() + PATIENCE_S
        while not (self.folder / f"go on {kill}").exists():
            assert time.monotonic() < deadline, f"nobody has let {step!r} go on within {PATIENCE_S:g} s"
            time.sleep(0.01)

    def _is_armed(self, step: str) -> bool:
        try:
            return bool(json.loads((self.folder / "armed").read_text())[1] == step)
        except FileNotFoundError:
            return False

    def end(self) -> int | None:
        """How many splits there are, once that is known."""
        try:
            return int((self.folder / "end").read_text())
        except FileNotFoundError:
            return None

    def note_process(self, context: penstock.Context) -> None:
        write(self.folder / f"{context.operator}-{context.subtask}.pid", str(os.getpid()))

    def around(self, append: Callable[[], None], checkpoint_id: int) -> None:
        """Make a commit; while files are to be seen in the coordinator's state, it takes until then."""
        while self._is_armed(IN_STATE):
            time.sleep(0.01)
        self.at("before the atomic step of a commit")
        append()
        self.at("after the atomic step of a commit")
        write(self.folder / "committed", str(checkpoint_id))


def write(path: Path, text: str) -> None:
    """Put a whole file there in one step."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.rename(path)


# ---- the source


def listing(steps: Steps, after: str | None) -> Iterator[Split]:
    for number in itertools.count(0 if after is None else int(after) + 1):
        if (end := steps.end()) is not None and number >= end:
            return
        yield Split(f"{number:06}", {"first": number * ROWS, "padding": "x" * _PAYLOAD})
        steps.at("a split has been listed")


class HandsOut(SplitCoordinator):
    def __init__(self, steps: Steps, source: Any) -> None:
        super().__init__(source)
        self._steps = steps

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
        self._steps.at("a split has been asked for", subtask)
        before = self._handed_out
        super().handle_event_from_operator(subtask, attempt, event, context)
        if self._handed_out > before:
            self._steps.at("a split has been handed out", subtask)


class Reads(ReadSplits):
    def __init__(self, steps: Steps, *of_splits: Any) -> None:
        super().__init__(*of_splits)
        self._steps = steps

    def open(self, context: penstock.Context) -> None:
        super().open(context)
        self._steps.note_process(context)

    def handle_operator_event(self, event: Any) -> None:
        self._steps.at("a split has arrived", self._context.subtask)
        super().handle_operator_event(event)


class ReadRows(SplitReader):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def read(self, split: Split, position: Any) -> Iterator[tuple[Any, Any]]:
        for row in range(position or 0, ROWS):
            n = split.payload["first"] + row
            if row == ROWS // 2:
                self._steps.at("half of a split has been read", self.context.subtask)
            if self._steps.end() is None:
                time.sleep(_ROW_S)
            yield row + 1, {"n": n, "letter": LETTERS[n % len(LETTERS)] if n % 7 else None}
        self._steps.at("a split has been read", self.context.subtask)


# ---- the sink


class Commits(TableCommitter):
    def __init__(self, steps: Steps, table: Any) -> None:
        super().__init__(TroubledTable(table, steps.around))  # type: ignore[arg-type]
        self._steps = steps

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        if self._waiting:
            self._steps.at(IN_STATE)
        super().checkpoint_coordinator(checkpoint_id, result)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if any(n <= checkpoint_id for n in self._waiting):
            self._steps.at("a checkpoint has completed")
        super().notify_checkpoint_complete(checkpoint_id)

    def _committed(self, checkpoint_id: int, rows: int, error: BaseException | None) -> None:
        self._steps.at("a commit has returned")
        super()._committed(checkpoint_id, rows, error)


class Writes(TableWriter):
    def __init__(self, steps: Steps, table: Any, encode: Any) -> None:
        super().__init__(table, encode)
        self._steps = steps

    def open(self, context: penstock.Context) -> None:
        self._subtask = context.subtask
        super().open(_Announcing(context, self._steps))  # type: ignore[arg-type]
        self._steps.note_process(context)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        state = super().snapshot_state(checkpoint_id)
        self._steps.at("a subtask's files are in its snapshot", self._subtask)
        return state


class _Announcing:
    """A subtask's context that stops before a file is announced."""

    def __init__(self, context: penstock.Context, steps: Steps) -> None:
        self._context, self._steps = context, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def send_event_to_coordinator(self, event: Any) -> None:
        self._steps.at("a file has been closed", self._context.subtask)
        self._context.send_event_to_coordinator(event)


# ---- the job


def job() -> penstock.Job:
    name, folder, kind = os.environ[JOB], Path(os.environ[FOLDER]), os.environ[KIND]
    copying = penstock.Job(
        name,
        checkpoint=penstock.CheckpointSettings(interval=0.2, timeout=60.0, tolerable_failures=1000),
        restart=penstock.RestartStrategy(budget=1000, backoff_next=0.01, backoff_max=0.1),
        heartbeat_interval=0.25,
        heartbeat_timeout=10.0,
        end_timeout=120.0,
    )
    steps, table = Steps(folder), Place(kind, folder).table()
    source = Splits(functools.partial(listing, steps))
    reading = source.read_by(functools.partial(ReadRows, steps), prefetch=4)
    reading["coordinator"] = functools.partial(HandsOut, steps, source)
    reading["subtask"] = functools.partial(Reads, steps, *reading["subtask"].args)
    reader = copying.operator("read", **reading, parallelism=PARALLELISM)
    sink = table.sink()
    sink["coordinator"] = functools.partial(Commits, steps, table)
    sink["subtask"] = functools.partial(Writes, steps, *sink["subtask"].args)
    copying.operator("out", **sink, parallelism=PARALLELISM, inputs=[reader.rebalance()])
    return copying


if __name__ == "__main__":
    spark = local_session(2 * PARALLELISM)
    ended = run(spark, job(), broker=sys.argv[1], coordinator="elsewhere").wait()
    write(Path(os.environ[FOLDER]) / "ended", ended.ending.value)
    spark.stop()
