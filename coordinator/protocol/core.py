"""The coordinator's protocol core: ``handle(input, now) -> effects``, and the next deadline as data.

The one loop around it is the same everywhere (Kafka, in memory, simulator)::

    for effect in core.handle(input, now):
        perform(effect)          # in order; Commit comes last and is answered by Committed
    wait for the next input, at most until core.deadline()

No IO, no clock, no randomness, no threads. Each input is dealt with by the module that its concept lives in; what has
become due by it (a Hello whose backoff is over, a checkpoint everybody has acknowledged, a timeout) follows in
:func:`_advance`, in one place and one order.
"""

from __future__ import annotations

from typing import assert_never

from ...schemas.acks import (
    BatchCommitted,
    BatchEventFrame,
    BatchEvents,
    BatchWanted,
    CheckpointAck,
    CheckpointDecline,
    Command,
    CoordinatorHeartbeat,
    Failed,
    FailureHint,
    Finished,
    FromAttempt,
    Heartbeat,
    Hello,
    OperatorEventFrame,
    Refused,
    RunStarted,
    SnapshotTaken,
)
from ...schemas.checkpoints import JobFinished, JobOutcome
from ...schemas.events import Reset
from ...schemas.frames import RECORD_BYTES_MAX
from ...schemas.ids import NO_CHECKPOINT, SubtaskId
from ...schemas.settings import JobSettings
from ...schemas.versions import CURRENT, Versions
from . import attempts, batch_inbox, batches, checkpoints, commands, failover, inbox, recovery, sending
from .effects import Append, AppendHeartbeat, Effect, Ending, ReplaceWriter, Settle
from .history import keyed
from .inputs import (
    AckRead,
    AppendFailed,
    AttemptRejected,
    Begin,
    Committed,
    CoordinatorRaised,
    EndsSeen,
    HeartbeatLost,
    Input,
    Redistributed,
    RequestAnswered,
    Reread,
    RereadEnd,
    Sent,
    StateCompleted,
    StateFailed,
    StateNotStored,
    StateStored,
    Tick,
)
from .log_clock import LogClock
from .restarts import RestartBudget
from .room import room_in
from .state import JobState, Phase, Slot, SlotPhase, Step

_OUTCOMES = {Ending.FINISHED: JobOutcome.FINISHED, Ending.STOPPED: JobOutcome.STOPPED, Ending.FAILED: JobOutcome.FAILED}


class CoordinatorCore:
    """Everything a job's coordinator decides. ``job`` may be read at any time between two calls."""

    def __init__(
        self,
        settings: JobSettings,
        instance: str,
        record_bytes_max: int = RECORD_BYTES_MAX,
        versions: Versions = CURRENT,
    ) -> None:
        budget, clock = RestartBudget(settings.restart), LogClock(settings.heartbeat_interval)
        self.job = JobState(settings, instance, budget, clock, room_in(settings, record_bytes_max), versions)

    def handle(self, event: Input, now: float) -> list[Effect]:
        """What to do about ``event`` at monotonic second ``now``.

        Raises JobRefused (from ``Begin`` only): the job may not start like this, and nothing was changed.
        """
        job = self.job
        if job.phase is Phase.ENDED:
            return []
        job.now, job.out = now, []
        if (then := job.after_commit) is not None:
            assert isinstance(event, Committed), f"{event} while a commit is under way"
            job.after_commit = None
            then(event)
        else:
            _take(job, event)
        while job.after_commit is None and job.rereading is None and _advance(job):
            pass
        effects, job.out = job.out, []
        return effects

    def deadline(self) -> float | None:
        """Monotonic second at which a Tick is due even if nothing else happens; None: never."""
        return _deadline(self.job)


