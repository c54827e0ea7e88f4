"""All transports behind one fixture, and the few things that every contract test does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from penstock.broker import EmbeddedBroker
from penstock.schemas.topics import TopicSpec
from penstock.transport import LogRecord, MemoryBroker, MemoryTransport, Partition, Reader, Transport
from penstock.transport.kafka import KafkaTransport
from penstock.transport.kafka_shared import SharedKafkaTransport

DEADLINE_S = 30.0

MakeTopic = Callable[..., str]
ReadRecords = Callable[[Reader, int], list[LogRecord]]
Outcomes = list[tuple[int | None, Exception | None]]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.smoke]),
        pytest.param("kafka-shared", marks=pytest.mark.kafka),
    ]
)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    made: Transport
    if request.param == "memory":
        made = MemoryTransport(MemoryBroker())
    else:
        broker: EmbeddedBroker = request.getfixturevalue("kafka_broker")
        made = (KafkaTransport if request.param == "kafka" else SharedKafkaTransport)(broker.bootstrap)
    yield made
    made.close()


@pytest.fixture
def make_topic(transport: Transport, request: pytest.FixtureRequest) -> MakeTopic:
    """Creates a topic of a name that no other test uses."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.nodeid.lower()).strip("-")[-150:].strip("-")
    made: list[str] = []

    def make(partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        name = f"penstock.{test}.{len(made)}"
        made.append(name)
        transport.create_topics([TopicSpec(name, partitions, settings or {})])
        return name

    return make


@pytest.fixture
def partition(make_topic: MakeTopic) -> Partition:
    """The only partition of a new topic."""
    return Partition(make_topic(), 0)


@pytest.fixture
def read_records() -> ReadRecords:
    """Polls until there are so many records; fails when they do not come in time."""

    def read(reader: Reader, count: int) -> list[LogRecord]:
        records: list[LogRecord] = []
        end = time.monotonic() + DEADLINE_S
        while len(records) < count:
            assert time.monotonic() < end, f"{len(records)} of {count} records came within {DEADLINE_S} s"
            records += reader.poll(0.5)
        return records

    return read


@pytest.fixture
def append_all(transport: Transport) -> Callable[[Partition, list[bytes]], None]:
    """Appends values and waits until they stand."""

    def append(partition: Partition, values: list[bytes]) -> None:
        writer = transport.writer()
        for value in values:
            writer.append(partition, value)
        assert writer.flush(DEADLINE_S)
        writer.close()

    return append
