"""Which acks are acceptable (protocol, section 7.6): those that a restore could be made of.

An ack that is damaged, forged, or stands behind a loss fails its attempt. So nothing of it reaches the checkpoint log,
where it would keep every later start from restoring the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...schemas.acks import CheckpointAck
from ...schemas.ids import SubtaskId
from ...schemas.state import OPEN_END, Segment, StateHandle, ascend, attempt_location
from .state import JobState, Slot


def refusal(job: JobState, slot: Slot, ack: CheckpointAck) -> str | None:
    """Return why the ack of the slot's current attempt is not acceptable; None if it is."""
    why = _events(job, slot, ack) or _ranges(job, slot, ack) or _channels(job, slot.subtask, ack) or _state(ack)
    if why is None:
        return None
    return (
        f"its ack of checkpoint {ack.checkpoint_id} {why}: records of {job.settings.topics.acks} were lost or damaged,"
        " or something else writes to it"
    )


def _events(job: JobState, slot: Slot, ack: CheckpointAck) -> str | None:
    """Every event that the state contains stands before the ack, and was handed over or will be."""
    attempt, pending = slot.attempt, job.current.pending.get(ack.checkpoint_id)
    assert attempt is not None
    if ack.sent_sequence > attempt.received_through:  # mutant: ack-ahead-of-its-events
        return f"claims {ack.sent_sequence} events to the coordinator, and {attempt.received_through} were read"
    begin = 0 if pending is None else pending.received.get(slot.subtask, 0)
    if ack.sent_sequence < begin:
        return f"claims {ack.sent_sequence} events to the coordinator, and {begin} were read before its trigger"
    if not 0 <= ack.handled_through <= slot.sent_through:
        return f"claims {ack.handled_through} handled events, and {slot.sent_through} were sent"
    return None


def _ranges(job: JobState, slot: Slot, ack: CheckpointAck) -> str | None:
    """No range begins below what the attempt was given, and none ends above its position."""
    restored = job.current.restored
    snapshot = None if restored is None else restored.subtasks.get(slot.subtask)
    given = () if snapshot is None else snapshot.event_ranges
    begin = min((segment.begin for segment in given), default=slot.begin_position)
    if not ascend(ack.event_ranges, min(begin, slot.begin_position), ack.event_position):
        return f"names ranges {_shown(ack.event_ranges)} of its events partition below position {ack.event_position}"
    if ack.event_position < slot.begin_position:
        return f"names position {ack.event_position}, and its epoch began at {slot.begin_position}"
    return None


def _channels(job: JobState, subtask: SubtaskId, ack: CheckpointAck) -> str | None:
    """Each channel into the subtask at most once, and no other."""
    missing = {str(sender) for sender in job.settings.graph.channels_into(subtask)}
    for position in ack.data_positions:
        if position.channel not in missing:
            return f"names channel {position.channel!r}, which is none of {subtask} or named twice"
        missing.discard(position.channel)
        if not position.in_order:
            return f"names ranges {_shown(position.segments)} of channel {position.channel}"
    return None


def _state(ack: CheckpointAck) -> str | None:
    """A state is in the ack, or where this attempt alone stores it."""
    state = ack.state
    if state is None or (state.location is None and state.inline is not None and len(state.inline) == state.size):
        return None
    if state.inline is None and state.location == attempt_location(ack.checkpoint_id, ack.sender) and state.size >= 0:
        return None
    return f"names a state that is not its own ({_where(state)})"


def _where(state: StateHandle) -> str:
    inline = "none" if state.inline is None else f"{len(state.inline)} bytes"
    return f"location {state.location!r}, inline {inline}, size {state.size}"


def _shown(segments: Sequence[Segment]) -> str:
    shown = ", ".join(f"{s.begin} to {'open' if s.end == OPEN_END else s.end}" for s in segments[:8])
    return f"[{shown}{', ...' if len(segments) > 8 else ''}]"
