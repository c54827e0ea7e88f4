"""One numbered sequence of events towards a subtask, and how far it has been handled.

Under the policies ``replay`` and ``global`` a stream lives as long as the epoch and all attempts of the subtask share
it: what was sent through a dead attempt's gateway belongs to the successor. Under ``reset`` each attempt has its own.
A future is a view: (stream, sequence). So a million outstanding futures cost the stream two numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...schemas.errors import EventNotHandled
from ...schemas.events import EventFrame
from ...schemas.frames import pack, split
from ...schemas.ids import SubtaskId


class EventStream:
    """Sequences: handled_through <= appended_through <= next_sequence; a failed stream never moves again."""

    __slots__ = ("appended_through", "epoch", "failure", "handled_through", "missing", "next_sequence", "subtask")

    def __init__(self, subtask: SubtaskId, epoch: int) -> None:
        self.subtask = subtask
        self.epoch = epoch
        self.next_sequence = 0
        """Sequence of the next event that user code sends."""
        self.appended_through = 0
        """Sequence of the first event that no frame in the log (or on its way there) holds."""
        self.handled_through = 0
        """Sequence of the first event not reported handled; futures below it are settled."""
        self.missing = -1
        """Sequence of the event that the last attempt which failed so missed in the log; -1: none has."""
        self.failure: EventNotHandled | None = None
        """Why events from ``handled_through`` on will not be reported handled."""

    def accept(self, events: Sequence[bytes], attempt: int, *, events_max: int, bytes_max: int) -> list[EventFrame]:
        """Numbers ``events`` and packs them into frames."""
        frames = []
        for run in split(events, events_max=events_max, bytes_max=bytes_max):
            frames.append(EventFrame(self.epoch, attempt, self.next_sequence, *pack(run)))
            self.next_sequence += len(run)
        return frames

    def settle(self, handled_through: int) -> bool:
        """Whether that was news. A claim beyond what was appended is not believed."""
        if self.failure is not None or not self.handled_through < handled_through <= self.appended_through:
            return False
        self.handled_through = handled_through
        return True

    def fail(self, failure: EventNotHandled) -> bool:
        """Whether the stream had not failed before. Whatever is unsettled settles with ``failure``."""
        if self.failure is not None:
            return False
        self.failure = failure
        return True
