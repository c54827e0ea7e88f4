"""Rights at a broker in Kafka's own words: what a user may do with which resource, and the command that grants it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote

ADMIN_SETTINGS = "admin.properties"
"""What commands call the file with the administrator's own client settings."""


class Resource(StrEnum):
    """What a right is about, as ``kafka-acls`` spells its option."""

    TOPIC = "topic"
    TRANSACTIONAL_ID = "transactional-id"
    GROUP = "group"
    CLUSTER = "cluster"


class Operation(StrEnum):
    """What a right allows, as ``kafka-acls`` spells it."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    """Deleting records below an offset too."""
    ALTER = "Alter"
    """Adding partitions."""
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One right: ``operation`` on the resource named ``name``, or on all whose names begin with it."""

    resource: Resource
    name: str
    prefixed: bool
    operation: Operation

    def covers(self, resource: Resource, name: str, operation: Operation) -> bool:
        """Whether whoever holds this right may perform ``operation`` on that one resource."""
        named = name.startswith(self.name) if self.prefixed else name == self.name
        implied = operation is Operation.DESCRIBE and self.operation in _IMPLY_DESCRIBE
        return resource is self.resource and named and (operation is self.operation or implied)

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.prefixed else ''}"


_IMPLY_DESCRIBE = frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER})


def topic_grant(topic: str, operation: Operation) -> Grant:
    """The right that a job's plan has for one of the job's topics: on all that begin as the job's do."""
    parts = topic.split(".")
    if len(parts) < 3:
        return Grant(Resource.TOPIC, topic, False, operation)
    return Grant(Resource.TOPIC, ".".join(parts[:2]) + ".", True, operation)


def grant_commands(grants: Iterable[Grant], user: str, broker: str) -> list[str]:
    """``kafka-acls`` commands that give ``user`` these rights: one for each resource."""
    operations: dict[tuple[Resource, str, bool], list[Operation]] = {}
    for grant in dict.fromkeys(grants):
        operations.setdefault((grant.resource, grant.name, grant.prefixed), []).append(grant.operation)
    return [
        f"kafka-acls.sh --bootstrap-server {quote(broker)} --command-config {ADMIN_SETTINGS} --add"
        f" --allow-principal {quote('User:' + user)}"
        + "".join(f" --operation {operation}" for operation in allowed)
        + (" --cluster" if resource is Resource.CLUSTER else f" --{resource} {quote(name)}")
        + (" --resource-pattern-type prefixed" if prefixed else "")
        for (resource, name, prefixed), allowed in operations.items()
    ]
