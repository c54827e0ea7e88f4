"""The jobs on a broker, looked up in the background while somebody wants to see them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..client.topic_usage import JobOnBroker, jobs_on
from ..schemas.errors import PenstockError
from ..transport.ports import Transport
from . import model
from .feed import FIRST_WAITED_S

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
WANTED_S = 20.0
"""So long after the last request the broker is still asked."""
BUSY_MAX = 0.25
"""The part of the time that looking takes, at most: of many jobs the list is older."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in the list."""

    job: str
    state: str
    running: int
    subtasks: int
    epoch: int
    last_completed: int
    failovers: int
    age_s: float
    """From its status to the look; -1: it has none."""
    partitions: int
    bytes: int
    """On disk; -1: not known."""


def state_told(job: JobOnBroker) -> str:
    """Return what a job was doing when it was looked at; of one that tells nothing, why."""
    if not job.whole:
        return "incomplete"
    if job.hidden:
        return "hidden"
    return "never started" if job.status is None else model.state_of(job.status, model.age_s(job.status, job.looked_ms))


def row_of(job: JobOnBroker) -> JobRow:
    status, cost = job.status, job.cost
    on_disk = -1 if cost.bytes is None else cost.bytes
    if status is None:
        return JobRow(job.job, state_told(job), 0, 0, -1, -1, 0, -1.0, cost.partitions, on_disk)
    return JobRow(
        job.job,
        state_told(job),
        sum(o.totals.running for o in status.operators),
        sum(o.parallelism for o in status.operators),
        status.epoch,
        status.last_completed,
        status.failovers_region + status.failovers_global,
        round(model.age_s(status, job.looked_ms), 1),
        cost.partitions,
        on_disk,
    )


class JobList:
    """The newest list. Its thread looks only while ``told`` is called now and then."""

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport, self.prefix = transport, prefix
        self._found: Sequence[JobOnBroker] | None = None
        self._looked_ms, self._trouble = 0, ""
        self._first, self._begun = threading.Event(), time.monotonic()
        self._wanted = threading.Condition()
        self._wanted_at = -WANTED_S
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-dashboard-jobs", daemon=True)
        self._thread.start()

    def told(self) -> dict[str, Any]:
        """Return the rows (None before the first look), when that was, and why the newest look failed."""
        self._want()
        now_ms, found = round(1000 * time.time()), self._found
        return {
            "prefix": self.prefix,
            "jobs": None if found is None else [asdict(row_of(job)) for job in found],
            "looked_ms": self._looked_ms,
            "now_ms": now_ms,
            "trouble": self._trouble,
        }

    def wait_first(self) -> None:
        """Return once a look has ended, at the latest 2 s after the list began."""
        self._want()
        self._first.wait(max(0.0, self._begun + FIRST_WAITED_S - time.monotonic()))

    def _want(self) -> None:
        with self._wanted:
            self._wanted_at = time.monotonic()
            self._wanted.notify()

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._closing, pause_s)
                self._wanted.wait_for(lambda: self._closing or time.monotonic() < self._wanted_at + WANTED_S)
                if self._closing:
                    return
            begun = time.monotonic()
            try:
                self._found = jobs_on(self._transport, self.prefix)
                self._looked_ms, self._trouble = round(1000 * time.time()), ""
            except PenstockError as error:
                self._trouble = str(error)
            except Exception:
                if not self._closing:
                    _log.exception("the look at the list of jobs failed")
                self._trouble = "the look at the list of jobs failed; the log says why"
            self._first.set()
            pause_s = max(LOOK_EVERY_S, (time.monotonic() - begun) / BUSY_MAX)

    def close(self) -> None:
        with self._wanted:
            self._closing = True
            self._wanted.notify()
        self._thread.join(5.0)
