"""What Kafka's description of a topic says, in the terms of :mod:`penstock.transport.ports`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..schemas.access import Operation
from ..schemas.topics import OPTIONAL_SETTINGS, TopicSpec
from .ports import Copies, TopicInfo


def info_of(name: str, description: Any) -> TopicInfo:
    return TopicInfo(name, str(description.topic_id), len(description.partitions))


def copies_of(description: Any) -> tuple[Copies, ...]:
    return tuple(
        Copies(
            None if partition.leader is None or partition.leader.id < 0 else partition.leader.id,
            frozenset(node.id for node in partition.replicas),
            frozenset(node.id for node in partition.isr),
        )
        for partition in sorted(description.partitions, key=lambda partition: partition.id)
    )


def without_optional(spec: TopicSpec) -> TopicSpec:
    kept = {key: value for key, value in spec.settings.items() if key not in OPTIONAL_SETTINGS}
    return replace(spec, settings=kept)


def operations_of(description: Any) -> frozenset[Operation] | None:
    """Return what this user may do with a described topic; None where the broker does not say, not even DESCRIBE."""
    names = {operation.name for operation in description.authorized_operations or ()}
    told = frozenset(operation for operation in Operation if operation.name in names)
    return told if Operation.DESCRIBE in told else None
