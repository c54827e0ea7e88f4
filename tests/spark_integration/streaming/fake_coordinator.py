"""A coordinator as a query meets it, and no more: plans what a test offers, remembers what Spark has committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.schemas.acks import BatchCommitted, BatchWanted, RunStarted
from penstock.schemas.codec import Record, decode, encode
from penstock.schemas.events import CheckpointAborted, CheckpointCompleted, EventFrame, TriggerCheckpoint
from penstock.schemas.frames import pack, split
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.status import BatchOutcome, BatchPartition, BatchPlanned, JobStatus
from penstock.schemas.topics import TopicNames
from penstock.transport.ports import Partition, Transport

Events = Sequence[Sequence[bytes]]
"""The events of one batch, by subtask."""

OPERATOR = "reader"


def topics_of(transport: Transport, job: str, parallelism: int) -> TopicNames:
    """The job's topics, which are made where there are none."""
    settings = JobSettings(job, (OperatorSettings(OPERATOR, parallelism),), driven_by_query=True)
    transport.create_topics(settings.topic_specs)
    return settings.topics


def job_status(job: str, state: str, cause: str = "", age_s: float = 0.0, **fields: Any) -> JobStatus:
    plain: dict[str, Any] = {
        "job": job, "instance": "fake", "state": state, "cause": cause, "at_ms": int((time.time() - age_s) * 1000),
        "run": "", "epoch": 1, "last_completed": -1, "checkpoints_completed": 0, "checkpoints_aborted": 0,
        "last_duration_s": -1.0, "failovers_region": 0, "failovers_global": 0, "last_failure": "", "dropped": {},
        "pending": (), "operators": (),
    }  # fmt: skip
    return JobStatus(**plain | fields)


@dataclass
class FakeCoordinator:
    """Runs on a thread of its own between ``with`` and its end. Everything public may be read by the test."""

    transport: Transport
    topics: TopicNames
    parallelism: int
    offered: list[Events] = field(default_factory=list)
    refuse: str = ""
    """Refuse whatever is asked next, for this reason."""
    mute: bool = False
    wanted: list[BatchWanted] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    """Offset of each run's RunStarted."""
    completed: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    """BatchCommitted, as they came."""
    epoch: int = 1
    partitions: dict[int, tuple[BatchPartition, ...]] = field(default_factory=dict)
    """Of each batch that was ever planned."""

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-coordinator", daemon=True)
        self._answered: dict[tuple[str, int], BatchPlanned] = {}
        self._run_of_epoch = ""
        self._next_id = 1
        self._used = 0
        """How many of the offered batches have been planned on the current line."""
        self._used_at = {-1: 0}
        self._stands_at = -1
        self._sequences = [0] * self.parallelism
        self._error: BaseException | None = None

    def __enter__(self) -> FakeCoordinator:
        self._writer = self.transport.writer()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._writer.close()
        if self._error is not None:
            raise self._error

    # ---- for tests

    @property
    def requests(self) -> list[BatchWanted]:
        """What was asked for, without what was asked for again: a loaded machine takes longer for an answer."""
        return list(dict.fromkeys(self.wanted))

    def offer(self, *batches: Events) -> None:
        with self.changed:
            self.offered += batches

    def await_(self, condition: Any, what: str, timeout: float = 30.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout), f"not within {timeout} s: {what}"

    def say(self, state: str, cause: str = "", **fields: Any) -> None:
        self.append(Partition(self.topics.status, 0), job_status(self.topics.job, state, cause, **fields))

    def append(self, partition: Partition, record: Record | bytes) -> int:
        offsets: list[int | None] = []
        value = record if isinstance(record, bytes) else encode(record)
        self._writer.append(partition, value, None, lambda offset, _: offsets.append(offset))
        assert self._writer.flush(20)
        assert offsets[0] is not None
        return offsets[0]

    # ---- as a coordinator

    def _run(self) -> None:
        reader = self.transport.reader({Partition(self.topics.acks, 0): 0})
        try:
            while not self._stop.is_set():
                for record in reader.poll(0.05):
                    with self.changed:
                        self._hear(decode(record.value), record.offset)
                        self.changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            reader.close()

    def _hear(self, record: object, offset: int) -> None:
        match record:
            case RunStarted(run=run):
                self.runs[run] = offset
            case BatchWanted():
                self.wanted.append(record)
                if not self.mute:
                    self.append(Partition(self.topics.status, 0), self._answer(record))
            case BatchCommitted(checkpoint_id=n):
                self.told.append(n)
                self._complete(n)
            case _:
                pass

    def _answer(self, wanted: BatchWanted) -> BatchPlanned:
        key = wanted.run, wanted.request
        if key not in self._answered:
            self._answered[key] = self._planned(wanted)
        return self._answered[key]

    def _planned(self, wanted: BatchWanted) -> BatchPlanned:
        n = wanted.checkpoint_id
        known = n in self._used_at and (n >= 0 or wanted.fresh or not self.completed)
        refused = self.refuse or ("" if known else f"checkpoint {n} is not known here")
        assert self.runs[wanted.run] == wanted.run_offset
        if refused:
            return BatchPlanned(wanted.run, wanted.request, BatchOutcome.REFUSED, n, self.epoch, (), refused)
        self._complete(n)
        if wanted.run != self._run_of_epoch:
            self._attach(wanted.run, n)
        if self._used == len(self.offered):
            return BatchPlanned(wanted.run, wanted.request, BatchOutcome.NOTHING, n, self.epoch, (), "")
        checkpoint, events = self._next_id, self.offered[self._used]
        self._next_id += 1
        self._used += 1
        self._used_at[checkpoint] = self._used
        self._stands_at = checkpoint
        parts = tuple(self._written(subtask, events[subtask], checkpoint) for subtask in range(self.parallelism))
        self.partitions[checkpoint] = parts
        return BatchPlanned(wanted.run, wanted.request, BatchOutcome.PLANNED, checkpoint, self.epoch, parts, "")

    def _complete(self, n: int) -> None:
        if n >= 0 and n not in self.completed:
            self.completed.append(n)

    def _attach(self, run: str, n: int) -> None:
        self._run_of_epoch = run
        if self._stands_at != n:
            self.epoch += 1
            self._sequences = [0] * self.parallelism
            self._stands_at, self._used = n, self._used_at[n]

    def _written(self, subtask: int, events: Sequence[bytes], n: int) -> BatchPartition:
        """Frames and the marker, with records between them that do not count."""
        at = Partition(self.topics.events(OPERATOR), subtask)
        begin = self.append(at, EventFrame(self.epoch + 7, 0, 0, *pack([b"of another epoch"])))
        first = self._sequences[subtask]
        for run in split(events, events_max=3):
            self.append(at, EventFrame(self.epoch, 0, self._sequences[subtask], *pack(run)))
            self.append(at, TriggerCheckpoint(self.epoch, n + 1000, 0, False, False))
            self._sequences[subtask] += len(run)
        self.append(at, CheckpointAborted(self.epoch, n + 1000, "declined"))
        end = self.append(at, TriggerCheckpoint(self.epoch, n, self._sequences[subtask], False, False)) + 1
        self.append(at, CheckpointCompleted(self.epoch, n))
        return BatchPartition(begin, end, first)
