"""The coordinator's runtime and the data topics: made, looked at, named in Start, truncated, refused
(protocol, sections 3, 5, 7.9 and 11). The subtasks are played by hand, record by record: no subtask runs."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest

from penstock.coordinator import preflight, truncation
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.runtime import CoordinatorRuntime
from penstock.schemas.acks import CheckpointAck, Failed, Hello, RunStarted
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart, EpochClaimed
from penstock.schemas.codec import Record, decode, encode
from penstock.schemas.errors import JobRefused
from penstock.schemas.events import Reset, Start, TriggerCheckpoint
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.ids import NO_ATTEMPT, SubtaskId
from penstock.schemas.settings import CheckpointSettings, JobSettings, OperatorSettings, RestartStrategy
from penstock.schemas.state import OPEN_END, ChannelPosition, Segment, Sender, StateHandle
from penstock.schemas.status import End
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import LogRecord, OffsetRange, Partition

from .jobs import PATIENCE_S, wait_until

T = TypeVar("T")

A0 = SubtaskId("a", 0)
B0, B1 = SubtaskId("b", 0), SubtaskId("b", 1)
DATA0, DATA1 = Partition("penstock.job.a.b.data", 0), Partition("penstock.job.a.b.data", 1)


def settings_with(*operators: OperatorSettings) -> JobSettings:
    """Checkpoints are triggered at once and wait for their acks as long as it takes; silence fails nobody."""
    keyed = (InputSettings("a", Partitioning.KEYED),)
    return JobSettings(
        "job",
        operators
        or (
            OperatorSettings("a", 1, has_coordinator=False),
            OperatorSettings("b", 2, has_coordinator=False, inputs=keyed),
        ),
        checkpoint=CheckpointSettings(interval=0.02, timeout=600.0),
        restart=RestartStrategy(backoff_next=0.0, backoff_max=0.0, budget=50),
        heartbeat_interval=0.1,
        heartbeat_timeout=600.0,
        start_timeout=600.0,
    )


class Coordinated:
    """One coordinator instance on a thread of its own, and hands that play its subtasks."""

    def __init__(self, settings: JobSettings, broker: MemoryBroker, **options: Any) -> None:
        self.settings, self.transport = settings, MemoryTransport(broker)
        given = CoordinatorOptions(status_interval_s=0.05, deadline_s=PATIENCE_S, **options)
        self.runtime = CoordinatorRuntime(settings, {}, MemoryTransport(broker), given)
        self.outcome: End | None = None
        self.refusal: JobRefused | None = None
        self.attempts: dict[SubtaskId, Start] = {}
        self._thread = threading.Thread(target=self._run, name="coordinator")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self.runtime.run()
        except JobRefused as refusal:
            self.refusal = refusal

    def leave(self) -> None:
        self.runtime.leave()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    # ---- logs

    def log(self, partition: Partition, kind: type[T]) -> list[T]:
        decoded = (decode(r.value) for r in self.transport.read_all(partition) if r.value is not None)
        return [record for record in decoded if isinstance(record, kind)]

    def events(self, subtask: SubtaskId, kind: type[T]) -> list[T]:
        return self.log(Partition(self.settings.topics.events(subtask.operator), subtask.index), kind)

    def committed(self, kind: type[T]) -> list[T]:
        return self.log(Partition(self.settings.topics.checkpoints, 0), kind)

    def write(self, record: Record) -> int:
        return append(self.transport, Partition(self.settings.topics.acks, 0), encode(record))

    def emit(self, partition: Partition, count: int) -> int:
        """Records whose contents concern no coordinator; returns the partition's end."""
        for _ in range(count):
            append(self.transport, partition, b"data")
        return self.transport.offsets([partition])[partition].end

    # ---- subtasks

    def claimed(self, epoch: int) -> None:
        wait_until(lambda: [c for c in self.committed(EpochClaimed) if c.epoch == epoch], f"epoch {epoch}")

    def begin_run(self, run: str = "run-1") -> None:
        wait_until(lambda: self.runtime.began, "the coordinator's claim: before it there is no topic")
        self.write(RunStarted(run, "here"))
        self.hello_all(run)

    def hello(self, subtask: SubtaskId, run: str = "run-1") -> Start:
        """Its Start. Each Hello has a nonce of its own: one with the live attempt's would be a repeat (P-4.1.8)."""
        nonce, layout = uuid.uuid4().hex, dict(self.settings.parallelism)
        offset = self.write(Hello(*subtask, run, nonce, f"task-{subtask}", "here", layout, 1))
        return self.start_of(subtask, lambda start: start.attempt == offset)

    def start_of(self, subtask: SubtaskId, which: Callable[[Start], bool]) -> Start:
        (start, *_) = wait_until(lambda: [s for s in self.events(subtask, Start) if which(s)], f"a Start of {subtask}")
        self.attempts[subtask] = start
        return start  # type: ignore[no-any-return]

    def hello_all(self, run: str = "run-1") -> None:
        for subtask in self.settings.subtasks():
            self.hello(subtask, run)

    def sender(self, subtask: SubtaskId) -> Sender:
        start = self.attempts[subtask]
        return Sender(*subtask, start.attempt, start.epoch, start.generation)

    def triggered(self) -> int:
        """The id of the newest checkpoint whose marker stands, once that is not complete."""

        def newest() -> int | None:
            complete = [c.checkpoint_id for c in self.committed(CheckpointCompleted)]
            markers = [m.checkpoint_id for m in self.events(A0, TriggerCheckpoint)]
            return markers[-1] if markers and markers[-1] not in complete and markers[-1] >= 0 else None

        return wait_until(lambda: (n := newest()) is not None and (n,), "a marker")[0]  # type: ignore[no-any-return]

    def checkpoint(self, positions: dict[SubtaskId, tuple[ChannelPosition, ...]]) -> int:
        """Acknowledges for everybody, with these data positions; returns the id when it is complete."""
        n = self.triggered()
        for subtask in self.settings.subtasks():
            events = Partition(self.settings.topics.events(subtask.operator), subtask.index)
            at = self.transport.offsets([events])[events].end
            state = StateHandle(5, inline=b"state")
            self.write(
                CheckpointAck(
                    self.sender(subtask), n, state, at, (), 0, 0, positions.get(subtask, self.ends(subtask)), False, 1
                )
            )
        wait_until(lambda: n in [c.checkpoint_id for c in self.committed(CheckpointCompleted)], f"checkpoint {n}")
        return n

    def ends(self, subtask: SubtaskId) -> tuple[ChannelPosition, ...]:
        """All of its data partitions has been read."""
        channels = self.settings.graph.channels_into(subtask)
        topics = self.settings.topics
        ends = {s: Partition(topics.data(s.operator, subtask.operator), subtask.index) for s in channels}
        there = self.transport.offsets(ends.values())
        return tuple(channel(s, self.opened(subtask, there[ends[s]].end)) for s in channels)

    def opened(self, subtask: SubtaskId, begin: int) -> Segment:
        start = self.attempts[subtask]
        return Segment(begin, OPEN_END, start.epoch, start.generation, NO_ATTEMPT)


