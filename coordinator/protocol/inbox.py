"""Events from subtasks on their way to a coordinator.

From the call of ``checkpoint_coordinator`` until its future completes, an operator's coordinator is handed nothing:
*received before n* is then as exact as *sent before n* (protocol, section 7.2). Whether a record's sender is current is
judged when the record is read; what was read before a failure is handed over ahead of it (section 4).
"""

from __future__ import annotations

from ...checkpoint_log.history import Checkpoint
from ...checkpoint_log.inbox_range import belongs_to_range
from ...schemas.acks import AcksRecord, OperatorEventFrame
from ...schemas.checkpoints import InboxEvents
from ...schemas.errors import UnreadableRecord
from ...schemas.frames import unpack
from ...schemas.ids import NO_ATTEMPT, SubtaskId
from ...schemas.status import Ending
from .effects import CallComplete, CallEvents, ReadAcks
from .state import Delivery, Dropped, HandingOver, Inherited, JobState, Slot, SlotPhase


def receive(job: JobState, slot: Slot, frame: OperatorEventFrame) -> str | None:
    """A frame of the slot's current attempt; returns why that attempt must fail, where its frames have a hole."""
    attempt = slot.attempt
    assert attempt is not None
    if frame.sequence + frame.count <= attempt.received_through:
        job.drop(Dropped.EVENTS_REPEATED)
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
    job.current.event_at = job.now
    for pending in job.current.pending.values():
        if pending.savepoint and slot.subtask in pending.required - set(pending.acks):
            copy = InboxEvents(frame.belongs_to, frame.sequence, frame.count, frame.lengths, frame.payload)
            pending.inbox.setdefault(slot.subtask, []).append(copy)
            pending.inbox_bytes += bytes_of(copy)
    subtask = slot.subtask
    if not job.has_coordinator(subtask.operator):
        job.drop(Dropped.EVENTS_FOR_NO_COORDINATOR)
        return None
    deliver(job, CallEvents(subtask.operator, subtask.index, attempt.id, frame.belongs_to, events))
    return None


def deliver(job: JobState, delivery: Delivery) -> None:
    """Hands over now, or when the operator's coordinator has completed the checkpoint future it owes."""
    epoch = job.current
    queue = epoch.withheld.get(delivery.operator)
    # mutant: handed-over-at-once
    if queue or any(delivery.operator in pending.uncut for pending in epoch.pending.values()):
        epoch.withheld[delivery.operator].append(delivery)
        epoch.withheld_bytes += size_of(delivery)
    else:
        job.emit(delivery)


def is_full(job: JobState) -> bool:
    """Whether enough is withheld from coordinators that owe a checkpoint future: the rest waits in the log."""
    epoch = job.epoch
    if epoch is None or not epoch.withheld_bytes:  # asked before every record that is read
        return False
    return epoch.withheld_bytes > job.settings.held_bytes_max  # mutant: withheld-without-bound


def release(job: JobState, operator: str) -> None:
    """The operator's coordinator owes no future any more."""
    queue = job.current.withheld[operator]
    while queue:
        delivery = queue.popleft()
        job.current.withheld_bytes -= size_of(delivery)
        job.emit(delivery)


def size_of(delivery: Delivery) -> int:
    """Return the bytes of its events; each counts, also an empty one."""
    return sum(map(len, delivery.events)) + 4 * len(delivery.events) if isinstance(delivery, CallEvents) else 0


def bytes_of(events: InboxEvents) -> int:
    """Return what a copy of them takes in memory."""
    return len(events.payload) + len(events.lengths)


# ---- the inbox range: sent before the checkpoint that is restored, received after its cut (section 8)


def inherit(job: JobState, restored: Checkpoint, offset: int, frame: OperatorEventFrame) -> None:
    """Keeps what ``frame`` holds of the range, once and in order, until its subtask is ready; one that is gone never
    is, and its events are owed nevertheless ◆. An operator may be gone since: then nobody is there to take them."""
    owed, subtask = belongs_to_range(restored, offset, frame), frame.sender.subtask_id
    if owed is None or subtask.operator not in job.settings.parallelism:
        return None
    begin, epoch = restored.subtasks[subtask].received_sequence, job.current
    inherited = epoch.inherited.setdefault(subtask, Inherited(begin))  # mutant: events-of-the-gone-dropped
    if owed.sequence != inherited.through:  # mutant: range-without-a-begin.due
        repeated = owed.sequence < inherited.through
        return job.drop(Dropped.INHERITED_EVENTS_REPEATED if repeated else Dropped.INHERITED_EVENTS_BEHIND_A_GAP)
    inherited.through += owed.count
    if not _stay_in_the_log(job):
        inherited.parts.append(owed)
        epoch.inherited_bytes += bytes_of(owed)
        if _stay_in_the_log(job):
            for each in epoch.inherited.values():
                each.parts.clear()
    return None


def _stay_in_the_log(job: JobState) -> bool:
    """Whether the inbox ranges are too large to be kept until their subtasks are ready."""
    return job.current.inherited_bytes > job.settings.held_bytes_max  # mutant: ranges-without-bound


