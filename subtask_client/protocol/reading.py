"""What of the events partition counts for one Start: ranges, epochs, attempts, sequences (protocol, section 5).

For an instance that runs under a Start the partition has three places::

    range   inside a segment that Start names: frames of the segment's epoch (and attempt), nothing else
    below   from the event position up to its own Start: frames of Start's epoch; control records are void
    live    behind its own Start: everything, as its epoch and addressee allow
"""

from __future__ import annotations

from collections import deque

from ...schemas.errors import SequenceGap
from ...schemas.events import EventFrame, FailoverPolicy, Start
from ...schemas.ids import NO_ATTEMPT
from ...schemas.state import Segment
from .drop_reasons import Dropped

SequenceKey = tuple[int, int]
"""Within what frames are numbered: (epoch, attempt), the attempt being NO_ATTEMPT except under policy ``reset``."""


class Reading:
    """How far one Start has been followed through the events partition, and what comes next."""

    def __init__(self, start: Start, offset: int) -> None:
        self.start = start
        self.offset = offset
        """Of the Start itself: behind it, records are live."""
        self.ranges = deque(s for s in start.event_ranges if s.end > s.begin)
        """Segments not yet read to their end, in order, disjoint."""
        behind_ranges = max((s.end for s in self.ranges), default=0)
        by_attempt = start.policy is FailoverPolicy.RESET
        self.open_position = offset + 1 if by_attempt else max(start.event_position, behind_ranges)
        """Where reading goes on once the ranges have been read."""
        self.by_attempt = by_attempt
        self.skipped_from: int | None = None
        """Offset of the first frame read behind the attempt's end, and so not handled; None while there is none."""
        self._skipped_through = 0
        self.own_key: SequenceKey = (start.epoch, start.attempt if by_attempt else NO_ATTEMPT)
        self._key, self._expected = self.own_key, 0
        if by_attempt and self.ranges:
            self._key = (start.expected_epoch, self.ranges[0].attempt)
            self._expected = start.expected_sequence
        elif not by_attempt:
            self._key, self._expected = (start.expected_epoch, NO_ATTEMPT), start.expected_sequence

    @property
    def next_position(self) -> int:
        """Where to read first, or next after a range."""
        return self.ranges[0].begin if self.ranges else self.open_position

    @property
    def handled_through(self) -> int:
        """Sequence of the first event, in Start's own numbering, that has not been handled."""
        return self.expected(self.own_key)

    def segment_at(self, offset: int) -> Segment | None:
        """The range that ``offset`` lies in; ranges below it are done with."""
        while self.ranges and offset >= self.ranges[0].end:
            self.ranges.popleft()
        return self.ranges[0] if self.ranges and offset >= self.ranges[0].begin else None

    def gap_behind(self, position: int) -> int | None:
        """Where to seek when nothing that counts lies between ``position`` and there; None: read on."""
        if self.segment_at(position) is not None:
            return None
        return self.next_position if self.next_position > position else None

    def left_at(self, position: int) -> tuple[Segment, ...]:
        """What remains of the ranges for a reader at ``position``."""
        return tuple(
            Segment(max(s.begin, position), s.end, s.epoch, s.generation, s.attempt)
            for s in self.ranges
            if s.end > position
        )

    def refusal(self, frame: EventFrame, segment: Segment | None) -> Dropped | None:
        """Why a frame does not count: in its range under the range's name, elsewhere under Start's own."""
        epoch, attempt = (self.start.epoch, self.start.attempt) if segment is None else (segment.epoch, segment.attempt)
        if frame.epoch != epoch:  # mutant: old-epochs-count.frames
            return Dropped.OTHER_EPOCH
        if self.by_attempt and frame.attempt != attempt:
            return Dropped.OTHER_ATTEMPT
        return None

    def key_of(self, frame: EventFrame) -> SequenceKey:
        return frame.epoch, frame.attempt if self.by_attempt else NO_ATTEMPT

    def expected(self, key: SequenceKey) -> int:
        """Sequence that the next event numbered within ``key`` must carry."""
        return self._expected if key == self._key else 0

    def due(self, key: SequenceKey) -> int:
        """Sequence that the next event numbered within ``key`` to be read must carry."""
        return self._skipped_through if self.skipped_from is not None else self.expected(key)

    def skip(self, offset: int, sequence: int) -> None:
        """A record behind the subtask's end, whose events end below ``sequence``."""
        self.skipped_from = offset if self.skipped_from is None else self.skipped_from
        self._skipped_through = sequence

    def advance(self, key: SequenceKey, sequence: int) -> None:
        """Everything numbered within ``key`` below ``sequence`` has been handled."""
        self._key, self._expected = key, sequence

    def gap(self, who: str, offset: int, expected: int, found: int, what: str) -> SequenceGap:
        """The error for ``what`` at ``offset`` not carrying the sequence that is due (section 5.4)."""
        return SequenceGap(
            f"{who}: events are missing in the events partition: expected sequence {expected} of epoch"
            f" {self.start.epoch}, but {what} at offset {offset} has {found} (own Start at offset {self.offset}, its"
            f" event position {self.start.event_position}); the log was truncated, or something else writes to it"
        )
