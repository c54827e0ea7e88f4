"""Follows what a job's coordinators tell about it, from the topic alone: they may run anywhere, or not at all."""

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
"""When nothing has come for so long the broker is asked why: readers are silent while it is away."""
LOOK_EVERY_S = 10.0
"""So often it is looked whether the topic is still the same one, also where records come: of a topic that was made anew
while nobody could look, those behind the position read before come as if nothing had been."""


class Heard(NamedTuple):
    """A status, and when it was told: by the clock of whoever reads it, which need not be that of who wrote it.

    What stood in the topic before is taken to have been told when it says.
    """

    status: JobStatus
    at_ms: int


class StatusFollower(AbstractContextManager["StatusFollower"]):
    """The job's statuses in the order they were written, beginning some minutes ago. For one thread.

    Raises TopicMissing where the job does not exist (any more, or is another one of its name), TransportError where
    the broker does not answer, WrittenByNewer where a newer release tells it. It may be polled again.
    """

    def __init__(self, transport: Transport, topics: TopicNames) -> None:
        self._log = StatusLog(transport, topics, LOOK_BACK)
        self._asked_at = self._looked_at = time.time()

    @property
    def caught_up(self) -> bool:
        """Whether everything has been read that there was at the beginning."""
        return self._log.caught_up

    def poll(self, timeout_s: float) -> list[Heard]:
        """What has come, waiting at most so long for the first of it; anything else in the topic is passed over."""
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
        """Nothing comes: is the broker there, and is it still the same topic?"""
        self._asked_at = self._looked_at = time.time()  # which goes on while a machine sleeps
        self._log.ask()

    def close(self) -> None:
        self._log.close()

    def __exit__(self, *_: object) -> None:
        self.close()