def lost(job: JobState) -> str | None:
    """Return why the job ends: some of the restored checkpoint's inbox ranges is gone. None if all is there."""
    epoch, restored = job.current, job.current.restored
    if restored is None:
        return None
    for subtask, snapshot in restored.subtasks.items():
        if subtask.operator not in job.settings.parallelism or not job.has_coordinator(subtask.operator):
            continue  # nobody is there to take them
        inherited = epoch.inherited.get(subtask)
        due = snapshot.received_sequence if inherited is None else inherited.through
        if due < snapshot.sent_sequence:
            return _lost(job, restored, subtask, due)
    return None


def _lost(job: JobState, restored: Checkpoint, subtask: SubtaskId, due: int) -> str:
    snapshot = restored.subtasks[subtask]
    return (
        f"checkpoint {restored.id} of job {job.settings.name} cannot be restored: events {due} to"
        f" {snapshot.sent_sequence} of {subtask}, attempt {snapshot.attempt}, belong to it and are not in"
        f" {job.settings.topics.acks} from offset {restored.inbox_position} on. Records there were lost or damaged."
        f" Start from another checkpoint (--from-checkpoint N; penstock checkpoints {job.settings.name} lists them),"
        " or with --fresh"
    )


def hand_inherited(job: JobState, subtask: SubtaskId) -> None:
    """The subtask's inbox range, right after its first attempt is ready and before anything newer from it ◆."""
    epoch = job.current
    if subtask in epoch.inherited and _stay_in_the_log(job):
        epoch.inherited_due.add(subtask)
        return
    inherited = epoch.inherited.pop(subtask, None)
    for part in () if inherited is None else inherited.parts:
        _hand(job, subtask, part)
    notify_restored(job, subtask.operator)


def _hand(job: JobState, subtask: SubtaskId, part: InboxEvents) -> None:
    if job.has_coordinator(subtask.operator):  # mutant: no-inbox-range
        events = unpack(part.count, part.lengths, part.payload)
        slot = job.current.slots.get(subtask)
        sender = NO_ATTEMPT if slot is None or slot.attempt is None else slot.attempt.id
        job.emit(CallEvents(subtask.operator, subtask.index, sender, part.belongs_to, events))


def gathers(job: JobState) -> bool:
    """Whether ranges stayed in the log, and some of their subtasks have yet to say Hello."""
    epoch = job.current
    if not epoch.inherited or not _stay_in_the_log(job):
        return False
    absent = (s for s in epoch.inherited if s in epoch.slots and epoch.slots[s].phase is SlotPhase.ABSENT)
    return any(s not in job.registry.waiting for s in absent)


def put_off(job: JobState, subtask: SubtaskId) -> bool:
    """Whether its Start waits for those who :func:`gathers` names: the log is read once for many, not for each."""
    epoch = job.current
    if subtask not in epoch.inherited:
        return False
    if epoch.inherited_at is None:
        epoch.inherited_at = job.now + job.settings.heartbeat_interval
    return job.now < epoch.inherited_at


def start_at(job: JobState, subtask: SubtaskId) -> float:
    """Return the monotonic second at which its Start is due, as far as its inbox range decides that."""
    at = job.current.inherited_at if subtask in job.current.inherited else None
    return 0.0 if at is None else at


def read_again(job: JobState) -> bool:
    """Reads the ranges that stayed in the log, of all whose turn it is, at once; whether it is anybody's turn."""
    epoch = job.current
    if not epoch.inherited_due:
        return False
    restored = epoch.restored
    assert restored is not None
    job.rereading = HandingOver({s: restored.subtasks[s].received_sequence for s in sorted(epoch.inherited_due)})
    epoch.inherited_due.clear()
    epoch.inherited_at = None
    job.emit(ReadAcks(restored.inbox_position, epoch.inherited_end))
    return True


def reread(job: JobState, under_way: HandingOver, offset: int, record: AcksRecord) -> None:
    """Hands over what the record holds of the ranges: nothing is kept."""
    restored = job.current.restored
    assert restored is not None
    if not isinstance(record, OperatorEventFrame) or record.sender.subtask_id not in under_way.due:
        return
    owed, subtask = belongs_to_range(restored, offset, record), record.sender.subtask_id
    if owed is not None and owed.sequence == under_way.due[subtask]:
        under_way.due[subtask] += owed.count
        _hand(job, subtask, owed)


def reread_end(job: JobState, under_way: HandingOver) -> None:
    """The job ends where an event is gone that was there when the epoch began."""
    epoch = job.current
    assert epoch.restored is not None
    job.rereading = None
    lost = [s for s, due in under_way.due.items() if due < epoch.inherited[s].through]
    if lost:
        job.due_end = Ending.FAILED, _lost(job, epoch.restored, lost[0], under_way.due[lost[0]])
        return
    for subtask in under_way.due:
        del epoch.inherited[subtask]
    for operator in sorted({subtask.operator for subtask in under_way.due}):
        notify_restored(job, operator)


def notify_restored(job: JobState, operator: str) -> None:
    """Tell a coordinator that the restored checkpoint is complete, once it has all events that belong to it ◆.

    The process before may have died between the commit and the notice: what the coordinator does behind a notice,
    such as a commit elsewhere, has this one safe place after a restore.
    """
    epoch = job.current
    if operator in epoch.unnotified and not any(subtask.operator == operator for subtask in epoch.inherited):
        epoch.unnotified.discard(operator)
        assert epoch.restored is not None
        job.emit(CallComplete(operator, epoch.restored.id))  # mutant: restored-and-not-notified
