"""Truncation behind the coordinator's back: the newest wish always comes true, and the status topic stays small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

import penstock
from penstock.coordinator import truncation
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.protocol.effects import Truncate
from penstock.coordinator.protocol.retention import REPLAY_STEPS
from penstock.coordinator.truncation import EVERY_S, STATUS_EVERY_S, STATUS_KEPT, Truncation
from penstock.schemas.errors import BrokerUnreachable, TopicMissing
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import JobSettings, OperatorSettings, Restore
from penstock.testing.local import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

from .jobs import wait_until

SETTINGS = JobSettings("job", (OperatorSettings("op", 1),))
S0 = SubtaskId("op", 0)
EVENTS = Partition(SETTINGS.topics.events("op"), 0)
ACKS = Partition(SETTINGS.topics.acks, 0)
STATUS = Partition(SETTINGS.topics.status, 0)


class Rig:
    """Work is done when the test says so; time passes when it says so."""

    def __init__(self) -> None:
        self.transport = MemoryTransport(MemoryBroker())
        self.transport.create_topics(SETTINGS.topic_specs)
        self.now = 100.0
        self.work: list[Callable[[], None]] = []
        self.truncation = Truncation(SETTINGS, self.transport, self.work.append, lambda: self.now)

    def write(self, partition: Partition, count: int) -> None:
        writer = self.transport.writer()
        for _ in range(count):
            writer.append(partition, b"record")
        writer.close()

    def begin(self, partition: Partition) -> int:
        return self.transport.offsets([partition])[partition].begin

    def do(self) -> None:
        while self.work:
            self.work.pop(0)()

    def pass_s(self, seconds: float) -> None:
        """One look a second, as the coordinator's loop takes."""
        for _ in range(round(seconds)):
            self.now += 1
            self.truncation.run_due()
            self.do()


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for partition in (EVENTS, ACKS):
        rig.write(partition, 100)
    return rig


def test_one_that_comes_after_a_purge_takes_nothing_from_the_job_that_was_made_anew(rig: Rig) -> None:
    """A coordinator that was frozen meanwhile has its last wish yet."""
    described = rig.transport.describe_topics([spec.name for spec in SETTINGS.topic_specs])
    rig.truncation.begin({name: info.topic_id for name, info in described.items() if name != STATUS.topic})
    rig.truncation.want(Truncate({S0: 7}, 3))
    rig.do()
    assert (rig.begin(EVENTS), rig.begin(ACKS)) == (7, 3)
    rig.truncation.want(Truncate({S0: 70}, 30))
    rig.transport.delete_topics([spec.name for spec in SETTINGS.topic_specs])
    rig.transport.create_topics(SETTINGS.topic_specs)
    for partition in (EVENTS, ACKS):
        rig.write(partition, 100)
    with pytest.raises(TopicMissing, match=f"{EVENTS.topic}.* is another topic"):
        rig.pass_s(EVERY_S)
    assert (rig.begin(EVENTS), rig.begin(ACKS)) == (0, 0)


def test_a_first_wish_comes_true_at_once(rig: Rig) -> None:
    rig.truncation.want(Truncate({S0: 7}, 3))
    rig.do()
    assert (rig.begin(EVENTS), rig.begin(ACKS)) == (7, 3)


def test_the_last_wish_of_a_busy_time_comes_true_though_no_other_follows(rig: Rig) -> None:
    rig.truncation.want(Truncate({S0: 1}, 1))
    rig.do()
    for offset in (2, 3, 4):
        rig.truncation.want(Truncate({S0: offset}, offset))
        rig.do()
    assert rig.begin(EVENTS) == 1
    rig.pass_s(EVERY_S)
    assert (rig.begin(EVENTS), rig.begin(ACKS)) == (4, 4)


def test_a_wish_made_while_another_is_carried_out_follows_it(rig: Rig) -> None:
    rig.truncation.want(Truncate({S0: 1}, 1))
    rig.truncation.want(Truncate({S0: 9}, 9))
    rig.do()
    rig.pass_s(EVERY_S)
    assert rig.begin(EVENTS) == 9