def append(transport: MemoryTransport, partition: Partition, value: bytes) -> int:
    offsets: list[int | None] = []
    writer = transport.writer()
    writer.append(partition, value, b"key", lambda offset, error: offsets.append(offset))
    writer.close()
    (offset,) = offsets
    assert offset is not None
    return offset


def channel(sender: SubtaskId, *segments: Segment, sequence: int = 0) -> ChannelPosition:
    return ChannelPosition(str(sender), segments, sequence)


def begins(start: Start) -> list[int]:
    return [segment.begin for position in start.data_positions for segment in position.segments]


class Stage:
    """A broker, and the coordinators that a test starts on it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.transport = MemoryTransport(self.broker)
        self.coordinators: list[Coordinated] = []

    def coordinator(self, settings: JobSettings | None = None, **options: Any) -> Coordinated:
        self.coordinators.append(Coordinated(settings or settings_with(), self.broker, **options))
        return self.coordinators[-1]

    def refused(self, match: str) -> None:
        """A coordinator that starts now is refused, and has claimed nothing."""
        coordinator = self.coordinator()
        wait_until(lambda: coordinator.refusal is not None or coordinator.runtime.began, "a refusal")
        assert not coordinator.runtime.began
        assert re.search(match, str(coordinator.refusal)), coordinator.refusal


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    for coordinator in made.coordinators:
        coordinator.leave()


RANGE = Segment(2, 5, 1, 0, 1)


def one_with_a_range(stage: Stage) -> tuple[Coordinated, tuple[ChannelPosition, ...]]:
    """Ten records went to b/0, and a completed checkpoint names three of them as a range."""
    running = stage.coordinator()
    running.begin_run()
    running.emit(DATA0, 10)
    named = (channel(A0, RANGE, running.opened(B0, 6), sequence=4),)
    running.checkpoint({B0: named})
    return running, named


# ---- topics and positions


def test_every_edge_has_a_topic_with_a_partition_per_receiver(stage: Stage) -> None:
    """Section 3; their ids stand in the claim."""
    running = stage.coordinator()
    running.claimed(1)
    info = stage.transport.describe_topics([DATA0.topic])[DATA0.topic]
    assert info.partitions == 2
    assert running.committed(EpochClaimed)[0].topic_ids[DATA0.topic] == info.topic_id


def test_starts_name_the_ends_that_the_claim_found_in_each_partition(stage: Stage) -> None:
    """Section 5: where the epoch began."""
    first = stage.coordinator()
    first.begin_run()
    assert begins(first.attempts[B0]) == begins(first.attempts[B1]) == [0]
    assert first.attempts[A0].data_positions == ()
    first.emit(DATA0, 7)
    first.emit(DATA1, 3)
    first.leave()
    second = stage.coordinator()
    second.claimed(2)
    second.emit(DATA0, 4)
    assert begins(second.hello(B0)) == [7]
    assert begins(second.hello(B1)) == [3]


def test_an_epoch_that_begins_in_the_same_process_looks_at_the_ends_again(stage: Stage) -> None:
    """Section 5; section 4: a newer run is a global failover."""
    running = stage.coordinator()
    running.begin_run()
    running.emit(DATA0, 7)
    running.write(RunStarted("run-2", "here"))
    running.claimed(2)
    start = running.hello(B0, "run-2")
    assert (start.epoch, begins(start)) == (2, [7])


def test_what_acks_name_stands_in_the_log_and_in_the_next_start(stage: Stage) -> None:
    """Sections 5 and 7.6: through the records as they are written."""
    running, named = one_with_a_range(stage)
    parts = running.committed(CheckpointPart)
    assert [s.data_positions for p in parts for s in p.subtasks if (p.operator, s.subtask) == ("b", 0)] == [named]
    running.write(Failed(running.sender(B1), "boom"))
    wait_until(lambda: any(r.generation == 1 for r in running.events(A0, Reset)), "a Reset of the sender")
    start = running.hello(B0)
    assert (start.generation, start.data_positions) == (1, named)


def test_a_successor_reads_the_ranges_back_and_opens_behind_its_claim(stage: Stage) -> None:
    """Sections 5 and 9: segments."""
    first, _ = one_with_a_range(stage)
    first.emit(DATA0, 5)
    first.leave()
    second = stage.coordinator()
    second.claimed(2)
    start = second.hello(B0)
    (position,) = start.data_positions
    assert position.segments == (RANGE, Segment(15, OPEN_END, 1, 0, NO_ATTEMPT))
    assert position.sequence == 4


# ---- truncation


def begin_of(stage: Stage, partition: Partition) -> int:
    return stage.transport.offsets([partition])[partition].begin


def test_data_partitions_are_truncated_below_what_is_needed_and_no_further(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 7.9: up to the lowest range, then, when no kept checkpoint names it any more, up to the position."""
    monkeypatch.setattr(truncation, "EVERY_S", 0.0)
    running, _ = one_with_a_range(stage)
    wait_until(lambda: begin_of(stage, DATA0) > 0, "a truncation")
    assert begin_of(stage, DATA0) == RANGE.begin

    def goes_on() -> int:
        """What has been deleted behind one more checkpoint; which of them does it is the worker's affair."""
        running.checkpoint({})
        return begin_of(stage, DATA0)

    assert wait_until(lambda: (begin := goes_on()) > RANGE.begin and begin, "what the range had held to go") == 10
    assert begin_of(stage, DATA1) == 0


