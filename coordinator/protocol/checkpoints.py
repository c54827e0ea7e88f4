"""A checkpoint from its trigger to its completion or abort (protocol, section 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...checkpoint_log.history import Checkpoint, keyed
from ...checkpoint_log.inbox_range import below
from ...schemas.acks import CheckpointAck, CheckpointDecline
from ...schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointLogRecord,
    CommandExecuted,
    EpochClaimed,
    InputSnapshot,
    JobStopping,
    OperatorSnapshot,
    SubtaskSnapshot,
)
from ...schemas.errors import TaskFinished
from ...schemas.events import CheckpointAborted, TriggerCheckpoint
from ...schemas.events import CheckpointCompleted as CompletedNotice
from ...schemas.ids import SubtaskId
from ...schemas.sanitize import recordable
from ...schemas.state import StateHandle, state_location
from . import commands, feeds, inbox, retention, sending, stops
from .after_commit import Complete, CompleteBatch, CompleteEarlierBatch, NoFollowUp
from .effects import (
    Append,
    CallAborted,
    CallCheckpoint,
    CallComplete,
    DeleteStates,
    LookAtEnds,
    StoreState,
)
from .gateway import GatewayState
from .inputs import FutureCompleted, FutureFailed, StateNotStored, StateStored
from .pending import Pending, Step
from .snapshot_parts import parts_of
from .state import Dropped, JobState, SavepointRequest, Slot, SlotPhase
from .timeline import Over
from .waiting import waits_for

IDS_RESERVED = 100
"""How many checkpoint ids an epoch reserves ahead of use."""
REASON_CHARS_MAX = 500
"""Characters that a subtask is told of the reason for an abort."""


# ---- trigger


def trigger_due(job: JobState) -> bool:
    """Triggers the next checkpoint if one is asked for and may begin; whether it did."""
    at = _wanted_at(job)
    if at is None or job.now < at or not _may_begin(job):  # asked behind every record that is read: the quickest first
        return False
    if job.schedule.next_id > job.history.reserved_through:
        _reserve_more(job)
    else:
        _trigger(job, job.schedule.savepoints.popleft() if job.schedule.savepoints else None)
    return True


def trigger_now(job: JobState) -> None:
    """Triggers a checkpoint that a query asks for; or reserves the id that it needs, and is to be called again."""
    if job.schedule.next_id > job.history.reserved_through:
        _reserve_more(job)
    else:
        _trigger(job, None)


def trigger_at(job: JobState) -> float | None:
    """Monotonic second at which the next checkpoint may be triggered, as things stand; None: not before they change."""
    return _wanted_at(job) if _may_begin(job) else None


def _wanted_at(job: JobState) -> float | None:
    if job.schedule.savepoints:
        return job.now
    if job.schedule.trigger_at is None or job.schedule.completed_at is None:
        return job.schedule.trigger_at
    return max(job.schedule.trigger_at, job.schedule.completed_at + job.settings.checkpoint.min_pause)


def _may_begin(job: JobState) -> bool:
    epoch = job.current
    slots, pending = epoch.slots.values(), epoch.pending.values()
    return (
        len(pending) < job.settings.checkpoint.max_concurrent
        # mutant: two-calls-at-once
        and all(p.step is Step.ACKS and not p.stop for p in pending)  # the one before has its markers ◆
        and not epoch.inherited  # mutant: range-later.triggered
        and epoch.feeds.calling is None  # mutant: triggered-within-a-batch
        and all(slot.phase is not SlotPhase.ABSENT for slot in reversed(slots))  # the last ones come last
        and any(slot.phase is SlotPhase.LIVE for slot in slots)
    )


def _trigger(job: JobState, request: SavepointRequest | None) -> None:
    epoch, n = job.current, job.schedule.next_id
    job.schedule.next_id += 1
    if request is None or job.schedule.trigger_at is not None:
        job.schedule.trigger_at = job.after_interval()
    live = job.live()
    epoch.pending[n] = Pending(
        n,
        savepoint=request is not None,
        stop=request is not None and request.stop,
        command=None if request is None else request.command,
        triggered_at=job.now,
        log_triggered_at=job.clock.seconds,
        inbox_position=job.position,
        uncut=set(job.coordinated()),
        required=frozenset(slot.subtask for slot in live),
        received={slot.subtask: slot.attempt.received_through for slot in live if slot.attempt is not None},
        feeds=dict(epoch.feeds.positions),
    )
    for slot in live:
        slot.gateway.mark(n)
    for operator in job.coordinated():
        job.emit(CallCheckpoint(operator, n))
    if not epoch.pending[n].uncut:
        _append_markers(job, epoch.pending[n])


def _reserve_more(job: JobState) -> None:
    """The block of ids is used up: ids are committed before they are used, so that none is ever used twice."""
    claim = EpochClaimed(
        job.history.epoch,
        job.history.last_id,
        job.schedule.next_id,
        job.schedule.next_id + IDS_RESERVED,
        dict(job.topic_ids),
        job.instance,
        "more checkpoint ids",
    )
    job.commit(keyed(claim), NoFollowUp())


# ---- cut


def cut(job: JobState, done: FutureCompleted) -> None:
    """A coordinator completed its future: its gateways close, and it may be handed events again."""
    pending = job.current.pending.get(done.checkpoint_id)
    if pending is None or done.operator not in pending.uncut:
        # After its abort it closes nothing.
        return job.drop(Dropped.LATE_COORDINATOR_STATE)  # mutant: late-future-closes
    for slot in job.live():
        if slot.subtask.operator == done.operator:
            slot.gateway.close(pending.id)  # mutant: gateway-never-closes
    pending.uncut.discard(done.operator)
    pending.times.cut_at[done.operator] = job.now
    _keep_state(job, pending, done)
    inbox.release(job, done.operator)
    if not pending.uncut:
        _append_markers(job, pending)
    return None


def _keep_state(job: JobState, pending: Pending, done: FutureCompleted) -> None:
    state = done.state
    inline = sum(h.size for h in pending.states.values() if h is not None and h.inline is not None)
    room = min(
        job.settings.checkpoint.inline_state_max, job.limits.states_bytes - inline - feeds.size(job.current.feeds)
    )  # they share one record
    if state is None or len(state) <= room:
        pending.states[done.operator] = None if state is None else StateHandle(len(state), inline=state)
        return
    pending.storing.add(done.operator)
    location = state_location(pending.id, job.current.number, f"{done.operator}-coordinator")
    job.emit(StoreState(done.operator, pending.id, location, state))


def _append_markers(job: JobState, pending: Pending) -> None:
    """The markers of every operator, in one go: FIFO does the rest."""
    pending.times.marked_at = job.now
    pending.step = Step.ACKS
    for slot in job.live():
        sending.release_below(job, slot, pending.id)  # mutant: no-release-below
        sequence = 0 if slot.stream is None else slot.stream.appended_through
        marker = TriggerCheckpoint(job.current.number, pending.id, sequence, pending.savepoint, pending.stop)
        job.emit(Append(slot.subtask, marker))
    if job.settings.driven_by_query:  # mutant: ends-before-the-markers
        job.emit(LookAtEnds(pending.id))


def cut_failed(job: JobState, failed: FutureFailed) -> None:
    pending = job.current.pending.get(failed.checkpoint_id)
    if pending is not None and failed.operator in pending.uncut:
        reason = f"the coordinator of {failed.operator} failed its checkpoint future: {failed.error}"
        abort(job, pending, reason, countable=True)


def state_stored(job: JobState, stored: StateStored) -> None:
    pending = job.current.pending.get(stored.checkpoint_id)
    if pending is not None and stored.operator in pending.storing:
        pending.storing.discard(stored.operator)
        pending.states[stored.operator] = stored.handle
    elif stored.handle.location is not None:
        job.emit(DeleteStates((stored.handle.location,)))


def state_not_stored(job: JobState, failed: StateNotStored) -> None:
    pending = job.current.pending.get(failed.checkpoint_id)
    if pending is not None and failed.operator in pending.storing:
        reason = f"the state of the coordinator of {failed.operator} could not be stored: {failed.error}"
        abort(job, pending, reason, countable=not _has_storage(job))


# ---- acks


def snapshot_taken(job: JobState, slot: Slot, checkpoint_id: int) -> None:
    if (pending := job.current.pending.get(checkpoint_id)) is not None:
        pending.times.snapshot_at.setdefault(slot.subtask, job.now)
        sending.open_gateway(job, slot, checkpoint_id)


def acknowledge(job: JobState, slot: Slot, offset: int, ack: CheckpointAck) -> None:
    """One subtask's part is safe. Counted by identity: the sender has been checked to be the current attempt."""
    pending = job.current.pending.get(ack.checkpoint_id)
    if pending is None or slot.subtask not in pending.required or pending.step is not Step.ACKS:
        location = None if ack.state is None else ack.state.location  # its own, as acceptable acks name no other
        if location is not None and ack.checkpoint_id not in job.history.checkpoints:
            job.emit(DeleteStates((location,)))
        return job.drop(Dropped.LATE_ACK)
    if slot.subtask in pending.acks:
        return job.drop(Dropped.REPEATED_ACK)  # mutant: repeated-ack-counts
    sender, attempt = ack.sender, slot.attempt
    assert attempt is not None
    snapshot = SubtaskSnapshot(
        sender.subtask, sender.attempt, sender.epoch, sender.generation, offset,
        ack.state, ack.event_position, ack.event_ranges, ack.handled_through, ack.sent_sequence,
        ack.data_positions, ack.finished, task=attempt.hello.task, inputs_ended=ack.inputs_ended,
    )  # fmt: skip
    pending.times.acked_at[slot.subtask] = job.now
    _add_snapshot(pending, slot.subtask, snapshot)
    sending.open_gateway(job, slot, pending.id)  # mutant: ack-opens-everybody
    return None


