"""What a dashboard shows: one job, or every job on a broker, each opened when somebody looks at it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from ..client.job_client import JobClient
from ..schemas.errors import ConfigurationError, JobRefused, PenstockError
from ..schemas.topics import TopicNames
from ..transport.ports import Transport
from .control import Control
from .feed import Feed, of_topic
from .job_list import JobList
from .subtask_log import SubtaskLog
from .updates import Updates

JOBS_OPEN_MAX = 16
CLOSE_AFTER_S = 60.0
"""A job that nobody has looked at for so long is not followed any more."""


@dataclass(slots=True)
class Shown:
    """One job on its way to pages."""

    feed: Feed
    client: JobClient | None = None
    log: SubtaskLog | None = None
    control: Control | None = None
    updates: Updates = field(init=False)
    used_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.updates = Updates(self.feed)

    def use(self) -> Shown:
        self.used_at = time.monotonic()
        return self


class Full(PenstockError):
    """As many jobs are looked at as may be."""


class Site(Protocol):
    """``jobs`` is the list of jobs; None where only one job is shown."""

    jobs: JobList | None

    def job(self, name: str) -> Shown:
        """Return the job, "" the only one. Raises JobRefused where there is none, Full, and TransportError."""

    def close(self) -> None: ...


class OneJob:
    """The only job of a site. With ``client`` its logs can be looked at, and with ``control`` it can be asked."""

    jobs: JobList | None = None

    def __init__(
        self, feed: Feed, client: JobClient | None = None, log: SubtaskLog | None = None, control: Control | None = None
    ) -> None:
        self._shown = Shown(feed, client, log, control)

    def job(self, name: str) -> Shown:
        if name:
            raise JobRefused("this dashboard shows one job: start it without a job to see all of them")
        return self._shown.use()

    def close(self) -> None:
        self._shown.feed.close()


class AllJobs:
    """Every job under a prefix."""

    def __init__(self, transport: Transport, prefix: str, control: Control | None = None) -> None:
        self._transport, self._prefix, self._control = transport, prefix, control
        self._lock = threading.Lock()
        self._open: dict[str, Shown] = {}
        self.jobs: JobList | None = JobList(transport, prefix)

    def job(self, name: str) -> Shown:
        with self._lock:
            if (shown := self._open.get(name)) is not None:
                return shown.use()
        try:
            TopicNames(self._prefix, name)
        except ConfigurationError as error:
            raise JobRefused(str(error)) from None
        client = JobClient(self._transport, name, self._prefix)
        client.require()
        with self._lock:
            if (shown := self._open.get(name)) is not None:
                return shown.use()
            unused = [n for n, s in self._open.items() if time.monotonic() > s.used_at + CLOSE_AFTER_S]
            if len(self._open) - len(unused) >= JOBS_OPEN_MAX:
                raise Full(f"{JOBS_OPEN_MAX} jobs are looked at already: close a page, and wait a minute")
            left = [self._open.pop(n) for n in unused]
            shown = self._open[name] = Shown(
                of_topic(client), client, SubtaskLog(self._transport, client.topics), self._control
            )
        _close(left)
        return shown

    def close(self) -> None:
        with self._lock:
            shown = list(self._open.values())
            self._open.clear()
        if self.jobs is not None:
            self.jobs.close()
        _close(shown)


def _close(shown: list[Shown]) -> None:
    """Side by side: each may wait for its last look."""
    threads = [threading.Thread(target=each.feed.close, name="penstock-dashboard-close") for each in shown]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)