# ---- refusals


def test_a_range_that_is_gone_refuses_the_start(stage: Stage) -> None:
    """Section 11: topic, partition, wanted and available offsets, and the way out."""
    one_with_a_range(stage)[0].leave()
    stage.transport.truncate({DATA0: 4})
    stage.refused(r"needs penstock\.job\.a\.b\.data\[0\] from offset 2, and it holds offsets 4 to 10\..*--fresh")


def test_a_data_topic_that_is_gone_refuses_the_start(stage: Stage) -> None:
    """Sections 4 and 11: it is made anew by the start itself, and is another one."""
    one_with_a_range(stage)[0].leave()
    stage.transport.delete_topics([DATA0.topic])
    stage.refused(r"topic penstock\.job\.a\.b\.data is not the one .*deleted and created again.*penstock purge job")


def test_data_beside_an_empty_checkpoint_log_refuses_the_start(stage: Stage) -> None:
    """Section 4: the log was lost."""
    stage.transport.create_topics(settings_with().topic_specs)
    append(stage.transport, DATA1, b"data")
    stage.refused(r"checkpoint log of job job is empty.*a to b/1")


class _WhileLooking(MemoryTransport):
    """Something happens between the look at the topics and the look at the checkpoint log."""

    def __init__(self, broker: MemoryBroker, happens: Callable[[], object]) -> None:
        super().__init__(broker)
        self.happens = happens
        self.looked: list[OffsetRange] = []

    def offsets(self, partitions: Iterable[Partition], timeout_s: float = 30.0) -> Any:
        found = super().offsets(partitions, timeout_s)
        self.looked += [there for at, there in found.items() if at == DATA0]
        return found

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        assert self.looked, "the order that this test is about"
        self.happens()
        return super().read_all(partition, timeout_s)


def test_a_look_at_a_job_that_completes_a_checkpoint_meanwhile_is_no_refusal(stage: Stage) -> None:
    """Section 4: a start that may be is not refused because another coordinator is still at work."""
    running, _ = one_with_a_range(stage)

    def goes_on() -> None:
        end = running.emit(DATA0, 10)
        later = Segment(end - 4, end - 1, 1, 0, 1)
        running.checkpoint({B0: (channel(A0, later, running.opened(B0, end)),)})

    preflight.check_may_start(running.settings, _WhileLooking(stage.broker, goes_on))
