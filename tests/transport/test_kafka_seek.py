"""A seek waits for no fetch: where a reader has one partition, two clients take turns (transport/kafka_reader.py)."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import TopicPartition

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import PositionUnavailable
from penstock.schemas.topics import TopicSpec
from penstock.transport import Partition, kafka_reader
from penstock.transport.kafka import KafkaConfig, KafkaTransport
from penstock.transport.kafka_reader import KafkaReader

ONE = Partition("penstock.job.operator.events", 0)
FETCH_WAIT_S = kafka_reader._WAIT_ALONE_MS / 1_000
_names = itertools.count()


@pytest.mark.kafka
def test_a_seek_waits_for_no_fetch_that_is_under_way(kafka_broker: EmbeddedBroker) -> None:
    partition = Partition(f"penstock.seek-{next(_names)}.events", 0)
    # What is under way lasts for longer than a test may.
    transport = KafkaTransport(kafka_broker.bootstrap, {"fetch.wait.max.ms": "290000"})
    transport.create_topics([TopicSpec(partition.topic, 1)])
    writer = transport.writer()
    for n in range(10):
        writer.append(partition, b"%d" % n)
    assert writer.flush(30)
    writer.close()
    reader = transport.reader({partition: 9})
    for offset in (9, 3, 7, 0):
        reader.seek(partition, offset)
        read: list[int] = []
        while not read or read[-1] < 9:
            records = reader.poll(30)
            assert records, f"nothing came from {offset}"
            read += [record.offset for record in records]
        assert read == list(range(offset, 10))
        assert reader.poll(0.1) == []  # by now the next fetch waits
    reader.pause(partition)
    reader.seek(partition, 4)
    assert [record.offset for record in reader.poll(30)][:1] == [4]
    reader.close()
    transport.close()


class Client:
    """A consumer of which nothing but its assignment is known."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.assigned = 0
        self.closed = False

    def assign(self, positions: list[TopicPartition]) -> None:
        self.at = positions[0].offset
        self.assigned += 1

    def unassign(self) -> None:
        self.at = None

    def incremental_assign(self, positions: list[TopicPartition]) -> None:
        self.assign(positions)

    def incremental_unassign(self, positions: list[TopicPartition]) -> None:
        self.at = None

    def get_watermark_offsets(self, position: TopicPartition, timeout: float) -> tuple[int, int]:
        return 6, 10

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """All that were made, in order."""
    made: list[Client] = []

    def make(*_: object) -> Client:
        made.append(Client())
        return made[-1]

    monkeypatch.setattr(kafka_reader, "make_client", make)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(kafka_reader, "time", made)
    return made


def reader_of_one() -> KafkaReader:
    return KafkaReader(KafkaConfig("127.0.0.1:9"), {ONE: 5})


def test_two_clients_take_turns(clients: list[Client], clock: Clock) -> None:
    reader = reader_of_one()
    reader.seek(ONE, 8)
    assert [client.at for client in clients] == [None, 8]
    clock.now += FETCH_WAIT_S
    reader.seek(ONE, 3)
    assert [client.at for client in clients] == [3, None]
    reader.close()
    assert all(client.closed for client in clients)


def test_a_client_whose_fetch_may_still_be_waiting_is_not_taken(clients: list[Client], clock: Clock) -> None:
    reader = reader_of_one()
    reader.seek(ONE, 8)
    clock.now += FETCH_WAIT_S / 2
    reader.seek(ONE, 3)
    assert [client.at for client in clients] == [None, None, 3]
    assert [client.closed for client in clients] == [True, False, False]


def test_a_seek_to_where_it_reads_disturbs_nothing(clients: list[Client], clock: Clock) -> None:
    reader = reader_of_one()
    reader.seek(ONE, 5)
    assert [(client.at, client.assigned) for client in clients] == [(5, 1)]


def test_a_seek_to_where_it_has_failed_begins_anew(clients: list[Client], clock: Clock) -> None:
    reader = reader_of_one()
    reader._fail(ONE, PositionUnavailable("gone", ONE))
    with pytest.raises(PositionUnavailable):
        reader.poll(0.0)
    reader.seek(ONE, 5)
    assert [client.at for client in clients] == [None, 5]


@pytest.mark.parametrize("paused_s", [0.0, FETCH_WAIT_S / 2, FETCH_WAIT_S])
def test_behind_a_pause_another_client_begins_while_a_fetch_may_be_waiting(
    clients: list[Client], clock: Clock, paused_s: float
) -> None:
    reader = reader_of_one()
    reader.pause(ONE)
    clock.now += paused_s
    reader.seek(ONE, 3)
    assert [client.at for client in clients] == ([3] if paused_s >= FETCH_WAIT_S else [None, 3])
