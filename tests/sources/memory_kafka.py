"""Kafka as a source sees it, in memory: what the brokers and librdkafka do, faults included, one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.errors import BrokerUnreachable
from penstock.sources import Kafka
from penstock.sources.kafka import KafkaOperator
from penstock.sources.kafka_cluster import Fault, Topic, TopicPartition
from penstock.sources.kafka_coordinator import KafkaCoordinator
from penstock.sources.kafka_subtask import KafkaSubtask

PATIENCE_S = 60.0
CONTROL = object()
"""Stands in a log for a control record, or for the record of an aborted transaction: offsets that no reader gets."""


@dataclass
class Log:
    """A partition."""

    low: int = 0
    records: list[Any] = field(default_factory=list)
    """From offset ``low`` on."""

    @property
    def high(self) -> int:
        return self.low + len(self.records)


class Message:
    """As confluent-kafka's."""

    def __init__(self, partition: TopicPartition, offset: int, value: Any = None, kind: str = "") -> None:
        self._partition, self._offset, self._value, self.kind = partition, offset, value, kind

    def error(self) -> str | None:
        return self.kind or None

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return None if self._value is None else bytes(self._value)

    def key(self) -> bytes | None:
        return b"key"

    def timestamp(self) -> tuple[int, int]:
        return (1, 1000 * self._offset)

    def headers(self) -> list[tuple[str, bytes]] | None:
        return None


class Latch:
    """Halts whoever comes by, once."""

    def __init__(self) -> None:
        self.reached, self.released = threading.Event(), threading.Event()

    def wait(self) -> None:
        assert self.reached.wait(PATIENCE_S), "nobody has come by"

    def pass_by(self) -> None:
        self.reached.set()
        self.released.wait(PATIENCE_S)


class MemoryKafka:
    """The brokers; thread-safe."""

    def __init__(self, **topics: int) -> None:
        self.lock = threading.RLock()
        self.topics: dict[str, tuple[str, list[Log]]] = {}
        self.ids = 0
        self.away = False
        self.limit: int | None = None
        """Of offsets: no reader gets a record that is not below it."""
        self._latches: dict[str, Latch] = {}
        for name, partitions in topics.items():
            self.create(name, partitions)

    # ---- what happens

    def create(self, name: str, partitions: int = 1) -> None:
        with self.lock:
            self.ids += 1
            self.topics[name] = f"id-{self.ids}", [Log() for _ in range(partitions)]

    def delete(self, name: str) -> None:
        with self.lock:
            del self.topics[name]

    def grow(self, name: str, partitions: int) -> None:
        with self.lock:
            logs = self.topics[name][1]
            logs += [Log() for _ in range(partitions - len(logs))]

    def append(self, name: str, partition: int, *values: Any) -> None:
        with self.lock:
            self.topics[name][1][partition].records += values

    def expire(self, name: str, partition: int, low: int) -> None:
        """Retention deletes what is below an offset."""
        with self.lock:
            log = self.topics[name][1][partition]
            del log.records[: low - log.low]
            log.low = low

    def cut(self, name: str, partition: int, high: int) -> None:
        """An unclean election loses what is from an offset on."""
        with self.lock:
            log = self.topics[name][1][partition]
            del log.records[high - log.low :]

    def halt_at(self, point: str) -> Latch:
        """At "look" (the coordinator's), "offsets", "begin", "fetch", "verify"."""
        self._latches[point] = latch = Latch()
        return latch

    def at(self, point: str) -> None:
        if (latch := self._latches.pop(point, None)) is not None:
            latch.pass_by()

    # ---- what a source is made with

    def operator(self, source: Kafka, **read: Any) -> KafkaOperator:
        """As ``source.read()``, but of these brokers."""
        made = source.read(**read)
        coordinator, subtask = made["coordinator"], made["subtask"]
        assert isinstance(coordinator, partial) and isinstance(subtask, partial)
        made["coordinator"] = partial(KafkaCoordinator, coordinator.args[0], partial(self.connect, "look"))
        made["subtask"] = partial(KafkaSubtask, subtask.args[0], partial(self.connect, "verify"), *subtask.args[2:])
        return made

    def connect(self, point: str, job: str, operator: str) -> Any:
        return MemoryCluster(self, point)