def _take(job: JobState, event: Input) -> None:
    match event:
        case Begin():
            recovery.begin(job, event)
        case Redistributed():
            recovery.redistributed(job, event)
        case AckRead():
            _read(job, event)
        case Reread() if job.rereading is not None:
            batch_inbox.reread(job, event.record)
        case RereadEnd() if job.rereading is not None:
            batch_inbox.reread_end(job)
        case Reread():
            recovery.reread(job, event)
        case RereadEnd():
            recovery.caught_up(job)
        case Sent():
            sending.send(job, event.stream, event.events)
        case CoordinatorRaised():
            if job.epoch is not None and event.epoch == job.epoch.number:
                job.due_failover = f"coordinator of {event.operator} raised in {event.callback}: {event.error}"
        case AppendFailed():
            if event.epoch == job.history.epoch:  # a writer of an earlier epoch has been replaced
                job.emit(ReplaceWriter())
                if job.epoch is not None:
                    job.due_failover = f"the broker did not take a record: {event.error}"
                else:
                    failover.wait_again(job)
        case HeartbeatLost():
            job.heartbeat_at = None
        case EndsSeen():
            batches.ends_seen(job, event)
        case RequestAnswered():
            commands.request_answered(job, event)
        case StateCompleted() | StateFailed() | StateStored() | StateNotStored() | AttemptRejected():
            if job.epoch is not None:
                _take_in_epoch(job, event)
        case Tick():
            pass
        case Committed():
            raise AssertionError("Committed, and no commit is under way")
        case _:
            assert_never(event)


def _take_in_epoch(
    job: JobState, event: StateCompleted | StateFailed | StateStored | StateNotStored | AttemptRejected
) -> None:
    match event:
        case StateCompleted():
            checkpoints.cut(job, event)
        case StateFailed():
            checkpoints.cut_failed(job, event)
        case StateStored():
            checkpoints.state_stored(job, event)
        case StateNotStored():
            checkpoints.state_not_stored(job, event)
        case AttemptRejected():
            attempt = job.current.slots[event.subtask].attempt
            if attempt is not None and (attempt.id, job.current.number) == (event.attempt, event.epoch):
                failover.fail_attempt(job, event.subtask, event.cause)
        case _:
            assert_never(event)


# ---- the acks topic


def _read(job: JobState, read: AckRead) -> None:
    assert read.offset >= job.position, f"acks are read in order: {read.offset} after {job.position}"
    job.position = read.offset + 1
    record = read.record
    match record:
        case None:
            job.drop("unreadable")
        case RunStarted():
            attempts.read_run(job, read.offset, record)
        case Hello():
            attempts.read_hello(job, read.offset, record)
        case Command():
            commands.read_command(job, read.offset, record)
        case BatchWanted() | BatchCommitted() | BatchEventFrame() | BatchEvents():
            batches.read(job, read.offset, record)
        case FailureHint():
            _read_hint(job, record)
        case CoordinatorHeartbeat():
            _read_heartbeat(job, read.appended_at_ms, record)
        case _:
            _read_from_attempt(job, read, record)


def _read_hint(job: JobState, hint: FailureHint) -> None:
    """A runner saw a task die: its attempt is failed, and a Hello it left behind is answered no more."""
    subtask = SubtaskId(hint.operator, hint.subtask)
    slot = None if job.epoch is None or job.phase is not Phase.RUNNING else job.epoch.slots.get(subtask)
    if job.forget_hello_of(hint) and slot is not None and slot.phase is SlotPhase.ABSENT:
        # No Start will carry the generation to an older instance that this Hello had superseded.
        job.emit(Append(subtask, Reset(job.current.number, slot.generation)))
    if slot is not None and slot.attempt is not None and hint.names(slot.attempt.hello):
        failover.fail_attempt(job, subtask, hint.cause)


def _read_heartbeat(job: JobState, appended_at_ms: int, heartbeat: CoordinatorHeartbeat) -> None:
    if heartbeat.epoch > job.history.epoch:
        return job.end(Ending.FENCED, f"epoch {heartbeat.epoch} has begun elsewhere")
    if heartbeat.instance != job.instance:
        return job.drop("heartbeat-of-another-coordinator")
    job.heartbeat_at = None
    job.heartbeat_read_at = job.now
    job.clock.own_heartbeat(appended_at_ms)
    if job.phase is Phase.RUNNING:
        _fail_the_silent(job)
    return None


