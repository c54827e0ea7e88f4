"""Events from subtasks on their way to a coordinator.

From the call of ``checkpoint_coordinator`` until its future completes, an operator's coordinator is handed nothing:
*received before n* is then as exact as *sent before n* (protocol, section 7.2). Whether a record's sender is current is
judged when the record is read; what was read before a failure is handed over ahead of it (section 4).
"""

from __future__ import annotations

from ...schemas.acks import OperatorEventFrame
from ...schemas.checkpoints import InboxEvents
from ...schemas.errors import UnreadableRecord
from ...schemas.frames import pack, unpack
from ...schemas.ids import NO_ATTEMPT, SubtaskId
from .effects import CallEvents
from .history import Checkpoint
from .state import Delivery, JobState, Slot


def receive(job: JobState, slot: Slot, frame: OperatorEventFrame) -> str | None:
    """A frame of the slot's current attempt; returns why that attempt must fail, where its frames have a hole."""
    attempt = slot.attempt
    assert attempt is not None
    if frame.sequence + frame.count <= attempt.received_through:
        job.drop("events-repeated")
        return None
    if frame.sequence != attempt.received_through:
        return (
            f"its events to the coordinator have a gap: expected sequence {attempt.received_through},"
            f" read {frame.sequence}"
        )
    try:
        events = unpack(frame.count, frame.lengths, frame.payload)
    except UnreadableRecord as error:
        return f"one of its frames to the coordinator is damaged: {error}"
    attempt.received_through += frame.count
    slot.events_received += frame.count
    for pending in job.current.pending.values():
        if pending.savepoint and slot.subtask in pending.required - set(pending.acks):
            copy = InboxEvents(frame.belongs_to, frame.sequence, frame.count, frame.lengths, frame.payload)
            pending.inbox.setdefault(slot.subtask, []).append(copy)
            pending.inbox_bytes += len(frame.payload)
    subtask = slot.subtask
    if not job.has_coordinator(subtask.operator):
        job.drop("events-for-no-coordinator")
        return None
    deliver(job, CallEvents(subtask.operator, subtask.index, attempt.id, frame.belongs_to, events))
    return None


def deliver(job: JobState, delivery: Delivery) -> None:
    """Hands over now, or when the operator's coordinator has completed the checkpoint future it owes."""
    epoch = job.current
    queue = epoch.withheld.get(delivery.operator)
    if queue or any(delivery.operator in pending.uncut for pending in epoch.pending.values()):
        epoch.withheld[delivery.operator].append(delivery)
        epoch.withheld_bytes += _size(delivery)
    else:
        job.emit(delivery)


def release(job: JobState, operator: str) -> None:
    """The operator's coordinator owes no future any more."""
    queue = job.current.withheld[operator]
    while queue:
        delivery = queue.popleft()
        job.current.withheld_bytes -= _size(delivery)
        job.emit(delivery)


def _size(delivery: Delivery) -> int:
    return sum(map(len, delivery.events)) if isinstance(delivery, CallEvents) else 0


# ---- the inbox range: sent before the checkpoint that is restored, received after its cut (section 8)


def belongs_to_range(restored: Checkpoint, offset: int, frame: OperatorEventFrame) -> InboxEvents | None:
    """The part of ``frame`` that the restored checkpoint owes its coordinator, None where there is none ◆.

    That is: read at or behind the operator's inbox position, from exactly the attempt and generation that
    acknowledged, with sequences below the sent-sequence that its acknowledgement names.
    """
    subtask = frame.sender.subtask_id
    operator, snapshot = restored.operator(subtask.operator), restored.subtasks.get(subtask)
    if operator is None or snapshot is None or offset < operator.inbox_position:
        return None
    sender = (frame.sender.attempt, frame.sender.epoch, frame.sender.generation)
    if sender != (snapshot.attempt, snapshot.epoch, snapshot.generation):
        return None
    copy = InboxEvents(frame.belongs_to, frame.sequence, frame.count, frame.lengths, frame.payload)
    return below(copy, snapshot.sent_sequence)


def inherit(job: JobState, restored: Checkpoint, offset: int, frame: OperatorEventFrame) -> None:
    """Keeps what ``frame`` holds of the range, once, until its subtask is ready; one that is gone never is, and its
    events are owed nevertheless ◆. An operator may be gone since: then nobody is there to take them."""
    owed, subtask = belongs_to_range(restored, offset, frame), frame.sender.subtask_id
    if owed is None or subtask.operator not in job.settings.parallelism:
        return
    kept = job.current.inherited.setdefault(subtask, [])
    if not kept or owed.sequence >= kept[-1].sequence + kept[-1].count:
        kept.append(owed)


def below(events: InboxEvents, sequence: int) -> InboxEvents | None:
    """The events with a sequence below the given one."""
    if events.sequence >= sequence:
        return None
    if events.sequence + events.count <= sequence:
        return events
    kept = unpack(events.count, events.lengths, events.payload)[: sequence - events.sequence]
    return InboxEvents(events.belongs_to, events.sequence, *pack(kept))


def hand_inherited(job: JobState, subtask: SubtaskId) -> None:
    """The subtask's inbox range, right after its first attempt is ready and before anything newer from it ◆."""
    epoch = job.current
    slot = epoch.slots.get(subtask)
    attempt = None if slot is None else slot.attempt
    for part in epoch.inherited.pop(subtask, []):
        if job.has_coordinator(subtask.operator):
            events = unpack(part.count, part.lengths, part.payload)
            sender = NO_ATTEMPT if attempt is None else attempt.id
            job.emit(CallEvents(subtask.operator, subtask.index, sender, part.belongs_to, events))
