"""An alignment costs no memory, however long it is held up (section 9): a bounded cache, and the log for the rest.

A receiver has the barrier of one sender, which goes on for a million records; the other keeps its barrier back.
"""

from __future__ import annotations

import threading
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.alignment import first_has_delivered, hold_up
from penstock import CheckpointSettings, Context, Idle, Job, Progress, Subtask
from penstock.broker import EmbeddedBroker
from penstock.schemas.frames import FRAME_BYTES_MAX
from penstock.schemas.ids import SubtaskId
from penstock.subtask_client.incoming import CACHE_BYTES_MAX, DATA_RECORDS_MAX
from penstock.subtask_client.protocol.drop_reasons import Dropped
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.testing import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport
from penstock.transport.ports import LogRecord, Partition, Reader

RECORDS, BATCH = 1_000_000, 500
PADDING = bytes(92)
SKIPPED_BYTES = RECORDS * (8 + len(PADDING))
LOOKS = 10
DEADLINE_S = 360.0


class Copying:
    """A reader whose records are copies, as those of a broker are: tracemalloc then knows who keeps how much."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self.seek, self.pause, self.close = inner.seek, inner.pause, inner.close

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        return [record._replace(value=copied(record.value)) for record in self._inner.poll(timeout_s, records_max)]


def copied(value: bytes | None) -> bytes | None:
    return None if value is None else bytes(memoryview(value))  # the line whose memory is traced


class CopyingTransport(MemoryTransport):
    def reader(self, positions: Mapping[Partition, int]) -> Reader:
        return Copying(super().reader(positions))


def bytes_read_and_kept() -> int:
    line = copied.__code__.co_firstlineno + 1
    traced = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__, line)])
    return sum(trace.size for trace in traced.traces)


class Valve:
    """What the test and its subtasks tell each other."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        """Whether the first sender may emit its records."""
        self.delivers = threading.Event()
        """Whether the second sender may take its snapshot."""
        self.snapshots = 0
        """That the receiver has taken."""
        self.received = array("q")


class Sender(Subtask):
    def __init__(self, valve: Valve) -> None:
        self.valve, self.next = valve, 0

    def open(self, context: Context) -> None:
        self.context = context

    def poll(self) -> Progress | Idle:
        if self.context.subtask == 1 or self.next == RECORDS or not self.valve.goes_on.is_set():
            return Idle(0.01)
        for number in range(self.next, self.next + BATCH):
            self.context.emit(number.to_bytes(8, "little") + PADDING)
        self.next += BATCH
        return Progress()

    def snapshot_state(self, checkpoint_id: int) -> None:
        if self.context.subtask == 1:
            assert self.valve.delivers.wait(DEADLINE_S)


class Receiver(Subtask):
    def __init__(self, valve: Valve) -> None:
        self.valve = valve

    def process(self, record: bytes, input: str) -> None:
        self.valve.received.append(int.from_bytes(record[:8], "little"))

    def snapshot_state(self, checkpoint_id: int) -> None:
        self.valve.snapshots += 1


def held_up_job(valve: Valve, unaligned: bool) -> Job:
    settings = CheckpointSettings(interval=0.05, unaligned=unaligned, timeout=DEADLINE_S)
    job = Job("held-up", checkpoint=settings, heartbeat_timeout=DEADLINE_S)  # a busy machine fails nobody over
    sender = job.operator("sender", subtask=lambda: Sender(valve), parallelism=2)
    job.operator("receiver", subtask=lambda: Receiver(valve), parallelism=1, inputs=[sender.rebalance()])
    return job


@contextmanager
def running(valve: Valve, unaligned: bool) -> Iterator[tuple[LocalJob, SubtaskRuntime]]:
    """The job, and the receiver's runtime."""
    job, broker, stop = held_up_job(valve, unaligned), MemoryBroker(), threading.Event()
    with LocalJob(job, CopyingTransport(broker), subtasks=False) as local:
        local.client.announce_run(local.run_id)
        runtimes = {
            subtask: SubtaskRuntime(
                job.settings, subtask, job.operators[subtask.operator].subtask, CopyingTransport(broker),
                run=local.run_id, stop_requested=stop,
            )
            for subtask in job.settings.subtasks()
        }  # fmt: skip
        threads = [threading.Thread(target=runtime.run) for runtime in runtimes.values()]
        for thread in threads:
            thread.start()
        try:
            yield local, runtimes[SubtaskId("receiver", 0)]
        finally:
            valve.delivers.set()
            stop.set()
            for thread in threads:
                thread.join(DEADLINE_S)


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def most_kept(runtime: SubtaskRuntime, passed: Callable[[], int]) -> tuple[int, int]:
    """While a million records come: the most that the cache says it holds, and what is kept of what was read."""
    said = kept = 0
    for look in range(1, LOOKS + 1):
        wait_until(lambda at=look * RECORDS // LOOKS: passed() >= at, f"{passed()} records have come")  # type: ignore[misc]
        said = max(said, CACHE_BYTES_MAX - runtime._incoming._cache_room)
        kept = max(kept, bytes_read_and_kept())
    return said, kept


FETCHED_BYTES = 2 * DATA_RECORDS_MAX * (FRAME_BYTES_MAX + 1024)
"""What has been read and not been looked at, and as much again for what the coordinator and the senders read."""


def test_an_alignment_held_up_for_a_million_records_keeps_to_its_bound_and_then_delivers_each_once() -> None:
    valve = Valve()
    with running(valve, unaligned=False) as (local, receiver):
        wait_until(lambda: first_has_delivered(receiver.core), "no barrier came")
        assert not valve.received
        with traced():
            valve.goes_on.set()
            said, kept = most_kept(receiver, lambda: receiver.core.dropped[Dropped.BLOCKED] * BATCH)
        assert not valve.received and valve.snapshots == 0, "the alignment is over before its last barrier"
        assert kept <= CACHE_BYTES_MAX + FETCHED_BYTES < SKIPPED_BYTES / 3
        assert CACHE_BYTES_MAX / 2 < said <= CACHE_BYTES_MAX, "the cache is used, and has its bound"
        valve.delivers.set()
        wait_until(lambda: len(valve.received) >= RECORDS, "not every record was handled")
        assert valve.received == array("q", range(RECORDS))
        assert receiver._incoming.reread > RECORDS / BATCH / 2, "most of them came from the log once more"
        assert receiver._incoming._cache_room == CACHE_BYTES_MAX, "the room is given back"
        local.wait_for(lambda status: status.checkpoints_completed > 0, DEADLINE_S)
        local.check()


def test_an_unaligned_checkpoint_held_up_as_long_keeps_nothing() -> None:
    valve = Valve()
    with running(valve, unaligned=True) as (local, receiver):
        wait_until(lambda: valve.snapshots == 1, "no barrier came")
        with traced():
            valve.goes_on.set()
            said, kept = most_kept(receiver, lambda: len(valve.received))
        assert said == 0 and receiver.core.dropped[Dropped.BLOCKED] == 0
        assert kept <= FETCHED_BYTES < SKIPPED_BYTES / 3
        valve.delivers.set()
        local.wait_for(lambda status: status.checkpoints_completed > 0, DEADLINE_S)
        assert valve.received == array("q", range(RECORDS)) and receiver._incoming.reread == 0
        local.check()


@pytest.mark.kafka
def test_over_kafka_a_process_grows_by_the_cache_and_what_its_client_fetches_ahead(
    kafka_broker: EmbeddedBroker,
) -> None:
    """The receiver checks that every record comes once and in order; this returns when it has them all."""
    run = hold_up(kafka_broker.bootstrap, 1_002_000, unaligned=False)
    assert [sample.records for sample in run.samples] == [tenth * 100_200 for tenth in range(1, 11)]
    assert max(sample.grown_mb for sample in run.samples) < 3 * run.bound_mb < run.skipped_mb * 0.6
    assert run.bound_mb / 2 < max(sample.cached_mb for sample in run.samples) <= run.bound_mb
    assert run.reread * 600 > run.records / 2