def _add_snapshot(pending: Pending, subtask: SubtaskId, snapshot: SubtaskSnapshot) -> None:
    contained = (below(part, snapshot.sent_sequence) for part in pending.inbox.pop(subtask, ()))
    received = pending.received.get(subtask, snapshot.sent_sequence)
    inbox_range = tuple(part for part in contained if part is not None)
    pending.acks[subtask] = replace(snapshot, inbox=inbox_range, received_sequence=received)


def decline(job: JobState, slot: Slot, declined: CheckpointDecline) -> None:
    pending = job.current.pending.get(declined.checkpoint_id)
    if pending is not None and slot.subtask in pending.required:
        counts = not (declined.not_stored and _has_storage(job))
        abort(job, pending, f"{slot.subtask} declined: {declined.reason}", countable=counts)


def _has_storage(job: JobState) -> bool:
    """Whether a state that was not stored may be stored later. Until then a rollback would only undo work."""
    return job.settings.state_storage is not None


# ---- completion


def oldest_acknowledged(job: JobState) -> Pending | None:
    """The oldest checkpoint under way that everybody has acknowledged."""
    for pending in job.current.pending.values():
        if pending.step is Step.ACKS and not pending.storing and len(pending.acks) == len(pending.required):
            return pending
    return None


def complete(
    job: JobState,
    pending: Pending,
    then: type[Complete | CompleteBatch | CompleteEarlierBatch],
    committer: str = "",
    decided_at: int | None = None,
) -> None:
    """From here until the outcome is known the checkpoint is neither pending nor completed ◆.

    ``committer`` has decided, and said so ahead of the position ``decided_at`` of the acks topic; the coordinator
    itself if not given.
    """
    pending.step = Step.COMMITTING
    n = pending.id
    open_commands = [offset for offset in job.commands.waiting if offset != pending.command]
    commands_position = min(open_commands, default=job.position)  # mutant: commands-position-too-far
    discarded = retention.discarded_by(job, n, savepoint=pending.savepoint)
    parts = list(parts_of(job, pending))
    header = CheckpointCompleted(
        job.current.number, n, pending.savepoint,
        job.wall_ms(pending.triggered_at), job.wall_ms(), len(parts), operators_of(job, pending), commands_position,
        tuple(discarded), max(job.history.reserved_through, n + IDS_RESERVED), committer,
        job.position if decided_at is None else decided_at,
    )  # fmt: skip
    records: list[CheckpointLogRecord] = [*parts, header]
    if pending.command is not None:
        outcome = f"savepoint {n} completed"
        command = job.commands.waiting[pending.command].command
        records.append(CommandExecuted(pending.command, command, True, outcome, n))
    if pending.stop:
        records.append(JobStopping(job.current.number, n))
    tombstones = job.history.checkpoint_tombstones(discarded, commands_position)
    tombstones += job.history.prepared_tombstones(n, len(parts))
    gone = tuple(job.history.checkpoints[i] for i in discarded)
    job.commit([*keyed(*records), *tombstones], then(n, gone))


