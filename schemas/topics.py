"""What a job's topics are called and how they must be set up (protocol, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .ids import checked_name, is_name

DEFAULT_PREFIX = "penstock"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that must exist: at least ``partitions`` partitions, with ``settings`` as the broker spells them."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int | None = None
    """Copies of each partition; None: the broker's default."""


_SEGMENTS = {"segment.bytes": str(64 << 20), "segment.ms": str(3_600_000)}
"""A broker frees whole segments, and never the one that is written: its own defaults are 1 GiB and seven days."""
_COMPACTION = {
    "segment.bytes": str(16 << 20),
    "segment.ms": str(600_000),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(3_600_000),
    "delete.retention.ms": str(3_600_000),
}
"""What has been discarded is gone within about an hour. Whoever reads the log reads it within minutes, so no tombstone
goes under a reader's hands."""
SIZE_SETTINGS = frozenset({*_SEGMENTS, *_COMPACTION})
"""Settings that only say how much room a topic takes: a job on topics that were made with others runs as well."""

MIN_INSYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
OPTIONAL_SETTINGS = SIZE_SETTINGS | {MIN_INSYNC, UNCLEAN}
"""Settings that a topic is created with where the broker allows them, and that a start does not insist on."""

_KEEP_FOR_EVER = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    UNCLEAN: "false",
    **_SEGMENTS,
}


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names that belong to one job on one broker. Dots separate, so no name may hold one."""

    prefix: str
    job: str

    def __post_init__(self) -> None:
        checked_name("prefix", self.prefix)
        checked_name("job name", self.job)

    @property
    def root(self) -> str:
        """What all of the job's resources begin with, its closing dot included (an ACL prefix)."""
        return f"{self.prefix}.{self.job}."

    @property
    def acks(self) -> str:
        return self.root + "acks"

    @property
    def checkpoints(self) -> str:
        return self.root + "checkpoints"

    @property
    def status(self) -> str:
        return self.root + "status"

    def events(self, operator: str) -> str:
        return f"{self.root}{operator}.events"

    def data(self, sender: str, receiver: str) -> str:
        return f"{self.root}{sender}.{receiver}.data"

    @property
    def transactional_id(self) -> str:
        return self.root + "coordinator"

    @property
    def standby_group(self) -> str:
        """The one consumer group that is joined: its members wait to be the coordinator."""
        return self.root + "standby"

    @property
    def readers_group(self) -> str:
        """What consumers name as their group; nothing is joined or committed under it."""
        return self.root + "readers"

    def specs(
        self,
        parallelism: Mapping[str, int],
        edges: Iterable[tuple[str, str]] = (),
        replication_factor: int | None = None,
    ) -> list[TopicSpec]:
        """Every topic of a job whose operators have the given parallelism; ``edges`` are (sender, receiver).

        With three copies or more, two must have a record before it counts as written.
        """
        kept = dict(_KEEP_FOR_EVER)
        if replication_factor is not None and replication_factor >= 3:
            kept[MIN_INSYNC] = "2"

        def spec(name: str, partitions: int, own: Mapping[str, str] = MappingProxyType({})) -> TopicSpec:
            return TopicSpec(name, partitions, {**kept, **own}, replication_factor)

        return [
            spec(self.checkpoints, 1, {"cleanup.policy": "compact", **_COMPACTION}),
            spec(self.acks, 1, {"message.timestamp.type": "LogAppendTime"}),
            spec(self.status, 1),
            *(spec(self.events(operator), n) for operator, n in parallelism.items()),
            *(spec(self.data(sender, receiver), parallelism[receiver]) for sender, receiver in edges),
        ]


def job_of_topic(topic: str, prefix: str) -> str | None:
    """The job a checkpoint log belongs to, or None where ``topic`` is no checkpoint log under ``prefix``."""
    parts = topic.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == prefix and parts[2] == "checkpoints" else None


def owner_of_topic(topic: str) -> tuple[str, str] | None:
    """Prefix and job that a topic of this name belongs to; None where no job's topic is called so."""
    parts = topic.split(".")
    if not all(map(is_name, parts)):
        return None
    ends = {3: ("acks", "checkpoints", "status"), 4: ("events",), 5: ("data",)}
    return (parts[0], parts[1]) if parts[-1] in ends.get(len(parts), ()) else None
