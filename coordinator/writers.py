"""The open ends of a job's topics, as one coordinator instance holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ..schemas.codec import encode
from ..schemas.events import EventFrame, EventsRecord
from ..transport.ports import FencedLog, Writer
from .best_effort_writer import SideWriter


class Outstanding:
    """Counts appends that have no outcome yet. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._appended = self._settled = 0
        self._waits: tuple[int, Callable[[], object]] | None = None

    def began(self) -> None:
        with self._lock:
            self._appended += 1

    def ended(self) -> None:
        act = None
        with self._lock:
            self._settled += 1
            if self._waits is not None and self._settled >= self._waits[0]:
                (_, act), self._waits = self._waits, None
        if act is not None:
            act()

    def behind(self, act: Callable[[], object]) -> None:
        """Calls ``act`` once everything appended so far has its outcome, from any thread; at once where it has.

        A later call takes the place of one that still waits, behind what that one waited for: else a broker that
        always has something to answer would put it off for ever.
        """
        with self._lock:
            if self._settled < self._appended:
                self._waits = self._appended if self._waits is None else self._waits[0], act
                return
        act()


class NoticeEncoder:
    """Encodes records for subtasks: all are sent the same notice, and most the same marker, so it is encoded once."""

    def __init__(self) -> None:
        self._last: tuple[EventsRecord | None, bytes] = None, b""

    def __call__(self, record: EventsRecord) -> bytes:
        """Of frames from any thread, of others from one."""
        if isinstance(record, EventFrame):
            return encode(record)
        if record != self._last[0]:
            self._last = record, encode(record)
        return self._last[1]


@dataclass
class Logs:
    """What a coordinator writes with."""

    checkpoints: FencedLog
    events: Writer
    side: SideWriter
    events_writer_number: int = 0
    """Which writer of events this is; what an earlier one could not append is known."""
    events_failed: int = -1
    """Number of the newest writer from which something was not certainly taken."""
    outstanding: Outstanding = field(default_factory=Outstanding)
    """Of appends to events partitions, in all lives."""

    def replace_events(self, writer: Writer) -> None:
        self.events.close(0.0)
        self.events = writer
        self.events_writer_number += 1

    def events_stand(self, timeout_s: float) -> bool:
        """Whether the broker has certainly taken all that the writer of events was given; waits for that so long."""
        return self.events.flush(timeout_s) and self.events_failed < self.events_writer_number
