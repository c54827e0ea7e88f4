"""Logs as Penstock needs them: small ports, implemented in memory and over Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "penstock.transport":
    raise ImportError(f"import this package as penstock.transport, not as {__name__}")

from .memory import MemoryBroker, MemoryTransport
from .ports import (
    Election,
    FencedLog,
    Inspection,
    LogRecord,
    OffsetRange,
    OnOutcome,
    Partition,
    Reader,
    TopicFacts,
    TopicInfo,
    Transport,
    Writer,
)
from .state_storage import StateStorage

if TYPE_CHECKING:
    from .kafka import KafkaConfig, KafkaTransport
    from .kafka_shared import SharedKafkaTransport

__all__ = [
    "Election",
    "FencedLog",
    "Inspection",
    "KafkaConfig",
    "KafkaTransport",
    "LogRecord",
    "MemoryBroker",
    "MemoryTransport",
    "OffsetRange",
    "OnOutcome",
    "Partition",
    "Reader",
    "SharedKafkaTransport",
    "StateStorage",
    "TopicFacts",
    "TopicInfo",
    "Transport",
    "Writer",
]


def __getattr__(name: str) -> Any:
    # confluent-kafka is loaded by those who use Kafka, and by nobody else.
    if name in ("KafkaConfig", "KafkaTransport"):
        from . import kafka

        return getattr(kafka, name)
    if name == "SharedKafkaTransport":
        from . import kafka_shared

        return kafka_shared.SharedKafkaTransport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