def operators_of(job: JobState, pending: Pending) -> tuple[OperatorSnapshot, ...]:
    settings = job.settings
    return tuple(
        OperatorSnapshot(
            o.name, o.parallelism, pending.states.get(o.name),
            pending.inbox_position,  # mutant: inbox-position-late
            settings.max_parallelism, tuple(InputSnapshot(i.upstream, i.partitioning) for i in o.inputs),
            feeds.positions_of(o.name, pending.feeds),  # mutant: positions-forgotten
        )
        for o in settings.operators
    )  # fmt: skip


def completed(job: JobState, n: int, gone: Iterable[Checkpoint]) -> None:
    """The commit stands: gateways open, everybody is told, what nobody needs any more goes."""
    epoch = job.current
    pending = epoch.pending[n]
    for older in [p for p in epoch.pending.values() if p.id < n and not p.savepoint]:
        abort(job, older, f"subsumed by checkpoint {n}", countable=False)
    del epoch.pending[n]
    job.schedule.failures_in_a_row, job.schedule.blamed = 0, []
    job.schedule.completed_at = job.now
    job.statistics.completed += 1
    stops.stand(job, n)
    job.statistics.last_duration_s = job.now - pending.triggered_at
    _over(job, pending, None)
    for slot in job.live():
        sending.open_gateway(job, slot, n)
    for operator in job.coordinated():
        inbox.deliver(job, CallComplete(operator, n))  # mutant: complete-before-its-events
    for slot in job.live():
        if not job.settings.driven_by_query:
            job.emit(Append(slot.subtask, CompletedNotice(epoch.number, n)))
        snapshot = pending.acks[slot.subtask]
        if (stopping := job.history.stopping) is not None:
            assert slot.attempt is not None
            stops.stop(job, slot.attempt.id, slot.attempt.hello, stopping.cause)
        if snapshot.finished or pending.stop:
            _finish(job, slot, n, snapshot)
    feeds.completed(job, n, pending.feeds)
    retention.forget(job, gone)
    if pending.command is not None:
        commands.answered(job, pending.command, f"savepoint {n} completed", n)