class MemoryCluster:
    """As KafkaCluster."""

    brokers = "memory"

    def __init__(self, kafka: MemoryKafka, point: str) -> None:
        self._kafka, self._point = kafka, point
        self.complained = False

    def _answer(self, point: str) -> None:
        self._kafka.at(point)
        if self._kafka.away:
            raise BrokerUnreachable("nobody answered")

    def topics(self, timeout_s: float) -> list[str]:
        self._answer("topics")
        return sorted(self._kafka.topics)

    def describe(self, names: Iterable[str], timeout_s: float) -> dict[str, Topic]:
        self._answer(self._point)
        with self._kafka.lock:
            there = self._kafka.topics
            return {name: Topic(there[name][0], len(there[name][1])) for name in names if name in there}

    def offsets(
        self, partitions: Iterable[TopicPartition], at: str | int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        self._answer("offsets")
        with self._kafka.lock:
            logs = {one: self._kafka.topics[one.topic][1][one.partition] for one in partitions}
            if isinstance(at, int):  # the record at offset n has the time n seconds
                return {one: min(max(log.low, -(-at // 1000)), log.high) for one, log in logs.items()}
            return {one: log.low if at == "earliest" else log.high for one, log in logs.items()}

    def consumer(self) -> Any:
        return MemoryConsumer(self._kafka, self)

    def close(self) -> None:
        pass


class MemoryConsumer:
    """As Consumer: like librdkafka it reads on, by offset, in whatever topic has the name now."""

    def __init__(self, kafka: MemoryKafka, cluster: MemoryCluster) -> None:
        self._kafka, self._cluster = kafka, cluster
        self._next: dict[TopicPartition, int] = {}
        self._said: dict[TopicPartition, tuple[str, int]] = {}

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        self._kafka.at("begin")
        assert not positions.keys() & self._next.keys()
        self._next |= positions

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        for one in partitions:
            self._next.pop(one)
            self._said.pop(one, None)

    def fetch(self, messages_max: int) -> list[Message]:
        self._kafka.at("fetch")
        found: list[Message] = []
        with self._kafka.lock:
            if self._kafka.away:
                return []
            for one, offset in self._next.items():
                found += self._fetch(one, offset, messages_max)
        return found

    def _fetch(self, one: TopicPartition, offset: int, messages_max: int) -> list[Message]:
        topic = self._kafka.topics.get(one.topic)
        if topic is None or one.partition >= len(topic[1]):
            if self._tells_first(one, "unknown", 0):
                self._cluster.complained = True
            return []
        log = topic[1][one.partition]
        if not log.low <= offset <= log.high:
            return [Message(one, offset, kind="lost")] if self._tells_first(one, "lost", offset) else []
        end = min(offset + messages_max, log.high, log.high if self._kafka.limit is None else self._kafka.limit)
        values = log.records[offset - log.low : max(end, offset) - log.low]
        found = [Message(one, at, value) for at, value in enumerate(values, offset) if value is not CONTROL]
        self._next[one] = max(end, offset)
        if self._next[one] == log.high and self._tells_first(one, "end", log.high):
            found.append(Message(one, log.high, kind="end"))
        return found

    def _tells_first(self, one: TopicPartition, kind: str, offset: int) -> bool:
        former = self._said.get(one)
        self._said[one] = kind, offset
        return former != (kind, offset)

    def fault(self, message: Message) -> Fault:
        one = TopicPartition(message.topic(), message.partition())
        return Fault(message.kind, one, message.offset(), text="out of range")

    def high_watermark(self, partition: TopicPartition) -> int | None:
        topic = self._kafka.topics.get(partition.topic)
        return None if topic is None else topic[1][partition.partition].high

    def close(self) -> None:
        self._next = {}