def _fail_the_silent(job: JobState) -> None:
    """Judges every attempt by log time: who has said nothing, and who has handled nothing of what it was sent."""
    log_time, settings = job.clock.seconds, job.settings
    if settings.batches:
        return  # a query is no process of ours: it says when it needs something, and Spark watches its tasks
    failover.end_the_left(job)
    for slot in job.live():
        attempt = slot.attempt
        if attempt is None or job.phase is not Phase.RUNNING:
            continue  # an earlier one of this round has taken it along
        silent_s = log_time - attempt.seen_at
        if silent_s > settings.heartbeat_timeout:
            cause = f"silent for {silent_s:.1f} s; it was last {attempt.step}"
            failover.fail_attempt(job, slot.subtask, cause, silent=True)
            continue
        if failover.ends_unheard(job, slot.subtask):
            continue
        stream = slot.stream
        if stream is None or stream.appended_through <= attempt.handled_through or attempt.finished:
            attempt.progress_at = log_time
            continue
        stuck_s = log_time - attempt.progress_at
        if stuck_s > settings.operator(slot.subtask.operator).event_ack_timeout:
            cause = (
                f"no event handled for {stuck_s:.1f} s: event {attempt.handled_through} of"
                f" {stream.appended_through} waits; it was last {attempt.step}"
            )
            failover.fail_attempt(job, slot.subtask, cause, silent=True)


def _read_from_attempt(job: JobState, read: AckRead, record: FromAttempt) -> None:
    """Judged here and now, in log order: whether its sender is the current attempt in its current generation ◆."""
    sender = record.sender
    if sender.epoch > job.history.epoch:
        return job.end(Ending.FENCED, f"epoch {sender.epoch} has begun elsewhere")
    slot = None if job.epoch is None else job.epoch.slots.get(sender.subtask_id)
    seen_at = job.clock.of(read.appended_at_ms)
    if slot is not None and slot.attempt is not None and slot.attempt.id == sender.attempt:
        slot.attempt.seen_at = seen_at  # alive, also where it has not read its newest Start
        unheard = job.unheard.get(slot.subtask)
        if unheard is not None and unheard.astray_since is None:
            unheard.astray_since = seen_at
    left = job.left.get(sender.subtask_id)
    if left is not None and left.attempt == sender.attempt:
        left.seen_at = seen_at
        left.step = record.step if isinstance(record, Heartbeat) else left.step
    if slot is None or slot.attempt is None or slot.attempt.sender(slot.subtask) != sender:
        return job.drop(f"stale-{type(record).__name__}")
    attempt = slot.attempt
    job.unheard.pop(slot.subtask, None)
    match record:
        case Heartbeat():
            attempt.step, attempt.step_age_ms = record.step, record.step_age_ms
            _settle(job, slot, record.handled_through)
            if record.aligning:
                attempt.progress_at = attempt.seen_at
        case SnapshotTaken():
            checkpoints.snapshot_taken(job, slot, record.checkpoint_id)
        case CheckpointAck():
            _settle(job, slot, record.handled_through)
            checkpoints.acknowledge(job, slot, read.offset, record)
        case CheckpointDecline():
            checkpoints.decline(job, slot, record)
        case Failed():
            failover.fail_attempt(job, slot.subtask, record.cause)
        case Refused():
            job.due_end = (Ending.FAILED, record.cause)
        case Finished():
            attempt.finished = True
            job.next_trigger_at = job.now  # a checkpoint that contains the end need not wait for the interval
        case OperatorEventFrame():
            hole = inbox.receive(job, slot, record)
            if hole is not None:
                failover.fail_attempt(job, slot.subtask, hole)
        case _:
            assert_never(record)
    return None


def _settle(job: JobState, slot: Slot, handled_through: int) -> None:
    attempt, stream = slot.attempt, slot.stream
    assert attempt is not None
    if handled_through > attempt.handled_through:
        attempt.handled_through = handled_through
        attempt.progress_at = attempt.seen_at
    if stream is not None and stream.settle(handled_through):
        job.emit(Settle(stream))


# ---- what has become due


