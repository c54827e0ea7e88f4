"""Events to the coordinator on their way into frames (protocol, sections 3 and 8)."""

from __future__ import annotations

from ...schemas.acks import OperatorEventFrame
from ...schemas.frames import pack
from ...schemas.state import Sender

_LENGTH_BYTES = 4


class Outbox:
    """The current frame of one attempt under one Start; sequences begin at 0 with it."""

    __slots__ = ("_bytes", "_bytes_max", "_events", "_events_max", "belongs_to", "sender", "sequence")

    def __init__(self, sender: Sender, belongs_to: int, *, events_max: int, bytes_max: int) -> None:
        self.sender = sender
        self.belongs_to = belongs_to
        """Changes only while the current frame is empty."""
        self.sequence = 0
        """Of the first event in the current frame."""
        self._events: list[bytes] = []
        self._bytes = 0
        self._events_max, self._bytes_max = events_max, bytes_max

    @property
    def sent_sequence(self) -> int:
        """Sequence of the next event."""
        return self.sequence + len(self._events)

    @property
    def bytes_waiting(self) -> int:
        return self._bytes

    def add(self, event: bytes) -> list[OperatorEventFrame] | None:
        """Takes an event; the frames that are full by that, None for none."""
        size = len(event) + _LENGTH_BYTES
        frames = None
        if self._events and self._bytes + size > self._bytes_max:
            frames = self.take()
        self._events.append(event)
        self._bytes += size
        if len(self._events) >= self._events_max or self._bytes >= self._bytes_max:
            frames = (frames or []) + self.take()
        return frames

    def take(self) -> list[OperatorEventFrame]:
        """The current frame, if there is anything in it."""
        if not self._events:
            return []
        packed = pack(self._events)
        frame = OperatorEventFrame(
            sender=self.sender, belongs_to=self.belongs_to, sequence=self.sequence,
            count=packed.count, lengths=packed.lengths, payload=packed.payload,
        )  # fmt: skip
        self.sequence += packed.count
        self._events, self._bytes = [], 0
        return [frame]
