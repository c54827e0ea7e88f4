"""What each job on a broker takes of it: topics, partitions, records, bytes. From the topics alone, running or not."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..schemas.errors import NotAuthorized, TopicMissing, TransportError
from ..schemas.status import JobStatus
from ..schemas.topics import TopicNames, owner_of_topic
from ..transport.ports import Partition, Transport
from .job_client import JobClient

_AT_ONCE = 8
"""How many jobs are looked at side by side: most of a look is waiting for the broker."""
_LOOKS = 3
"""How often a job's topics are looked up again, where some of them go meanwhile."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job's topics take."""

    topics: int
    partitions: int
    records: int
    """Between the beginning and the end of every partition; the checkpoint log is compacted, and has gaps."""
    bytes: int | None
    """On the brokers' disks, replicas together; None where this client cannot know."""


@dataclass(frozen=True, slots=True)
class JobOnBroker:
    """A job, or what is left of one."""

    prefix: str
    job: str
    whole: bool
    """Whether it has a checkpoint log. One without was purged half, or lost it: it cannot start."""
    status: JobStatus | None
    """The newest that was told; None where none was."""
    cost: Cost
    hidden: bool = False
    """Whether there may be a status, which this user may not read."""
    looked_ms: int = 0
    """When the status was read, wall clock. How old it is must be told by this time: a long list takes seconds."""


def jobs_on(transport: Transport, prefix: str | None) -> list[JobOnBroker]:
    """Every job under ``prefix``, or under any prefix where that is None.

    There what has no checkpoint log counts only with two topics at least: a name alone may be anybody's.
    """
    owned: dict[tuple[str, str], list[str]] = {}
    for topic in transport.list_topics("" if prefix is None else prefix + "."):
        owner = owner_of_topic(topic)
        if owner is not None and prefix in (None, owner[0]):
            owned.setdefault(owner, []).append(topic)
    sizes = transport.topic_bytes([topic for topics in owned.values() for topic in topics])

    def look(of_prefix: str, job: str, topics: list[str]) -> JobOnBroker | None:
        names = TopicNames(of_prefix, job)
        whole = names.checkpoints in topics
        if not whole and prefix is None and len(topics) == 1:
            return None
        cost = _cost(transport, topics, sizes)
        status, hidden = _status(JobClient(transport, job, of_prefix)) if names.status in topics else (None, False)
        return JobOnBroker(of_prefix, job, whole, status, cost, hidden, round(1000 * time.time()))

    with ThreadPoolExecutor(_AT_ONCE, "penstock-jobs") as threads:
        looks = [threads.submit(look, *owner, topics) for owner, topics in sorted(owned.items())]
        found = [each.result() for each in looks]
    return [job for job in found if job is not None]


def _status(client: JobClient) -> tuple[JobStatus | None, bool]:
    """The newest one, and whether it is hidden."""
    try:
        return client.status(), False
    except NotAuthorized:
        return None, True
    except TransportError:
        return None, False  # it is being purged


def _cost(transport: Transport, topics: Iterable[str], sizes: Mapping[str, int] | None) -> Cost:
    names = list(topics)
    for _ in range(_LOOKS):
        described = transport.describe_topics(names)
        partitions = [Partition(info.name, index) for info in described.values() for index in range(info.partitions)]
        try:
            offsets = transport.offsets(partitions)
        except TopicMissing:
            continue
        records = sum(there.end - there.begin for there in offsets.values())
        known = None if sizes is None else sum(sizes.get(name, 0) for name in described)
        return Cost(len(described), len(partitions), records, known)
    return Cost(0, 0, 0, None if sizes is None else 0)  # it goes as fast as it is looked at
