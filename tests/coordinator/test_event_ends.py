"""The ends of the events partitions: from the broker's answers to appends, and asked for where those do not say."""

from __future__ import annotations

from typing import Any

from penstock.coordinator.event_ends import EventEnds
from penstock.schemas.ids import SubtaskId
from penstock.schemas.topics import TopicSpec
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

TOPIC = "penstock.j.op.events"
PARTITIONS = {SubtaskId("op", index): Partition(TOPIC, index) for index in (0, 1)}


class Asked(MemoryTransport):
    """Notes which ends are asked for."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.create_topics([TopicSpec(TOPIC, 2)])
        self.asked: list[list[Partition]] = []

    def offsets(self, partitions: Any, timeout_s: float = 30.0) -> Any:
        self.asked.append(list(partitions))
        return super().offsets(partitions, timeout_s)


def test_ends_come_from_the_answers_to_appends_without_asking() -> None:
    transport = Asked()
    ends = EventEnds(PARTITIONS, transport)
    writer = transport.writer()
    for index, count in ((0, 3), (1, 1)):
        at = Partition(TOPIC, index)
        for _ in range(count):
            writer.append(at, b"x", None, lambda offset, _, at=at: ends.appended(at, offset))  # type: ignore[misc]
    transport.writer().append(Partition(TOPIC, 0), b"of a coordinator that was replaced")
    assert ends.seen(5) == {SubtaskId("op", 0): 3, SubtaskId("op", 1): 1}
    assert transport.asked == []


def test_an_answer_without_an_offset_and_a_partition_without_an_append_are_asked_for() -> None:
    transport = Asked()
    ends = EventEnds(PARTITIONS, transport)
    for _ in range(2):
        transport.writer().append(Partition(TOPIC, 0), b"x")
    ends.appended(Partition(TOPIC, 0), 0)
    ends.appended(Partition(TOPIC, 0), None)
    assert ends.seen(5) == {SubtaskId("op", 0): 2, SubtaskId("op", 1): 0}
    assert transport.asked == [[Partition(TOPIC, 0), Partition(TOPIC, 1)]]
    ends.appended(Partition(TOPIC, 1), 0)
    assert ends.seen(5)[SubtaskId("op", 1)] == 1
    assert transport.asked[1:] == [[Partition(TOPIC, 0)]]
