"""The planner and the reading of a batch over a real broker, without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import BrokerUnreachable, JobRefused
from penstock.spark_integration.streaming import read_ahead
from penstock.spark_integration.streaming.options import SourceOptions
from penstock.spark_integration.streaming.reading import EventsRange
from penstock.spark_integration.streaming.source import StreamReader
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition

from .fake_coordinator import OPERATOR, Events, FakeCoordinator, topics_of

pytestmark = pytest.mark.kafka

ALL = ReadAllAvailable()
BATCHES: list[Events] = [[[b"%d" % i for i in range(2_000)], []], [[b"x"], [b"y", b""]]]


@pytest.fixture
def fake(kafka_broker: EmbeddedBroker, job_name: str) -> Iterator[FakeCoordinator]:
    transport = KafkaTransport(kafka_broker.bootstrap)
    with FakeCoordinator(transport, topics_of(transport, f"over-kafka-{job_name}", 2), 2) as fake:
        yield fake
    transport.close()


@pytest.fixture
def reader(fake: FakeCoordinator, kafka_broker: EmbeddedBroker) -> Iterator[StreamReader]:
    given = {"job": fake.topics.job, "operator": OPERATOR, "kafka.bootstrap.servers": kafka_broker.bootstrap}
    reader = StreamReader(SourceOptions.parse(given | {"maxWait": "0", "coordinatorTimeout": "60"}))
    yield reader
    reader.stop()


def test_batches_are_planned_and_read(fake: FakeCoordinator, reader: StreamReader) -> None:
    fake.offer(*BATCHES)
    start = reader.initialOffset()
    for batch in BATCHES:
        end = json.loads(json.dumps(reader.latestOffset(start, ALL)))
        for _ in range(2):
            rows = [
                [row for part in reader.read(at) for row in part.to_pylist()] for at in reader.partitions(start, end)
            ]
            assert [[row["event"] for row in of_subtask] for of_subtask in rows] == batch
        start = end
    assert reader.latestOffset(start, ALL) == start
    assert fake.completed == [1, 2]


def test_a_small_batch_that_follows_another_is_read_ahead(
    fake: FakeCoordinator, reader: StreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_WAIT_S", 60.0)
    large = [[b"x" * 1_000] * 3_000, [b"y"]]
    fake.offer(*BATCHES, BATCHES[1], large, BATCHES[1])
    start = reader.initialOffset()
    for batch, travels in zip([*BATCHES, BATCHES[1], large, BATCHES[1]], [False, True, True, False, True], strict=True):
        end = json.loads(json.dumps(reader.latestOffset(start, ALL)))
        parts = reader.partitions(start, end)
        assert [isinstance(part, EventsRange) and part.records is not None for part in parts] == [travels, travels]
        rows = [[row for rows in reader.read(part) for row in rows.to_pylist()] for part in parts]
        assert [[row["event"] for row in of_subtask] for of_subtask in rows] == batch
        start = end


def test_a_range_that_has_been_truncated_is_refused(fake: FakeCoordinator, reader: StreamReader) -> None:
    fake.offer(*BATCHES)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    events = Partition(fake.topics.events(OPERATOR), 0)
    fake.transport.truncate({events: fake.partitions[1][0].begin + 1})
    with pytest.raises(JobRefused, match="are not in the log any more"):
        list(reader.read(reader.partitions(start, end)[0]))


def test_no_thread_is_left_when_the_query_ends(fake: FakeCoordinator, reader: StreamReader) -> None:
    fake.offer(*BATCHES)
    before = set(threading.enumerate())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    list(reader.read(reader.partitions(start, end)[0]))
    reader.stop()
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


def test_a_broker_that_is_not_there_is_named(kafka_broker: EmbeddedBroker) -> None:
    given = {"job": "j", "operator": "o", "kafka.bootstrap.servers": "127.0.0.1:1", "coordinatorTimeout": "2"}
    reader = StreamReader(SourceOptions.parse(given | {"kafka.sasl.password": "hush-hush"}))
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1") as caught:
        reader.initialOffset()
    assert "hush-hush" not in str(caught.value)
    reader.stop()