def _finish(job: JobState, slot: Slot, n: int, end: SubtaskSnapshot) -> None:
    """Checkpoint ``n`` contains the subtask's end: it leaves, and whatever is still sent to it fails."""
    stream = slot.stream
    sending.fail_stream(job, slot, TaskFinished(f"{slot.subtask} has finished"))
    slot.stream = stream  # takes nothing more; what it has counted is still told
    for closed in slot.gateway.closed:
        sending.open_gateway(job, slot, closed)  # into nothing: what it holds is counted no more
    slot.phase, slot.attempt, slot.gateway = SlotPhase.DONE, None, GatewayState()
    slot.since = job.now
    for pending in list(job.current.pending.values()):
        if slot.subtask in pending.acks:
            continue
        if pending.id > n:
            pending.times.acked_at[slot.subtask] = job.now
            _add_snapshot(pending, slot.subtask, end)
        else:  # a savepoint that its end comes too late for
            abort(job, pending, f"{slot.subtask} has finished since", countable=False)


# ---- abort


def abort(job: JobState, pending: Pending, reason: str, *, countable: bool) -> None:
    """By id: no other checkpoint's gateway opens. More countable ones in a row than tolerated fail the job over."""
    waited = waits_for(job, pending)
    del job.current.pending[pending.id]
    _release_withheld(job, pending)
    announce_abort(job, pending, reason)
    if countable and not pending.savepoint:
        job.schedule.failures_in_a_row += 1
        job.schedule.blamed.append(f"checkpoint {pending.id}: {reason}; waited for {waited}")
        if job.schedule.failures_in_a_row > job.settings.checkpoint.tolerable_failures:
            job.due_failover = (
                f"{job.schedule.failures_in_a_row} checkpoints in a row failed: {' | '.join(job.schedule.blamed[-4:])}"
            )
            job.schedule.failures_in_a_row, job.schedule.blamed = 0, []


def drop_all(job: JobState) -> list[Pending]:
    """Takes every pending checkpoint down for a failover, handing over what was withheld for them."""
    dropped = list(job.current.pending.values())
    job.current.pending.clear()
    for pending in dropped:
        _release_withheld(job, pending)
    return dropped


