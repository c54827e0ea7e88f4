"""Fixtures of the broker's tests. None of them leaves a process behind, and each test is checked for it."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

Eventually = Callable[..., None]


@pytest.fixture
def eventually() -> Eventually:
    """Waits until a condition holds; fails with its name at the deadline (seconds)."""

    def wait(condition: Callable[[], object], what: str, timeout_s: float = 15.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture(autouse=True)
def _no_process_left(tmp_path: Path, eventually: Eventually) -> Iterator[None]:
    """Every process of these tests has the test's own folder on its command line."""
    yield
    if Path("/proc/self/cmdline").exists():
        eventually(lambda: not _processes_of(tmp_path), f"all processes of {tmp_path} have ended")


def _processes_of(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(f"{folder}/") in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


class Client:
    """Just enough of Kafka to see that records get through and stay."""

    def __init__(self, bootstrap: str, **settings: str) -> None:
        self._settings: dict[str, Any] = {"bootstrap.servers": bootstrap, **settings}

    def create_topic(self, name: str) -> None:
        admin = AdminClient(self._settings)
        for created in admin.create_topics([NewTopic(name, 1, 1)]).values():
            created.result(30)

    def produce(self, topic: str, *values: bytes) -> None:
        """In one transaction, so that the transaction log is exercised too."""
        producer = Producer({**self._settings, "transactional.id": "test"})
        producer.list_topics(timeout=30)
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(30)

    def consume(self, topic: str, count: int) -> list[bytes]:
        """The first records of the topic."""
        consumer = Consumer({**self._settings, "group.id": "test", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 30
        values: list[bytes] = []
        try:
            while len(values) < count:
                assert time.monotonic() < deadline, f"{len(values)} of {count} records came"
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    values.append(message.value() or b"")
        finally:
            consumer.close()
        return values


@pytest.fixture
def client() -> type[Client]:
    return Client
