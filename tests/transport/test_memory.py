"""What only the in-memory transport promises: no waiting, no threads, clocks from outside."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from penstock.schemas.topics import TopicSpec
from penstock.transport import MemoryBroker, MemoryTransport, Partition

P = Partition("penstock.job.x", 0)
Q = Partition("penstock.job.x", 1)


def transport_with(**settings: str) -> tuple[list[int], list[int], MemoryTransport]:
    broker_clock, producer_clock = [1_000], [2_000]
    broker = MemoryBroker(now_ms=lambda: broker_clock[0], new_id=iter(["id-1", "id-2"]).__next__)
    transport = MemoryTransport(broker, now_ms=lambda: producer_clock[0])
    transport.create_topics([TopicSpec(P.topic, 2, settings)])
    return broker_clock, producer_clock, transport


def test_outcomes_are_called_before_append_returns_and_no_thread_is_started() -> None:
    threads = threading.active_count()
    _, _, transport = transport_with()
    outcomes: list[int | None] = []
    writer = transport.writer()
    for _ in range(3):
        writer.append(P, b"x", None, lambda offset, error: outcomes.append(offset))
    assert outcomes == [0, 1, 2]
    assert writer.flush(0.0)
    reader = transport.reader({P: 0})
    assert len(reader.poll(0.0)) == 3
    assert reader.poll(0.0) == []
    assert threading.active_count() == threads


def test_an_outcome_that_appends_gets_its_own_outcome_behind_the_first() -> None:
    _, _, transport = transport_with()
    writer = transport.writer()
    seen: list[str] = []

    def first(offset: int | None, error: Exception | None) -> None:
        writer.append(P, b"y", None, lambda offset, error: seen.append("second"))
        seen.append("first")

    writer.append(P, b"x", None, first)
    assert seen == ["first", "second"]


def test_an_outcome_that_raises_reaches_the_appender_and_the_writer_goes_on() -> None:
    _, _, transport = transport_with()
    writer = transport.writer()

    def crash(offset: int | None, error: Exception | None) -> None:
        raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        writer.append(P, b"x", None, crash)
    writer.append(P, b"y")
    assert writer.flush(0.0)


def test_timestamps_are_the_producers_or_the_brokers() -> None:
    for settings, expected in (({}, 2_000), ({"message.timestamp.type": "LogAppendTime"}, 1_000)):
        _, _, transport = transport_with(**settings)
        transport.writer().append(P, b"x")
        assert [record.timestamp_ms for record in transport.read_all(P)] == [expected]


def test_topic_ids_come_from_outside() -> None:
    _, _, transport = transport_with()
    assert transport.describe_topics([P.topic])[P.topic].topic_id == "id-1"
    transport.delete_topics([P.topic])
    transport.create_topics([TopicSpec(P.topic, 1)])
    assert transport.describe_topics([P.topic])[P.topic].topic_id == "id-2"


def test_a_busy_partition_does_not_starve_another() -> None:
    _, _, transport = transport_with()
    writer = transport.writer()
    for _ in range(10):
        writer.append(P, b"busy")
        writer.append(Q, b"quiet")
    reader = transport.reader({P: 0, Q: 0})
    assert {record.partition for record in reader.poll(0.0, 5) + reader.poll(0.0, 5)} == {P, Q}


def test_importing_the_transports_does_not_load_kafkas_client() -> None:
    program = "import sys, penstock.transport as t; assert 'confluent_kafka' not in sys.modules; t.KafkaTransport"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
