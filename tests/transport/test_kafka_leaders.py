"""Partitions that nobody leads are named, with how long that is known."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from confluent_kafka import KafkaError, KafkaException

from penstock.transport.kafka_leaders import Leaders


def metadata(**topics: list[int]) -> SimpleNamespace:
    """By topic the leader of each partition, -1 for none."""
    return SimpleNamespace(
        topics={
            name: SimpleNamespace(partitions={i: SimpleNamespace(leader=leader) for i, leader in enumerate(leaders)})
            for name, leaders in topics.items()
        }
    )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_partition_without_a_leader_is_named_with_how_long_that_is_known() -> None:
    clock = Clock()
    leaders = Leaders(clock)
    leaders.see(metadata(acks=[-1], events=[1, -1]))
    clock.now += 40
    leaders.see(metadata(acks=[-1], events=[1, 2]))
    assert leaders.told(["events"]) == ""
    assert leaders.told(["acks", "events"]).startswith(
        "partition 0 of topic acks has no leader, since 40 s or longer. Start the brokers that have its copies"
    )


def test_many_are_counted() -> None:
    leaders = Leaders(Clock())
    leaders.see(metadata(events=[-1] * 10))
    assert leaders.told(["events"]).count("has no leader") == 3
    assert "and 7 more" in leaders.told(["events"])


def test_a_client_without_an_answer_leaves_what_is_known() -> None:
    def list_topics(topic: str, timeout: float) -> Mapping[str, object]:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    leaders = Leaders(Clock())
    leaders.see(metadata(acks=[-1]))
    leaders.look(SimpleNamespace(list_topics=list_topics), ["acks"])
    assert "partition 0 of topic acks" in leaders.told(["acks"])
