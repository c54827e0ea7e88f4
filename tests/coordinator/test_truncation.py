"""Truncation behind the coordinator's back: the newest wish always comes true, and the status topic stays small."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.coordinator import truncation
from penstock.coordinator.protocol.effects import Truncate
from penstock.coordinator.truncation import EVERY_S, STATUS_EVERY_S, STATUS_KEPT, Truncation
from penstock.schemas.errors import BrokerUnreachable
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

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
