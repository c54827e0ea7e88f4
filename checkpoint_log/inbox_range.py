"""Events to a coordinator that a restored checkpoint owes it: its inbox range (protocol, section 8.4)."""

from __future__ import annotations

from ..schemas.acks import OperatorEventFrame
from ..schemas.checkpoints import InboxEvents
from ..schemas.errors import UnreadableRecord
from ..schemas.frames import pack, unpack
from .history import Checkpoint


def belongs_to_range(restored: Checkpoint, offset: int, frame: OperatorEventFrame) -> InboxEvents | None:
    """The part of ``frame`` that the restored checkpoint owes its coordinator, None where there is none ◆.

    That is: read at or behind the operator's inbox position, from exactly the attempt and generation that
    acknowledged, with sequences from the first one that had not been received up to the sent-sequence that its
    acknowledgement names. A damaged frame holds none.
    """
    subtask = frame.sender.subtask_id
    operator, snapshot = restored.operator(subtask.operator), restored.subtasks.get(subtask)
    if operator is None or snapshot is None or offset < operator.inbox_position:
        return None
    sender = (frame.sender.attempt, frame.sender.epoch, frame.sender.generation)
    if sender != (snapshot.attempt, snapshot.epoch, snapshot.generation):  # mutant: range-of-any-attempt
        return None
    if frame.sequence < snapshot.received_sequence:  # mutant: range-without-a-begin.below
        return None
    try:
        unpack(frame.count, frame.lengths, frame.payload)
    except UnreadableRecord:
        return None  # counted as missing, if no other frame has its events
    copy = InboxEvents(frame.belongs_to, frame.sequence, frame.count, frame.lengths, frame.payload)
    return below(copy, snapshot.sent_sequence)


def below(events: InboxEvents, sequence: int) -> InboxEvents | None:
    """The events with a sequence below the given one. Their frame is whole."""
    if events.sequence >= sequence:  # mutant: whole-inbox-range.beyond
        return None
    if events.sequence + events.count <= sequence:  # mutant: whole-inbox-range.contained
        return events
    kept = unpack(events.count, events.lengths, events.payload)[: sequence - events.sequence]
    return InboxEvents(events.belongs_to, events.sequence, *pack(kept))
