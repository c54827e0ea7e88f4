"""A job that was purged and made anew under its name, while somebody of the one before still speaks."""

from __future__ import annotations

import pytest

from penstock.coordinator.epoch_filter import LOOK_INTERVAL_S, EpochFilter
from penstock.coordinator.protocol.inputs import AckRead
from penstock.schemas.acks import AcksRecord, CoordinatorHeartbeat, Finished
from penstock.schemas.checkpoints import EpochClaimed
from penstock.schemas.codec import encode
from penstock.schemas.events import EventFrame, Reset, TriggerCheckpoint
from penstock.schemas.frames import pack
from penstock.schemas.state import Sender
from penstock.schemas.topics import TopicSpec
from penstock.transport import MemoryBroker, MemoryTransport
from penstock.transport.ports import LogRecord, Partition

from .jobs import Plan, epoch_of, make_job, run, wait_checkpoint, wait_status


@pytest.mark.damages_logs
@pytest.mark.parametrize(
    "said",
    [Finished(Sender("op", 0, 77, 9, 0)), CoordinatorHeartbeat(9, "who was frozen")],
    ids=["a-task", "a-coordinator"],
)
def test_whoever_was_frozen_while_the_job_was_purged_does_not_end_the_one_that_has_its_name_now(
    said: AcksRecord,
) -> None:
    """Section 4: the checkpoint log does not know the epoch, so nobody has followed."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        writer = running.transport.writer()
        for _ in range(2):
            writer.append(Partition(running.settings.topics.acks, 0), encode(said))
        wait_status(running, lambda s: s.dropped.get("unreadable") == 2)
        wait_checkpoint(running, plan)
        assert epoch_of(running) == 1


@pytest.mark.damages_logs
def test_events_of_a_coordinator_that_was_frozen_while_the_job_was_purged_change_nothing() -> None:
    """P-4.1.7: its writer goes on in the recreated partition, where no broker fences it."""
    broker, before, plan = MemoryTransport(MemoryBroker()), Plan(), Plan()
    with run(make_job(before), broker) as running:
        wait_checkpoint(running, before)
        events, epoch, root = Partition(running.settings.topics.events("op"), 0), epoch_of(running), running.settings
        running.client.stop(timeout_s=10.0)
        running.wait(10.0)
    frozen = broker.writer()
    broker.delete_topics(broker.list_topics(root.topics.root))
    with run(make_job(plan, interval=None), broker) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"own")
        plan.wait_handled(b"own")
        frame = EventFrame(epoch, 0, 1, *pack([b"of another incarnation"]))
        for record in (frame, TriggerCheckpoint(epoch, 50, 2, False, False), Reset(epoch, 99)):
            frozen.append(events, encode(record), b"")
        plan.gateways[0].send_event(b"next")
        plan.wait_handled(b"next")
        assert plan.handled == [(0, b"own"), (0, b"next")]
        assert not plan.count("subtask_reset") and not plan.count("snapshot")
        assert epoch_of(running) > epoch


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Counted(MemoryTransport):
    looks = 0

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        self.looks += 1
        return list(super().read_all(partition, timeout_s))


def heartbeat(offset: int, epoch: int) -> AckRead:
    return AckRead(offset, 0, CoordinatorHeartbeat(epoch, "who was frozen"))


def test_the_log_is_looked_at_once_an_interval_however_many_epochs_are_named() -> None:
    """Section 4: whoever writes rising epochs keeps no coordinator from its work."""
    transport, clock = Counted(MemoryBroker()), Clock()
    transport.create_topics([TopicSpec("log", 1)])
    lives = EpochFilter("job", transport, Partition("log", 0), clock)
    assert all(lives.without(heartbeat(at, 10 + at), 1).record is None for at in range(400))
    assert transport.looks == 1
    clock.now += LOOK_INTERVAL_S
    assert lives.without(heartbeat(400, 10), 1).record is None  # known by now
    assert transport.looks == 1
    assert lives.without(heartbeat(401, 1_000), 1).record is None
    assert transport.looks == 2


def test_a_successor_is_found_an_interval_after_a_stranger() -> None:
    """Section 4: its next heartbeat tells."""
    transport, clock = Counted(MemoryBroker()), Clock()
    transport.create_topics([TopicSpec("log", 1)])
    lives = EpochFilter("job", transport, Partition("log", 0), clock)
    assert lives.without(heartbeat(0, 10), 1).record is None
    claim = EpochClaimed(11, -1, 1, 100, {}, "its successor", "started")
    transport.writer().append(Partition("log", 0), encode(claim), b"epoch")
    assert lives.without(heartbeat(1, 11), 1).record is None
    clock.now += LOOK_INTERVAL_S
    assert lives.without(heartbeat(2, 11), 1).record is not None
