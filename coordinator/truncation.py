"""Deleting what nobody needs any more, behind the coordinator's back and not too often.

Of the events, acks and data topics that is what the core says. The status topic is needed by nobody who starts: its
newest records are kept, and the rest goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from ..schemas.errors import TopicMissing
from ..schemas.graph import DataPartition
from ..schemas.ids import SubtaskId
from ..schemas.settings import JobSettings
from ..transport.ports import Partition, Transport
from .partitions import data_partitions, event_partitions
from .protocol.effects import Truncate

EVERY_S = 5.0
"""Seconds between two truncations: each asks the broker about every partition."""
STATUS_EVERY_S = 60.0
"""Seconds between two looks at the status topic."""
STATUS_KEPT = 1_000
"""Its newest records that stay: whoever asked for something reads the reply long before it is that old."""


class Truncation:
    """Truncation of a job's logs in the background: only the newest request counts, and a failed one is repeated."""

    def __init__(
        self,
        settings: JobSettings,
        transport: Transport,
        submit: Callable[[Callable[[], None]], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._submit = submit
        self._now = now
        self._events: Mapping[SubtaskId, Partition] = event_partitions(settings)
        self._data: Mapping[DataPartition, Partition] = data_partitions(settings)
        self._acks = Partition(settings.topics.acks, 0)
        self._status = Partition(settings.topics.status, 0)
        self._topic_ids: Mapping[str, str] = {}
        self._lock = threading.Lock()
        self._wanted: Truncate | None = None
        self._next_at = 0.0
        self._status_at = now() + STATUS_EVERY_S
        self._running = False

    def begin(self, topic_ids: Mapping[str, str]) -> None:
        """Set the ids of the topics that may be truncated: those of a recreated job have others."""
        self._topic_ids = topic_ids

    def want(self, wanted: Truncate) -> None:
        with self._lock:
            self._wanted = wanted
        self.run_due()

    def run_due(self) -> None:
        """Begin what is due. Must be called each second, so that the last request of a busy time is not forgotten."""
        with self._lock:
            now = self._now()
            due = now >= self._next_at if self._wanted is not None else now >= self._status_at
            if self._running or not due:
                return
            self._running = True
        self._submit(self._run)

    def _run(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
        try:
            if wanted is not None:
                self._truncate(wanted)
                wanted = None
            if self._now() >= self._status_at:
                self._status_at = self._now() + STATUS_EVERY_S
                self._trim_status()
        finally:
            with self._lock:
                self._wanted = self._wanted or wanted
                self._next_at = self._now() + EVERY_S
                self._running = False

    def _truncate(self, wanted: Truncate) -> None:
        positions = {self._events[subtask]: offset for subtask, offset in wanted.events.items()}
        positions |= {self._data[partition]: offset for partition, offset in wanted.data.items()}
        there = self._transport.describe_topics(self._topic_ids)
        other = [name for name, i in self._topic_ids.items() if name not in there or there[name].topic_id != i]
        if other:  # mutant: truncates-what-has-the-name-now
            raise TopicMissing(
                f"nothing is truncated: {', '.join(other)} is gone, or is another topic than at the start"
            )
        self._transport.truncate({**positions, self._acks: wanted.acks})

    def _trim_status(self) -> None:
        there = self._transport.offsets([self._status])[self._status]
        if there.end - there.begin > 2 * STATUS_KEPT:
            self._transport.truncate({self._status: there.end - STATUS_KEPT})
