"""Logs over Kafka (confluent-kafka); see :mod:`penstock.transport.ports` for what every call does.

::

    transport = KafkaTransport("127.0.0.1:9092")
    with_the_same_settings = KafkaTransport.from_config(transport.config)    # in another process
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from ..schemas.topics import TopicSpec
from .kafka_admin import KafkaAdmin
from .kafka_client import KafkaConfig
from .kafka_disk import bytes_on_disk, is_plain
from .kafka_election import KafkaElection
from .kafka_log import KafkaFencedLog
from .kafka_reader import KafkaReader, read_committed
from .kafka_writer import KafkaWriter
from .ports import RECORD_OVERHEAD_BYTES, Inspection, LogRecord, OffsetRange, Partition, Reader, TopicInfo, Writer

__all__ = ["KafkaConfig", "KafkaTransport"]

_EXISTS_TIMEOUT_S = 30.0
_LOOK_TIMEOUT_S = 1.0

_EPOCHS_SINCE_S = 1_735_689_600
"""The beginning of 2025, seconds since 1970."""


class KafkaTransport:
    """Logs on a Kafka broker.

    ``client_settings`` are librdkafka's (security, mostly); their values never show in errors, logs or ``repr``.
    The timeouts are those of :class:`KafkaConfig`, in seconds.

    Raises :class:`ConfigurationError` for a client setting that the protocol depends on.
    """

    def __init__(
        self,
        bootstrap: str,
        client_settings: Mapping[str, str] | None = None,
        *,
        append_timeout_s: float = KafkaConfig.append_timeout_s,
        queue_full_timeout_s: float = KafkaConfig.queue_full_timeout_s,
        commit_timeout_s: float = KafkaConfig.commit_timeout_s,
    ) -> None:
        self._config = KafkaConfig(
            bootstrap, client_settings or {}, append_timeout_s, queue_full_timeout_s, commit_timeout_s
        )
        self._admin = KafkaAdmin(self._config)
        self.max_record_bytes = self._config.message_bytes_max - RECORD_OVERHEAD_BYTES

    @classmethod
    def from_config(cls, config: KafkaConfig) -> KafkaTransport:
        return cls(
            config.bootstrap,
            config.client_settings,
            append_timeout_s=config.append_timeout_s,
            queue_full_timeout_s=config.queue_full_timeout_s,
            commit_timeout_s=config.commit_timeout_s,
        )

    @property
    def config(self) -> KafkaConfig:
        """What another process needs to make the same transport."""
        return self._config

    def __repr__(self) -> str:
        return f"KafkaTransport({self._config!r})"

    def check(self, timeout_s: float) -> str:
        return self._admin.check(timeout_s)

    def create_topics(self, specs: Iterable[TopicSpec], timeout_s: float = 30.0) -> None:
        self._admin.create_topics(specs, timeout_s)

    def first_epoch(self) -> int:
        """By the clock: seconds since 2025. A broker keeps nothing of a topic that was deleted."""
        return max(1, int(time.time()) - _EPOCHS_SINCE_S)

    def describe_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> Mapping[str, TopicInfo]:
        return self._admin.describe_topics(names, timeout_s)

    def inspect(self, names: Iterable[str], timeout_s: float = 30.0) -> Inspection:
        return self._admin.inspect(names, timeout_s)

    def list_topics(self, prefix: str, timeout_s: float = 30.0) -> list[str]:
        return self._admin.list_topics(prefix, timeout_s)

    def delete_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> None:
        self._admin.delete_topics(names, timeout_s)

    def offsets(self, partitions: Iterable[Partition], timeout_s: float = 30.0) -> Mapping[Partition, OffsetRange]:
        return self._admin.offsets(partitions, timeout_s)

    def offsets_at(self, times_ms: Mapping[Partition, int], timeout_s: float = 30.0) -> Mapping[Partition, int]:
        return self._admin.offsets_at(times_ms, timeout_s)

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        self._admin.truncate(positions, timeout_s)

    def topic_bytes(self, names: Iterable[str], timeout_s: float = 10.0) -> Mapping[str, int] | None:
        if not is_plain(self._config.client_settings):
            return None
        end = time.monotonic() + timeout_s
        sizes = bytes_on_disk(self._admin.addresses(timeout_s), max(0.05, end - time.monotonic()))
        return None if sizes is None else {name: sizes[name] for name in names if name in sizes}

    def reader(self, positions: Mapping[Partition, int]) -> Reader:
        if not self._admin.is_made:
            reader = KafkaReader(self._config, positions)
            if reader.finds_all(_LOOK_TIMEOUT_S):
                return reader
            reader.close()
        self._admin.require(positions, _EXISTS_TIMEOUT_S)  # which says what is missing, or waits for an answer
        return KafkaReader(self._config, positions)

    def writer(self) -> Writer:
        return KafkaWriter(self._config)

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        deadline = time.monotonic() + timeout_s
        # The end includes open transactions, or a record that is just being committed would be left out silently.
        begin, end = self._admin.offsets([partition], timeout_s)[partition]
        if begin == end:
            return []
        return read_committed(self._config, partition, begin, end, deadline - time.monotonic())

    def claim_log(self, topic: str, owner: str, timeout_s: float = 30.0) -> KafkaFencedLog:
        deadline = time.monotonic() + timeout_s
        self._admin.require([Partition(topic, 0)], timeout_s)
        return KafkaFencedLog(self._config, topic, owner, max(deadline - time.monotonic(), 0.05))

    def election(self, name: str, topic: str, session_s: float) -> KafkaElection:
        self._admin.require([Partition(topic, 0)], _EXISTS_TIMEOUT_S)
        return KafkaElection(self._config, name, topic, session_s)

    def candidates(self, name: str, timeout_s: float = 10.0) -> int:
        return self._admin.members(name, timeout_s)

    def close(self) -> None:
        self._admin.close()
