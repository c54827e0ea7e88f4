"""Topics on a real broker, written and changed by tests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from .kafka_jobs import value

PATIENCE_S = 30.0


class Topics:
    """What tests do to the topics of a broker."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        self._settings = {"bootstrap.servers": bootstrap, **(settings or {})}
        self._admin = AdminClient(dict(self._settings))

    def create(self, partitions: int = 1, name: str = "") -> str:
        """A topic; also one that was just deleted."""
        name = name or f"flights-{uuid.uuid4().hex[:12]}"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE_S)
                return name
            except KafkaException:
                assert time.monotonic() < deadline, f"{name} cannot be created"
                time.sleep(0.02)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(PATIENCE_S)

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(PATIENCE_S)

    def expire(self, name: str, partition: int, low: int) -> None:
        for future in self._admin.delete_records([TopicPartition(name, partition, low)]).values():
            future.result(PATIENCE_S)

    def write(self, name: str, partition: int, numbers: Iterable[int]) -> None:
        """Records as :func:`value` makes them, each with the number as its time in seconds."""
        producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 0})
        self._produce(producer, name, partition, numbers)

    def write_in_a_transaction(self, name: str, partition: int, numbers: Iterable[int], *, commit: bool = True) -> None:
        producer = Producer({**self._settings, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        self._produce(producer, name, partition, numbers)
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)

    def open_transaction(self, name: str, partition: int, numbers: Iterable[int]) -> Callable[[], None]:
        """Writes, and returns what commits."""
        producer = Producer({**self._settings, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        self._produce(producer, name, partition, numbers)
        return lambda: producer.commit_transaction(PATIENCE_S)

    def _produce(self, producer: Producer, name: str, partition: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            producer.produce(name, value(number), partition=partition, timestamp=1000 * (number + 1))
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