def test_one_that_failed_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise BrokerUnreachable("away")

    with monkeypatch.context() as patched:
        patched.setattr(rig.transport, "truncate", away)
        rig.truncation.want(Truncate({S0: 5}, 5))
        with pytest.raises(BrokerUnreachable):
            rig.do()
    rig.pass_s(EVERY_S)
    assert rig.begin(EVENTS) == 5


def test_one_that_failed_gives_way_to_a_newer_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        rig.truncation.want(Truncate({S0: 8}, 8))
        raise BrokerUnreachable("away")

    with monkeypatch.context() as patched:
        patched.setattr(rig.transport, "truncate", away)
        rig.truncation.want(Truncate({S0: 5}, 5))
        with pytest.raises(BrokerUnreachable):
            rig.do()
    rig.pass_s(EVERY_S)
    assert rig.begin(EVENTS) == 8


def test_the_status_topic_of_an_idle_job_does_not_grow(rig: Rig) -> None:
    largest = 0
    for _ in range(100):
        rig.write(STATUS, 60)
        rig.pass_s(STATUS_EVERY_S)
        there = rig.transport.offsets([STATUS])[STATUS]
        largest = max(largest, there.end - there.begin)
    assert STATUS_KEPT <= there.end - there.begin <= 2 * STATUS_KEPT + 60
    assert largest <= 2 * STATUS_KEPT + 60


def test_the_newest_of_the_status_topic_stay(rig: Rig) -> None:
    rig.write(STATUS, 10 * truncation.STATUS_KEPT)
    rig.pass_s(2 * STATUS_EVERY_S)
    there = rig.transport.offsets([STATUS])[STATUS]
    assert there.end - there.begin == STATUS_KEPT


# ---- a whole job


class Busy(penstock.OperatorCoordinator):
    """Sends as long as somebody runs; notes what it goes back to."""

    went_back_to: ClassVar[list[int]] = []

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        self.context.call_every(0.005, lambda: gateway.send_event(b"event"))

    def reset_to_checkpoint(self, checkpoint_id: int, state: object) -> None:
        self.went_back_to.append(checkpoint_id)


class Idle(penstock.Subtask):
    def handle_operator_event(self, event: bytes) -> None:
        pass


def busy_job(**settings: Any) -> penstock.Job:
    job = penstock.Job("job", checkpoint=penstock.CheckpointSettings(interval=0.05), **settings)
    job.operator("op", coordinator=Busy, subtask=Idle, parallelism=1)
    return job


def test_a_job_keeps_its_window_and_can_go_back_to_where_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "EVERY_S", 0.05)
    window_s = 0.5
    transport = MemoryTransport(MemoryBroker())
    with LocalJob(busy_job(replay_retention=window_s), transport) as running:
        wait_until(lambda: transport.offsets([EVENTS])[EVENTS].begin > 100, "the log is truncated")
        running.client.stop()
        kept = running.client.history()
    begins = min(kept.checkpoints)
    assert kept.last is not None
    times = {n: checkpoint.header.completed_at_ms for n, checkpoint in kept.checkpoints.items()}
    assert times[kept.last_id] - times[begins] >= 1000 * window_s
    assert len(kept.checkpoints) <= 2 + REPLAY_STEPS + 2
    there = transport.offsets([EVENTS, ACKS])
    assert there[EVENTS].begin <= kept.checkpoints[begins].subtasks[S0].event_position
    assert there[ACKS].begin <= kept.checkpoints[begins].inbox_position
    options = CoordinatorOptions(restore=Restore.CHECKPOINT, restore_checkpoint=begins)
    Busy.went_back_to.clear()
    with LocalJob(busy_job(replay_retention=window_s), transport, options) as running:
        running.wait_for(lambda status: status.last_completed > kept.last_id, 20)
    assert Busy.went_back_to == [begins]


def test_a_job_whose_status_topic_was_deleted_goes_on() -> None:
    """Nobody who starts needs what stood there, so nothing of the job is lost."""
    transport = MemoryTransport(MemoryBroker())
    with LocalJob(busy_job(), transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 2, 20)
        running.client.stop()
        last = running.client.history().last_id
    transport.delete_topics([STATUS.topic])
    with LocalJob(busy_job(), transport) as running:
        running.wait_for(lambda status: status.last_completed > last, 20)
        assert running.client.status() is not None
