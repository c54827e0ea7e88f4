"""What a job needs of a broker: topics, rights, client settings, limits. A pure function of its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote

from .access import ADMIN_SETTINGS, Grant, Operation, Resource
from .settings import JobSettings
from .topics import TopicNames, TopicSpec


class Role(StrEnum):
    """A process of a job by what it does at the broker. One user may have several, and mostly has all."""

    COORDINATOR = "coordinator"
    """`penstock coordinator`, or the Spark driver where the coordinator runs there."""
    SUBTASK = "subtask"
    """Spark's executors: every operator's subtasks, and the tasks of a query that reads events."""
    COMMANDS = "commands"
    """Starts runs and asks a running job: the Spark driver, `penstock savepoint`, `stop`, `request`."""
    READER = "reader"
    """Only looks: `penstock status`, `checkpoints`, `doctor`."""
    CREATOR = "creator"
    """Creates the topics and adds partitions; deletes them (`penstock purge`)."""


_OPERATIONS = {
    Role.COORDINATOR: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE_CONFIGS),
    Role.COMMANDS: (Operation.READ,),
    Role.READER: (Operation.READ, Operation.DESCRIBE_CONFIGS),
    Role.CREATOR: (Operation.CREATE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER, Operation.DELETE),
}
"""On all of the job's topics. A coordinator deletes records that no checkpoint needs any more."""

_READS = {"isolation.level": "read_committed", "enable.auto.commit": "false", "auto.offset.reset": "error"}
_WRITES = {"enable.idempotence": "true", "acks": "all", "message.timeout.ms": "0"}

MESSAGE_BYTES_NEEDED = 1_000_000
"""``max.message.bytes`` that the job's topics need, unless the clients' ``message.max.bytes`` is set lower."""
TRANSACTION_MS_NEEDED = 120_000
"""``transaction.max.timeout.ms`` that the broker needs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one job needs."""

    settings: JobSettings

    @property
    def names(self) -> TopicNames:
        return self.settings.topics

    @property
    def topics(self) -> list[TopicSpec]:
        return self.settings.topic_specs

    def grants(self, roles: Iterable[Role] = tuple(Role)) -> list[Grant]:
        """The rights that these roles need together; each once, and none that another one includes."""
        grants = [grant for role in roles for grant in self._grants_of(role)]
        wide = {(g.resource, g.operation) for g in grants if g.prefixed}
        return [g for g in dict.fromkeys(grants) if g.prefixed or (g.resource, g.operation) not in wide]

    def _grants_of(self, role: Role) -> list[Grant]:
        names = self.names
        grants = topic_grants(names, role)
        if role is not Role.CREATOR:  # not needed: without it the broker's log tells of consumers that look it up
            grants.append(Grant(Resource.GROUP, names.readers_group, False, Operation.DESCRIBE))
        match role:
            case Role.COORDINATOR:
                grants.append(Grant(Resource.TRANSACTIONAL_ID, names.transactional_id, False, Operation.WRITE))
                grants.append(Grant(Resource.GROUP, names.standby_group, False, Operation.READ))
            case Role.SUBTASK:
                grants += [Grant(Resource.TOPIC, topic, False, op) for topic, op in self._subtask_needs()]
            case Role.COMMANDS:
                grants.append(Grant(Resource.TOPIC, names.acks, False, Operation.WRITE))
            case Role.READER | Role.CREATOR:
                pass
        return grants

    def _subtask_needs(self) -> list[tuple[str, Operation]]:
        names, settings = self.names, self.settings
        needs = [(names.events(operator.name), Operation.READ) for operator in settings.operators]
        needs.append((names.acks, Operation.WRITE))
        if settings.driven_by_query:  # the planner of a query asks its coordinator, and reads the answers
            needs += [(names.acks, Operation.READ), (names.status, Operation.READ)]
        for edge in settings.graph.edges:
            needs += [(names.data(edge.sender, edge.receiver), op) for op in (Operation.WRITE, Operation.READ)]
        return needs

    def client_settings(self, role: Role) -> Mapping[str, str]:
        """What clients of that role set themselves; a user's own settings (security, mostly) come in addition."""
        reads = {"group.id": self.names.readers_group, **_READS}
        match role:
            case Role.COORDINATOR:
                return {**reads, **_WRITES, "transactional.id": self.names.transactional_id}
            case Role.SUBTASK | Role.COMMANDS:
                return {**reads, **_WRITES}
            case Role.READER:
                return reads
            case Role.CREATOR:
                return {}

    @property
    def limits(self) -> Mapping[str, int]:
        """The least that these settings of the broker must be."""
        return {"message.max.bytes": MESSAGE_BYTES_NEEDED, "transaction.max.timeout.ms": TRANSACTION_MS_NEEDED}


def topic_grants(names: TopicNames, role: Role) -> list[Grant]:
    """The rights that a role needs on all topics of a job alike."""
    return [Grant(Resource.TOPIC, names.root, True, operation) for operation in _OPERATIONS.get(role, ())]


def create_command(spec: TopicSpec, broker: str) -> str:
    """A ``kafka-topics`` command that creates a topic."""
    copies = "" if spec.replication_factor is None else f" --replication-factor {spec.replication_factor}"
    settings = "".join(f" --config {quote(f'{key}={value}')}" for key, value in spec.settings.items())
    return (
        f"kafka-topics.sh --bootstrap-server {quote(broker)} --command-config {ADMIN_SETTINGS} --create --if-not-exists"
        f" --topic {quote(spec.name)} --partitions {spec.partitions}{copies}{settings}"
    )


def alter_command(topic: str, settings: Mapping[str, str], broker: str) -> str:
    """A ``kafka-configs`` command that sets a topic's settings."""
    wanted = ",".join(f"{key}={value}" for key, value in settings.items())
    return (
        f"kafka-configs.sh --bootstrap-server {quote(broker)} --command-config {ADMIN_SETTINGS} --alter"
        f" --entity-type topics --entity-name {quote(topic)} --add-config {quote(wanted)}"
    )


def partitions_command(spec: TopicSpec, broker: str) -> str:
    """A ``kafka-topics`` command that gives a topic as many partitions as it needs."""
    return (
        f"kafka-topics.sh --bootstrap-server {quote(broker)} --command-config {ADMIN_SETTINGS} --alter"
        f" --topic {quote(spec.name)} --partitions {spec.partitions}"
    )
