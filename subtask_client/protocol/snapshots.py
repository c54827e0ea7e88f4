"""The subtask's part in checkpoints under one Start: markers, cuts, uploads, notices (protocol, sections 5 and 7)."""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.acks import CheckpointAck
from ...schemas.events import Start, TriggerCheckpoint
from ...schemas.state import Segment, Sender, StateHandle, state_location

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

    def ack(self, sender: Sender, state: StateHandle | None, sent_sequence: int, duration_ms: int) -> CheckpointAck:
        return CheckpointAck(
            sender=sender, checkpoint_id=self.checkpoint_id, state=state, event_position=self.event_position,
            event_ranges=self.event_ranges, handled_through=self.handled_through, sent_sequence=sent_sequence,
            data_positions=(), finished=self.finished, duration_ms=duration_ms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Upload:
    """A snapshot that waits for state storage."""

    cut: Cut
    location: str
    size: int
    sent_sequence: int


class Checkpoints:
    """Which checkpoints this attempt, under this Start, has begun, and what became of them."""

    def __init__(self, start: Start) -> None:
        self.next_checkpoint_id = start.next_checkpoint_id
        """Markers below it are dead."""
        self.begun = start.next_checkpoint_id - 1
        """Highest id whose snapshot has been taken; never falls, never below ``next_checkpoint_id - 1``."""
        self.cut: Cut | None = None
        """Of the snapshot being taken at this moment; its id is above ``begun``."""
        self.uploads: dict[int, Upload] = {}
        """By id; all of them begun and unsettled."""
        self.unsettled: dict[int, bool] = {}
        """Begun, no notice yet; by id in rising order: whether the ack said finished."""
        self.completed_through = start.next_checkpoint_id - 1
        """Highest id whose completion was told, or that a restore implies."""
        self._aborted_ahead: set[int] = set()

    @property
    def belongs_to(self) -> int:
        """Lowest id whose snapshot can contain what is sent now; while snapshot n is taken that is at most n."""
        return max(self.begun + 1, self.next_checkpoint_id)

    def wants(self, marker: TriggerCheckpoint) -> bool:
        """Whether a marker begins a snapshot: not dead, not begun before, not aborted already."""
        return marker.checkpoint_id > self.begun and marker.checkpoint_id not in self._aborted_ahead

    def begin(self, cut: Cut) -> None:
        self.cut = cut

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


def location_of(checkpoint_id: int, sender: Sender) -> str:
    """Where this attempt's state is stored: nobody else ever writes it (section 7.6)."""
    owner = f"{sender.operator}-{sender.subtask}-attempt-{sender.attempt}"
    return state_location(checkpoint_id, sender.epoch, owner)
