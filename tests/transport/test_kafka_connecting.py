"""A writer connects beside whoever makes it, and so that its client has a producer id when the first record comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.schemas.errors import AppendFailed
from penstock.transport import Partition, kafka_writer
from penstock.transport.kafka import KafkaConfig
from penstock.transport.kafka_writer import KafkaWriter

DEADLINE_S = 20.0
ONE = Partition("penstock.job.acks", 0)


class Client:
    """A producer that answers questions about the cluster only when ``answers`` lets it, and takes no record."""

    def __init__(self, answers: Callable[[], object]) -> None:
        self.answers = answers
        self.asked = 0
        self.served = threading.Event()
        self.produced = 0

    def list_topics(self, timeout: float) -> None:
        self.asked += 1
        self.answers()

    def poll(self, timeout: float) -> int:
        self.served.set()
        return 0

    def produce(self, *_: object) -> None:
        self.produced += 1

    def purge(self, **_: object) -> None: ...

    def close(self) -> None: ...


def writer_of(client: Client, monkeypatch: pytest.MonkeyPatch) -> KafkaWriter:
    monkeypatch.setattr(kafka_writer, "make_client", lambda *_: client)
    return KafkaWriter(KafkaConfig("127.0.0.1:9"))


def test_two_answers_are_waited_for_before_reports_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(lambda: None)
    writer = writer_of(client, monkeypatch)
    assert client.served.wait(DEADLINE_S)
    assert client.asked == 2
    writer.close(0.0)


def test_nobody_who_appends_waits_for_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    client = Client(lambda: answered.wait(DEADLINE_S))
    writer = writer_of(client, monkeypatch)
    outcomes: list[Exception | None] = []
    writer.append(ONE, b"first", on_outcome=lambda _, error: outcomes.append(error))
    assert client.produced == 1
    assert not client.served.is_set()
    answered.set()
    writer.close(0.0)
    assert [type(error) for error in outcomes] == [AppendFailed]  # closed before the broker had answered


def test_a_writer_without_a_broker_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(kafka_writer, "_CONNECT_TIMEOUT_S", 10 * DEADLINE_S)
    client = Client(nobody)
    writer = writer_of(client, monkeypatch)
    closed = threading.Thread(target=writer.close, args=(0.0,), daemon=True)
    closed.start()
    closed.join(DEADLINE_S)
    assert not closed.is_alive()


class Taken:
    """A delivery report without an error."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


def wait_until_resting(writer: KafkaWriter) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not writer._resting:
        assert time.monotonic() < deadline, "the writer does not come to rest"
        threading.Event().wait(0.005)


def test_an_idle_writer_wakes_for_an_append_and_to_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_writer, "_REST_S", 10 * DEADLINE_S)
    client = Client(lambda: None)
    writer = writer_of(client, monkeypatch)
    outcomes: list[tuple[int | None, Exception | None]] = []
    for offset in (7, None):  # a client that learns of it by the answer to a later record does not know where
        wait_until_resting(writer)
        client.served.clear()
        writer.append(ONE, b"x", on_outcome=lambda *outcome: outcomes.append(outcome))
        assert client.served.wait(DEADLINE_S)
        writer._on_delivery(writer._pending[0], None, Taken(offset))  # type: ignore[arg-type]
        assert writer.flush(DEADLINE_S)
    assert outcomes == [(7, None), (None, None)]
    wait_until_resting(writer)
    closed = threading.Thread(target=writer.close, daemon=True)
    closed.start()
    closed.join(DEADLINE_S)
    assert not closed.is_alive()
