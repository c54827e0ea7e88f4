"""Follow a job's statuses, from its status topic alone: its coordinators may run anywhere, or not at all."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

from ..schemas.errors import BrokerUnreachable, WrittenByNewer
from ..schemas.status import JobStatus
from ..schemas.topics import TopicNames
from ..transport.ports import Transport
from .status_log import LOOK_BACK, NEWER_MAX, StatusLog

ASK_AFTER_S = 1.5
"""Seconds without a record after which the broker is asked why: readers are silent while it is away."""
LOOK_EVERY_S = 10.0
"""Seconds between checks that the topic is still the same one, also while records come: a topic that was recreated
during an outage goes on to deliver the records after the last position, as if nothing had happened."""


class Heard(NamedTuple):
    """A status and the time when it was read, by the reader's clock.

    For a status that was in the topic before, it is the time that the status itself names.
    """

    status: JobStatus
    at_ms: int


class StatusFollower(AbstractContextManager["StatusFollower"]):
    """The job's statuses in the order they were written, beginning some minutes ago. For one thread."""

    def __init__(self, transport: Transport, topics: TopicNames) -> None:
        self._log = StatusLog(transport, topics, LOOK_BACK)
        self._asked_at = self._looked_at = time.time()

    @property
    def caught_up(self) -> bool:
        """Whether everything has been read that there was at the beginning."""
        return self._log.caught_up

    def poll(self, timeout_s: float) -> list[Heard]:
        """Return the statuses written since the last call; wait up to ``timeout_s`` for the first. Skip other records.

        Raises TopicMissing if the job does not exist (or was recreated under its name), TransportError if the broker
        does not answer, WrittenByNewer if a newer release wrote the statuses. Calling it again is allowed.
        """
        log = self._log
        if abs(time.time() - self._looked_at) > LOOK_EVERY_S:
            with suppress(BrokerUnreachable):  # silence will tell, if it is more than slow
                self._ask()
        before, entries = log.position, log.poll(timeout_s)
        if log.position != before:
            self._asked_at = time.time()
        elif abs(time.time() - self._asked_at) > ASK_AFTER_S:
            self._ask()
        if len(log.newer) == NEWER_MAX:
            raise WrittenByNewer(f"the newest records of {log.partition} cannot be read: {log.newer[-1]}")
        now_ms = round(1000 * time.time())
        return [
            Heard(status, status.at_ms if offset < log.end else now_ms)
            for offset, status in entries
            if isinstance(status, JobStatus)
        ]

    def _ask(self) -> None:
        """Ask the broker whether it still has the topic, and whether that is the same one."""
        self._asked_at = self._looked_at = time.time()  # which goes on while a machine sleeps
        self._log.ask()

    def close(self) -> None:
        self._log.close()

    def __exit__(self, *_: object) -> None:
        self.close()
