"""Operator coordinators for Spark: exactly-once events between one coordinator and many subtasks, over Kafka.

::

    import penstock

    job = penstock.Job("flights", checkpoint=penstock.CheckpointSettings(interval=1.0))
    job.operator("reader", coordinator=SplitAssigner, subtask=ReadSplit, parallelism=4)
    penstock.spark_integration.run(spark, job, broker="127.0.0.1:9092").wait()

Users implement :class:`OperatorCoordinator` and :class:`Subtask`; what holds between them is in ``docs/protocol.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import audit, broker, errors, rules, sinks, sources, spark_integration, tables, testing
    from .coordinator.api import CheckpointResult, CoordinatorContext, EventContext, Gateway, OperatorCoordinator
    from .coordinator.futures import EventFuture
    from .coordinator.options import CoordinatorOptions
    from .job import Input, Job, Operator
    from .recorded.subtask_replay import Emitted, Replayed, replay
    from .rules.rules import Rules
    from .rules.subtask import RuleSubtask
    from .schemas.errors import Backpressure, BatchRefused, EventNotHandled, EventTooLarge, PenstockError
    from .schemas.events import FailoverPolicy
    from .schemas.settings import CheckpointSettings, RestartStrategy, Restore
    from .schemas.status import JobStatus
    from .schemas.user_codec import AvroCodec, BytesCodec, Codec, CodecSpec, DataclassCodec, JsonCodec, codec_for
    from .subtask_client.api import Context, Finished, Idle, Progress, Subtask
    from .transport.kafka_client import KafkaConfig


__version__ = "0.1.0"

_HOME = {
    "CheckpointResult": "coordinator.api",
    "CoordinatorContext": "coordinator.api",
    "EventContext": "coordinator.api",
    "Gateway": "coordinator.api",
    "OperatorCoordinator": "coordinator.api",
    "EventFuture": "coordinator.futures",
    "CoordinatorOptions": "coordinator.options",
    "Input": "job",
    "Job": "job",
    "Operator": "job",
    "Emitted": "recorded.subtask_replay",
    "Replayed": "recorded.subtask_replay",
    "replay": "recorded.subtask_replay",
    "RuleSubtask": "rules.subtask",
    "Rules": "rules.rules",
    "Backpressure": "schemas.errors",
    "BatchRefused": "schemas.errors",
    "EventNotHandled": "schemas.errors",
    "EventTooLarge": "schemas.errors",
    "PenstockError": "schemas.errors",
    "FailoverPolicy": "schemas.events",
    "CheckpointSettings": "schemas.settings",
    "Restore": "schemas.settings",
    "RestartStrategy": "schemas.settings",
    "JobStatus": "schemas.status",
    "AvroCodec": "schemas.user_codec",
    "BytesCodec": "schemas.user_codec",
    "Codec": "schemas.user_codec",
    "CodecSpec": "schemas.user_codec",
    "DataclassCodec": "schemas.user_codec",
    "JsonCodec": "schemas.user_codec",
    "codec_for": "schemas.user_codec",
    "Context": "subtask_client.api",
    "Finished": "subtask_client.api",
    "Idle": "subtask_client.api",
    "Progress": "subtask_client.api",
    "Subtask": "subtask_client.api",
    "KafkaConfig": "transport.kafka_client",
}
_MODULES = {
    "audit": "audit",
    "broker": "broker",
    "errors": "errors",
    "rules": "rules",
    "sinks": "sinks",
    "sources": "sources",
    "spark_integration": "spark_integration",
    "tables": "tables",
    "testing": "testing",
}

__all__ = [
    "AvroCodec",
    "Backpressure",
    "BatchRefused",
    "BytesCodec",
    "CheckpointResult",
    "CheckpointSettings",
    "Codec",
    "CodecSpec",
    "Context",
    "CoordinatorContext",
    "CoordinatorOptions",
    "DataclassCodec",
    "Emitted",
    "EventContext",
    "EventFuture",
    "EventNotHandled",
    "EventTooLarge",
    "FailoverPolicy",
    "Finished",
    "Gateway",
    "Idle",
    "Input",
    "Job",
    "JobStatus",
    "JsonCodec",
    "KafkaConfig",
    "Operator",
    "OperatorCoordinator",
    "PenstockError",
    "Progress",
    "Replayed",
    "RestartStrategy",
    "Restore",
    "RuleSubtask",
    "Rules",
    "Subtask",
    "audit",
    "broker",
    "codec_for",
    "errors",
    "replay",
    "rules",
    "sinks",
    "sources",
    "spark_integration",
    "tables",
    "testing",
]


def __getattr__(name: str) -> Any:
    # On demand, so that a pure core, or a Spark worker, loads what it uses and nothing else.
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
