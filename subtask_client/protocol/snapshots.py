"""The subtask's part in checkpoints under one Start: markers, cuts, uploads, notices (protocol, sections 5 and 7)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...schemas.acks import CheckpointAck
from ...schemas.events import Start
from ...schemas.ids import SubtaskId
from ...schemas.state import ChannelPosition, Segment, Sender, StateHandle
from .channels import closed

_UNSETTLED_MAX = 1_024
"""Checkpoints whose notice is awaited; a coordinator settles each, so only a broken one gets near this bound."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a snapshot stands: everything its ack says, but for the state and what was sent while taking it."""

    checkpoint_id: int
    event_position: int
    event_ranges: tuple[Segment, ...]
    handled_through: int
    finished: bool
    inputs_ended: bool = False
    data_positions: tuple[ChannelPosition, ...] = ()

    def ack(self, sender: Sender, state: StateHandle | None, sent_sequence: int, duration_ms: int) -> CheckpointAck:
        return CheckpointAck(
            sender=sender, checkpoint_id=self.checkpoint_id, state=state, event_position=self.event_position,
            event_ranges=self.event_ranges, handled_through=self.handled_through, sent_sequence=sent_sequence,
            data_positions=self.data_positions, finished=self.finished, duration_ms=duration_ms,
            inputs_ended=self.inputs_ended,
        )  # fmt: skip

    def closed(self, who: SubtaskId | None, end: int, by: Sender, *, ended: bool) -> Cut:
        """An unaligned cut with the range of one channel closed at ``end``, where its barrier or marker stands."""
        if who is not None:
            positions = (
                closed(named, end, by, ended=ended) if named.channel == str(who) else named
                for named in self.data_positions
            )
            return replace(self, data_positions=tuple(positions))
        ranges = self.event_ranges
        if end > self.event_position:
            ranges += (Segment(self.event_position, end, by.epoch, by.generation, by.attempt),)
        # The marker stands at ``end``: the range ends before it, and reading goes on behind it.
        return replace(self, event_ranges=ranges, event_position=end + 1)


@dataclass(slots=True)
class Part:
    """A snapshot on its way to its ack: that waits for state storage, and for the channels that are behind."""

    cut: Cut
    sent_sequence: int
    state: StateHandle | None
    elapsed_ms: int
    missing: set[SubtaskId | None]
    """Channels that have not delivered; None is the events partition."""
    storing: bool

    @property
    def location(self) -> str | None:
        return None if self.state is None else self.state.location


class Checkpoints:
    """Which checkpoints this attempt, under this Start, has begun, and what became of them."""

    def __init__(self, start: Start) -> None:
        self.next_checkpoint_id = start.next_checkpoint_id
        """Markers below it are dead."""
        self.begun = start.next_checkpoint_id - 1
        """Highest id whose snapshot has been taken; never falls, never below ``next_checkpoint_id - 1``."""
        self.cut: Cut | None = None
        """Of the snapshot being taken at this moment; its id is above ``begun``."""
        self.missing: set[SubtaskId | None] = set()
        """Channels that have not delivered the snapshot being taken."""
        self.savepoint = False
        """Whether that is a savepoint."""
        self.parts: dict[int, Part] = {}
        """Not acked yet, by id; all of them begun and unsettled."""
        self.unsettled: dict[int, bool] = {}
        """Begun, no notice yet; by id in rising order: whether the ack said finished."""
        self.completed_through = start.next_checkpoint_id - 1
        """Highest id whose completion was notified, or that a restore implies."""
        self._aborted_ahead: set[int] = set()

    @property
    def belongs_to(self) -> int:
        """Lowest id whose snapshot can contain what is sent now; while snapshot n is taken that is at most n."""
        return max(self.begun + 1, self.next_checkpoint_id)

    @property
    def locations(self) -> list[str]:
        """Where unacked states are being stored."""
        return [part.location for part in self.parts.values() if part.location is not None]

    def wants(self, checkpoint_id: int) -> bool:
        """Whether a marker or barrier counts: not dead, not begun before, not aborted already."""
        return checkpoint_id > self.begun and checkpoint_id not in self._aborted_ahead

    def begin(self, cut: Cut, missing: set[SubtaskId | None], *, savepoint: bool) -> None:
        self.cut, self.missing, self.savepoint = cut, missing, savepoint

    def taken(self) -> Cut:
        """The snapshot has returned: from here on, what is sent belongs to the next checkpoint."""
        cut = self.cut
        assert cut is not None
        self.cut = None
        self.begun = cut.checkpoint_id
        self.unsettled[cut.checkpoint_id] = cut.finished
        self._aborted_ahead = {n for n in self._aborted_ahead if n > self.begun}
        while len(self.unsettled) > _UNSETTLED_MAX:
            del self.unsettled[next(iter(self.unsettled))]
        return cut

    def completed(self, checkpoint_id: int) -> bool | None:
        """Settles it; whether its ack said finished, None where the notice concerns nothing of this attempt."""
        if checkpoint_id <= self.completed_through:
            return None
        finished = self.unsettled.pop(checkpoint_id, None)
        if finished is not None:
            self.completed_through = checkpoint_id
        return finished

    def aborted(self, checkpoint_id: int) -> bool:
        """Settles it; false where this attempt never began it (its marker, should it still come, is ignored)."""
        if checkpoint_id > self.begun:
            self._aborted_ahead.add(checkpoint_id)
            if len(self._aborted_ahead) > _UNSETTLED_MAX:
                self._aborted_ahead.discard(min(self._aborted_ahead))
            return False
        return self.unsettled.pop(checkpoint_id, None) is not None


Who = SubtaskId | None
"""A channel: its sender, None for the events partition."""


@dataclass(slots=True)
class Alignment:
    """A checkpoint that waits for deliveries before its snapshot."""

    id: int
    savepoint: bool
    ends_at: float
    """Monotonic second at which it turns unaligned; infinity: never."""
    delivered: set[Who] = field(default_factory=set)
    """Blocked; never all channels at once."""
    event_position: int = 0
    """Behind the marker, once that has been read."""
    skipped_events: int | None = None
    """Lowest skipped offset of the events partition."""
    skipped: dict[str, int] = field(default_factory=dict)
    """The same of the data partitions, by upstream operator."""