def _advance(job: JobState) -> bool:
    """Does the first thing that is due; whether anything was. Called until nothing is, or a commit is under way."""
    match job.phase:
        case Phase.BACKING_OFF:
            if job.due_end is not None:
                return _end(job)
            if job.now >= job.claim_at:
                restored = NO_CHECKPOINT if job.restores_nothing else job.history.last_id
                recovery.claim(job, restored, job.failover_cause)
                return True
        case Phase.RUNNING:
            if job.due_end is not None:
                return _end(job)
            if (cause := job.due_failover) is not None:
                job.due_failover = None
                failover.fail_globally(job, cause)
                return True
            return (
                checkpoints.overflow(job)
                or checkpoints.overdue(job)
                or attempts.claim_run(job)
                or attempts.answer_hellos(job)
                or commands.begin_due(job)
                or commands.commit_outcomes(job)
                or checkpoints.complete_due(job)
                or batches.serve(job)
                or _all_done(job)
                or checkpoints.trigger_due(job)
                or _registered_in_time(job)
                or _heartbeat(job)
            )
        case Phase.NEW | Phase.RESCALING | Phase.CLAIMING | Phase.CATCHING_UP | Phase.ENDED:
            pass
    return False


def _end(job: JobState) -> bool:
    assert job.due_end is not None
    (ending, cause), job.due_end = job.due_end, None
    run = "" if job.run is None else job.run[0]
    finished = JobFinished(job.history.epoch, _OUTCOMES[ending], cause, run)
    job.commit(keyed(finished), lambda _: job.end(ending, cause))
    return True


def _all_done(job: JobState) -> bool:
    done = all(slot.phase is SlotPhase.DONE for slot in job.current.slots.values())
    if done:
        job.due_end = (Ending.FINISHED, "every subtask has finished")
    return done


def _registered_in_time(job: JobState) -> bool:
    """Fails a job whose run never got all its subtasks up: too few slots, most often, and nobody else says so."""
    if job.started_at is None:
        return False
    slots = job.current.slots
    lacking = (s for s in reversed(slots) if s not in job.registered and slots[s].phase is not SlotPhase.DONE)
    last = next(lacking, None)  # asked behind every record that is read, and the last ones come last
    if last is None:
        job.started_at = None
    elif job.now >= job.started_at + job.settings.start_timeout:
        if job.now - job.heartbeat_read_at > 3 * job.settings.heartbeat_interval:
            job.started_at = job.now  # the log was away: nobody could register
            return False
        missing, total = [*reversed([last, *lacking])], len(slots)
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        why = "each needs a task slot of its own; give the cluster more slots, or lower the parallelism"
        if job.statistics.dropped[attempts.OTHER_LAYOUT]:
            why = "tasks of another parallelism were told to leave; start the coordinator and the tasks with the same"
        job.due_end = (
            Ending.FAILED,
            f"only {total - len(missing)} of {total} subtasks registered within {job.settings.start_timeout:g} s"
            f" (missing: {names}): {why}",
        )
        return True
    return False


def _heartbeat(job: JobState) -> bool:
    """The coordinator's own heartbeat: at most one in flight, so that an outage does not end in a burst.

    One that has not come back for a minute of the coordinator's clock is taken for lost.
    """
    if job.now < job.next_heartbeat_at:
        return False
    interval = job.settings.heartbeat_interval
    job.next_heartbeat_at = job.now + interval
    if job.heartbeat_at is None or job.now - job.heartbeat_at > 60 * interval:
        job.heartbeat_at = job.now
        job.emit(AppendHeartbeat(CoordinatorHeartbeat(job.current.number, job.instance)))
    return True


def _deadline(job: JobState) -> float | None:
    if job.after_commit is not None or job.rereading is not None:
        return None
    if job.phase is Phase.BACKING_OFF:
        return job.claim_at
    if job.phase is not Phase.RUNNING:
        return None
    settings, epoch = job.settings, job.current
    due = [job.next_heartbeat_at]
    due += [p.triggered_at + settings.checkpoint.timeout for p in epoch.pending.values() if p.step is not Step.PREPARED]
    due += [epoch.slots[s].start_not_before for s in job.hellos]
    if job.started_at is not None:
        due.append(job.started_at + settings.start_timeout)
    if (trigger_at := checkpoints.trigger_at(job)) is not None:
        due.append(trigger_at)
    if (answer_at := batches.answer_at(job)) is not None:
        due.append(answer_at)
    return min(due)
