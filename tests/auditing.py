"""Every test that ran a job ends with an audit of its logs; one that damages them on purpose is marked so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.audit import Report, audit
from penstock.schemas.errors import JobRefused
from penstock.testing import LocalJob
from penstock.transport import MemoryTransport
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition, Transport

_SUFFIX = ".checkpoints"
Logs = Mapping[str, tuple[str, int]]
"""Checkpoint logs on a broker: their ids, and where they end."""


class Auditor:
    """Knows the session's broker, once there is one, and which of its jobs have been audited as they are."""

    def __init__(self) -> None:
        self.bootstrap: str | None = None
        self._seen: dict[str, tuple[str, int]] = {}

    def changed(self) -> list[Report]:
        """Audits the jobs whose checkpoint logs have changed since the last call, or are new."""
        if self.bootstrap is None:
            return []
        transport = KafkaTransport(self.bootstrap)
        try:
            there = _logs(transport)
            # An empty one is that of a fake coordinator, which only writes what subtasks read.
            names = [name for name, state in there.items() if self._seen.get(name) != state and state[1] > 0]
            self._seen = dict(there)
            return [report for name in names if (report := _audited(transport, name)) is not None]
        finally:
            transport.close()

    def pass_over(self) -> None:
        """What is there now has been damaged on purpose."""
        if self.bootstrap is not None:
            transport = KafkaTransport(self.bootstrap)
            self._seen = dict(_logs(transport))
            transport.close()


AUDITOR = Auditor()


def _logs(transport: Transport) -> Logs:
    names = [name for name in transport.list_topics("") if name.endswith(_SUFFIX) and name.count(".") == 2]
    topics = transport.describe_topics(names)
    ends = transport.offsets([Partition(name, 0) for name in topics])
    return {name: (info.topic_id, ends[Partition(name, 0)].end) for name, info in topics.items()}


def _audited(transport: Transport, log: str) -> Report | None:
    prefix, job, _ = log.split(".")
    try:
        return audit(transport, job, prefix)
    except JobRefused:  # purged meanwhile
        return None


@contextmanager
def local_jobs() -> Iterator[list[LocalJob]]:
    """Those in memory that have ended since."""
    ended: list[LocalJob] = []
    close = LocalJob.close

    def closed(job: LocalJob, *arguments: Any, **named: Any) -> None:
        close(job, *arguments, **named)
        if isinstance(job._inner, MemoryTransport):
            ended.append(job)

    LocalJob.close = closed  # type: ignore[method-assign]
    try:
        yield ended
    finally:
        LocalJob.close = close  # type: ignore[method-assign]


def damaged(jobs: list[LocalJob]) -> list[Report]:
    """What is wrong with the logs of jobs in memory."""
    brokers = {
        (id(job._inner.broker), job.settings.name): job for job in jobs if isinstance(job._inner, MemoryTransport)
    }
    reports = [
        _audited(job._inner, job.settings.topics.checkpoints)
        for job in brokers.values()
        if job._inner.list_topics(job.settings.topics.checkpoints)
    ]
    return [report for report in reports if report is not None and not report.healthy]