def announce_abort(job: JobState, pending: Pending, reason: str) -> None:
    """Tells everybody whom the aborted checkpoint concerned; it is not pending any more."""
    epoch = job.current
    for slot in job.live():
        if slot.subtask in pending.required:
            sending.open_gateway(job, slot, pending.id)  # mutant: abort-opens-the-oldest
    for operator in job.coordinated():
        job.emit(CallAborted(operator, pending.id, reason))
    if pending.step is Step.ACKS:
        notice = CheckpointAborted(epoch.number, pending.id, recordable(reason, REASON_CHARS_MAX))
        for slot in job.live():
            job.emit(Append(slot.subtask, notice))
    forget(job, pending, reason)


def forget(job: JobState, pending: Pending, reason: str) -> None:
    """Releases the stored state of an aborted checkpoint and refuses the command that had asked for it."""
    job.statistics.aborted += 1
    _over(job, pending, reason)
    wanted = job.current.feeds.waiting or any(slot.attempt and slot.attempt.finished for slot in job.live())
    soon, due = job.now + job.settings.heartbeat_interval, job.schedule.trigger_at
    if wanted and (due is None or due > soon):  # it contains an end, or the effect of a batch: somebody waits for it
        job.schedule.trigger_at = soon
    handles = [*pending.states.values(), *(snapshot.state for snapshot in pending.acks.values())]
    locations = {handle.location for handle in handles if handle is not None and handle.location is not None}
    if unnamed := sorted(
        locations - job.history.locations()  # mutant: unnamed-states-deleted
    ):
        job.emit(DeleteStates(tuple(unnamed)))
    if pending.command is not None:
        commands.refuse(job, pending.command, f"savepoint {pending.id} was aborted: {reason}")


def _over(job: JobState, pending: Pending, reason: str | None) -> None:
    job.timeline.checkpoint_over(
        Over(
            pending.id, pending.savepoint, job.current.number, pending.triggered_at, job.now,
            len(pending.acks), len(pending.required), state_bytes(pending), reason,
            pending.times, pending.times.slowest(pending.required),
        )
    )  # fmt: skip


def state_bytes(pending: Pending) -> int:
    """Bytes of the states that it has so far."""
    handles = [*pending.states.values(), *(snapshot.state for snapshot in pending.acks.values())]
    return sum(handle.size for handle in handles if handle is not None)


def _release_withheld(job: JobState, pending: Pending) -> None:
    for operator in sorted(pending.uncut):
        inbox.release(job, operator)


def overdue(job: JobState) -> bool:
    """Aborts every checkpoint past its timeout; whether there was one.

    It does not count as a failure where the coordinator's own heartbeats did not arrive: then the log was away.
    """
    timeout = job.settings.checkpoint.timeout
    pending_all = job.current.pending.values()
    late = [p for p in pending_all if p.step is not Step.PREPARED and job.now >= p.triggered_at + timeout]
    away_s = 3 * job.settings.heartbeat_interval
    for pending in late:
        if pending.id in job.current.pending:
            missed_s = timeout - (job.clock.seconds - pending.log_triggered_at)
            log_was_away = max(missed_s, job.now - job.heartbeat.read_at) > away_s and not inbox.is_full(job)
            reason = f"not complete after {timeout:g} s; it waited for {waits_for(job, pending)}"
            abort(job, pending, reason, countable=not log_was_away)
    return bool(late)


def overflow(job: JobState) -> bool:
    """Aborts the oldest pending checkpoint when what is held for it passes a bound; whether it did."""
    epoch = job.current
    if not epoch.pending:
        return False
    oldest = next(iter(epoch.pending.values()))
    if oldest.step is Step.PREPARED:
        return False  # a query decides about it: senders are held back instead
    bounds = {operator.name: operator.max_held_bytes for operator in job.settings.operators}
    for operator, held in epoch.held_bytes.items():
        if held > bounds[operator]:
            reason = f"gateways of {operator} hold {held} bytes, more than max_held_bytes ({bounds[operator]})"
            abort(job, oldest, reason, countable=True)
            return True
    copying = [p for p in epoch.pending.values() if p.inbox_bytes]
    if (copied := sum(p.inbox_bytes for p in copying)) > job.settings.held_bytes_max:
        reason = f"{copied} bytes of events to coordinators go into it, more than max_held_bytes of all operators"
        abort(job, copying[0], reason, countable=True)
        return True
    return False
