"""Channels: which records of an upstream's subtasks count under one Start (protocol, section 9).

An *upstream* is an operator that feeds this one. Its records come through one partition of a data topic, in which each
of its subtasks, a *sender*, has a channel. A channel has a position: older ranges, then an open one. In a range the
frames of the attempt and generation that it names count, and nothing but frames and the end; after the open position
those of the own generation. Records below, between, or of another generation belong to earlier attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...schemas.data import DataRecord
from ...schemas.events import Start
from ...schemas.ids import NO_ATTEMPT, Generation, SubtaskId
from ...schemas.state import OPEN_END, ChannelPosition, Segment, Sender
from .drop_reasons import Dropped


class Channel:
    """One sender's records. Its position only rises."""

    __slots__ = ("_expected", "_from", "ended", "generation", "position", "ranges", "sender")

    def __init__(self, sender: SubtaskId, named: ChannelPosition, generation: Generation) -> None:
        self.sender = sender
        self.generation = generation
        """Whose frames count behind the open position: the reader's own."""
        opened = next((s.begin for s in named.segments if s.end == OPEN_END), None)
        self.ranges = deque(s for s in named.segments if s.end > s.begin)
        """Not yet read to their end; in order, disjoint, all below the open position."""
        self.ended = opened is None and not self.ranges
        """The sender has finished: nothing more comes."""
        behind = max((s.end for s in self.ranges), default=0)
        self.position = max(opened, behind) if opened is not None else behind
        """Where the open part begins, and from then on the next offset in it that counts."""
        self._from: tuple[int, int, int] | None = _origin(self.ranges[0]) if self.ranges else None
        self._expected = named.sequence if self.ranges else 0  # mutant: restored-sequences-begin-anew

    @property
    def next_position(self) -> int:
        return self.ranges[0].begin if self.ranges else self.position

    def refusal(self, offset: int, sender: Sender) -> Dropped | None:
        """Why a record at ``offset`` does not count for this channel; None where it does."""
        while self.ranges and offset >= self.ranges[0].end:
            self.ranges.popleft()
        if self.ranges:
            if offset < self.ranges[0].begin:  # mutant: between-ranges-counts
                return Dropped.OUTSIDE_RANGES
            # mutant: anybodys-range
            return None if _origin(self.ranges[0]) == _origin(sender) else Dropped.OTHER_GENERATION
        if self.ended or offset < self.position:
            return Dropped.ALREADY_READ
        # mutant: old-generations-count
        return None if sender.full_generation == self.generation else Dropped.OTHER_GENERATION

    def in_range(self, offset: int) -> bool:
        """Whether ``offset`` lies in an older range; asked behind :meth:`refusal`."""
        return bool(self.ranges) and offset >= self.ranges[0].begin

    def due(self, sender: Sender) -> int:
        """Sequence that the next record of that attempt and generation must carry."""
        return self._expected if self._from == _origin(sender) else 0

    def advance(self, offset: int, sender: Sender, sequence: int) -> None:
        """The record at ``offset`` is done with."""
        self._from, self._expected = _origin(sender), sequence + 1
        if self.in_range(offset):
            first = self.ranges[0]
            rest = Segment(offset + 1, first.end, first.epoch, first.generation, first.attempt)
            if rest.begin < rest.end:
                self.ranges[0] = rest  # mutant: whole-ranges-named-again
            else:
                self.ranges.popleft()
        else:
            self.position = offset + 1

    def end(self) -> None:
        self.ended = True
        self.ranges.clear()

    def named(self) -> ChannelPosition:
        """Where it stands: what a snapshot taken now must name."""
        if self.ended:
            return ChannelPosition(str(self.sender), (), 0)
        # Which attempt will write there is not known yet.
        opened = Segment(self.position, OPEN_END, *self.generation, attempt=NO_ATTEMPT)
        if self.ranges:
            begun = self._from == _origin(self.ranges[0])
        else:
            begun = self._from is not None and self._from[:2] == self.generation
        return ChannelPosition(
            str(self.sender),
            (*self.ranges, opened),  # mutant: ranges-not-named-again
            self._expected if begun else 0,
        )


class Channels:
    """Every channel into a subtask, and how far each data partition has been read."""

    def __init__(self, start: Start, senders: Sequence[SubtaskId]) -> None:
        named = {position.channel: position for position in start.data_positions}
        self.by_sender = {s: Channel(s, named[str(s)], start.full_generation) for s in senders}
        self.positions: dict[str, int] = {}
        """By upstream operator: the next offset of its data partition to be read."""
        self.paused: set[str] = set()
        """Upstream operators whose partition is not read at the moment."""
        for upstream in self.upstreams:
            self.positions[upstream] = min((c.next_position for c in self.of(upstream) if not c.ended), default=0)

    @property
    def upstreams(self) -> list[str]:
        return list(dict.fromkeys(sender.operator for sender in self.by_sender))

    def of(self, upstream: str) -> list[Channel]:
        return [channel for sender, channel in self.by_sender.items() if sender.operator == upstream]

    @property
    def open(self) -> set[SubtaskId]:
        """Senders that have not ended."""
        return {sender for sender, channel in self.by_sender.items() if not channel.ended}

    @property
    def ended(self) -> bool:
        """Every sender has; also where there is none."""
        return all(channel.ended for channel in self.by_sender.values())

    def channel_of(self, upstream: str, record: DataRecord) -> Channel | None:
        sender = record.sender.subtask_id
        return self.by_sender.get(sender) if sender.operator == upstream else None

    def named(self) -> tuple[ChannelPosition, ...]:
        # mutant: one-position-for-all-channels, names-the-neighbours-position
        return tuple(channel.named() for channel in self.by_sender.values())


def closed(named: ChannelPosition, end: int, by: Sender, *, ended: bool) -> ChannelPosition:
    """A position named by an unaligned snapshot, closed at ``end``: where the barrier (or the sender's end) stands.

    ``by`` is who wrote that; what lies between belongs to the checkpoint as a range, and the next part begins behind.
    """
    *closed, opened = named.segments
    if end > opened.begin:  # mutant: range-forgotten-at-its-barrier
        closed.append(Segment(opened.begin, end, by.epoch, by.generation, by.attempt))
    if not ended:
        # Behind the barrier, which stands at ``end`` and is no record to handle.
        closed.append(Segment(end + 1, OPEN_END, opened.epoch, opened.generation, NO_ATTEMPT))
    return ChannelPosition(named.channel, tuple(closed), named.sequence)


def _origin(who: Segment | Sender) -> tuple[int, int, int]:
    return who.epoch, who.generation, who.attempt
