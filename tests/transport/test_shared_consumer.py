"""What many readers hear of one consumer, and of questions that they ask together (transport/kafka_shared.py)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.schemas.errors import TopicMissing, TransportError
from penstock.transport import Partition, kafka_reader, kafka_shared
from penstock.transport.kafka_shared import SharedKafkaTransport
from penstock.transport.ports import OffsetRange

DEADLINE_S = 20.0
ONE, OTHER = Partition("penstock.job.one.events", 0), Partition("penstock.job.other.events", 0)


class Unknown:
    """An error that names a topic in its text, as librdkafka's do."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def code(self) -> int:
        return int(KafkaError.UNKNOWN_TOPIC_OR_PART)

    def str(self) -> str:
        return f"Subscribed topic not available: {self.topic}: Broker: Unknown topic or partition"

    def name(self) -> str:  # type: ignore[valid-type]
        return "UNKNOWN_TOPIC_OR_PART"

    def fatal(self) -> bool:
        return False


def message(topic: str, offset: int = -1, error: Unknown | None = None) -> Any:
    """Of the first partition, or of none where it is an error."""
    has: dict[str, object] = {
        "error": error, "topic": topic, "partition": 0 if error is None else -1, "offset": offset,
        "timestamp": (1, 0), "key": None, "value": b"x",
    }  # fmt: skip
    return SimpleNamespace(**{name: lambda value=value: value for name, value in has.items()})


class Client:
    """Serves what it is to say outside of messages before each message; without end where ``endless`` names a topic."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.hears: Callable[[Unknown], None] = settings["error_cb"]
        self.says: deque[Unknown] = deque()
        self.messages: deque[Any] = deque()
        self.endless: str | None = None
        self.offset = 0

    def assign(self, positions: list[Any]) -> None: ...

    def incremental_assign(self, positions: list[Any]) -> None: ...

    def incremental_unassign(self, positions: list[Any]) -> None: ...

    def consume(self, count: int, timeout: float) -> list[Any]:
        while self.says:
            self.hears(self.says.popleft())
        if self.messages:
            found, self.messages = list(self.messages), deque()
            return found
        if self.endless is not None:
            self.offset += 1
            threading.Event().wait(0.003)  # fewer than a reader has room for
            return [message(self.endless, self.offset - 1)]
        threading.Event().wait(min(timeout, 0.01))
        return []

    def close(self) -> None: ...


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    made: list[Client] = []

    def make(_: object, config: object, settings: dict[str, Any]) -> Client:
        made.append(Client(settings))
        return made[-1]

    monkeypatch.setattr(kafka_reader, "make_client", make)
    return made


class Admin:
    """Nobody leads the partitions of ``leaderless``: whoever asks about one of them gets an error."""

    def __init__(self) -> None:
        self.leaderless: set[Partition] = set()
        self.asked: list[set[Partition]] = []

    def require(self, partitions: Collection[Partition], timeout_s: float) -> None:
        self.offsets(partitions, timeout_s)

    def offsets(self, partitions: Collection[Partition], timeout_s: float) -> dict[Partition, OffsetRange]:
        self.asked.append(set(partitions))
        if not self.leaderless.isdisjoint(partitions):
            raise TransportError("nobody leads it")
        return dict.fromkeys(partitions, OffsetRange(0, 5))


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> SharedKafkaTransport:
    made = SharedKafkaTransport("127.0.0.1:9")
    monkeypatch.setattr(made, "_admin", Admin())
    return made


@pytest.mark.parametrize("outside", [True, False])
def test_of_two_topics_that_vanish_at_once_both_readers_hear(
    transport: SharedKafkaTransport, clients: list[Client], outside: bool
) -> None:
    readers = {partition: transport.reader({partition: 0}) for partition in (ONE, OTHER)}
    (client,) = clients
    if outside:
        client.says.extend([Unknown(ONE.topic), Unknown(OTHER.topic)])
    else:
        client.messages.extend(message(p.topic, error=Unknown(p.topic)) for p in (ONE, OTHER))
    for partition, reader in readers.items():
        with pytest.raises(TopicMissing, match=partition.topic):
            reader.poll(DEADLINE_S)
    for reader in readers.values():
        reader.close()


def test_that_a_topic_has_vanished_is_told_though_the_others_never_run_dry(
    transport: SharedKafkaTransport, clients: list[Client]
) -> None:
    busy, other = transport.reader({ONE: 0}), transport.reader({OTHER: 0})
    (client,) = clients
    client.endless = ONE.topic
    client.says.append(Unknown(OTHER.topic))
    told, end = "", time.monotonic() + DEADLINE_S
    while not told and time.monotonic() < end:
        assert busy.poll(DEADLINE_S)
        try:
            other.poll(0.0)
        except TopicMissing as error:
            told = str(error)
    assert OTHER.topic in told
    assert busy.poll(DEADLINE_S)
    for reader in (busy, other):
        reader.close()


def test_a_thread_that_cannot_be_started_is_no_readers_but_its_makers(
    transport: SharedKafkaTransport, clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(kafka_shared.threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            transport.reader({ONE: 0})
    reader = transport.reader({OTHER: 0})
    clients[-1].endless = OTHER.topic
    assert reader.poll(DEADLINE_S)
    reader.close()


def test_a_question_that_fails_for_another_ones_part_is_asked_alone(
    transport: SharedKafkaTransport, clients: list[Client]
) -> None:
    """Both stand in one question: the first keeps the one before it open until the two have come."""
    admin: Any = transport._admin
    admin.leaderless.add(OTHER)
    began, go_on, ask = threading.Event(), threading.Event(), admin.offsets
    third = Partition(ONE.topic, 1)

    def slow(partitions: Collection[Partition], timeout_s: float) -> Any:
        if set(partitions) == {third}:
            began.set()
            assert go_on.wait(DEADLINE_S)
        return ask(partitions, timeout_s)

    admin.offsets = slow
    found: dict[Partition, object] = {}

    def asks(partition: Partition) -> None:
        try:
            found[partition] = transport.offsets([partition], DEADLINE_S)
        except TransportError as error:
            found[partition] = error

    threads = [threading.Thread(target=asks, args=(p,), daemon=True) for p in (third, ONE, OTHER)]
    threads[0].start()
    assert began.wait(DEADLINE_S)
    for thread in threads[1:]:
        thread.start()
    end = time.monotonic() + DEADLINE_S
    while len((transport._offsets._next or SimpleNamespace(subjects=())).subjects) < 2:
        assert time.monotonic() < end
        threading.Event().wait(0.01)
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert {ONE, OTHER} in admin.asked
    assert found[ONE] == {ONE: OffsetRange(0, 5)}
    assert isinstance(found[OTHER], TransportError)


@pytest.mark.parametrize("ask", [
    lambda transport: transport.offsets([ONE]),
    lambda transport: transport.reader({ONE: 0}),
    lambda transport: transport.writer(),
])  # fmt: skip
def test_in_a_forked_process_it_says_so_and_waits_for_nobody(
    transport: SharedKafkaTransport, ask: Callable[[SharedKafkaTransport], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport._process, "_pid", -1)
    with pytest.raises(TransportError, match="fork"):
        ask(transport)
