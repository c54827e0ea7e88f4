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
    FeedPart,
    Finished,
    FromAttempt,
    Heartbeat,
    Hello,
    OperatorEventFrame,
    Refused,
    RunStarted,
    SnapshotTaken,
)
from ...schemas.events import Reset
from ...schemas.frames import RECORD_BYTES_MAX
from ...schemas.ids import NO_CHECKPOINT, SubtaskId
from ...schemas.settings import JobSettings
from ...schemas.status import Ending
from ...schemas.versions import CURRENT, Versions
from . import (
    acceptance,
    attempts,
    batch_inbox,
    batches,
    checkpoints,
    commands,
    failover,
    feeds,
    inbox,
    job_end,
    liveness,
    recovery,
    sending,
)
from .after_commit import (
    AfterCommit,
    AnswerCommands,
    AnswerQuery,
    AwaitDecision,
    BeginEpoch,
    BeginQueryAnew,
    Complete,
    CompleteBatch,
    CompleteEarlierBatch,
    EndJob,
    FinishCatchUp,
    ForgetDiscarded,
    NoFollowUp,
)
from .effects import Append, Effect, ReplaceWriter, Settle
from .inputs import (
    AckRead,
    AppendFailed,
    AttemptRejected,
    BatchHandled,
    Begin,
    Committed,
    CoordinatorRaised,
    EndsSeen,
    FutureCompleted,
    FutureFailed,
    HeartbeatLost,
    Input,
    Redistributed,
    RequestAnswered,
    Reread,
    RereadEnd,
    Sent,
    StateNotStored,
    StateStored,
    Tick,
    WorkLeft,
)
from .log_clock import LogClock
from .pending import Step
from .query_state import Rereading
from .record_limits import record_limits
from .restarts import RestartBudget
from .state import Dropped, HandingOver, JobState, Phase, Slot, SlotPhase


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
        self.job = JobState(settings, instance, budget, clock, record_limits(settings, record_bytes_max), versions)

    def handle(self, input: Input, now: float) -> list[Effect]:
        """What to do about ``input`` at monotonic second ``now``.

        Raises JobRefused (from ``Begin`` only): the job may not start like this, and nothing was changed.
        """
        job = self.job
        if job.phase is Phase.ENDED:
            return []
        job.now, job.out = now, []
        if (committing := job.committing) is not None:
            assert isinstance(input, Committed), f"{input} while a commit is under way"
            job.committing = None
            job.history.apply(committing.records)
            _follow_up(job, committing.then, input)
        else:
            _dispatch(job, input)
        while job.committing is None and job.rereading is None and _advance(job):
            pass
        effects, job.out = job.out, []
        return effects

    @property
    def reads(self) -> bool:
        """Whether the next record of the acks topic is wanted now. Whatever comes nevertheless is taken."""
        return not inbox.is_full(self.job)

    def deadline(self) -> float | None:
        """Monotonic second at which a Tick is due even if nothing else happens; None: never."""
        return _deadline(self.job)


def _dispatch(job: JobState, input: Input) -> None:
    match input:
        case Begin():
            recovery.begin(job, input)
        case Redistributed():
            recovery.redistributed(job, input)
        case AckRead():
            _read(job, input)
        case Reread() | RereadEnd():
            _take_reread(job, input)
        case Sent():
            sending.send(job, input.stream, input.events)
        case CoordinatorRaised():
            if job.epoch is not None and input.epoch == job.epoch.number:
                feeds.raised(job, input)
                cause = f"coordinator of {input.operator} raised in {input.callback}: {input.error}"
                if input.final:
                    job.due_end = job.due_end or (Ending.FAILED, cause)
                else:
                    job.due_failover = cause
        case AppendFailed():
            if input.epoch == job.history.epoch:  # a writer of an earlier epoch has been replaced
                job.emit(ReplaceWriter())
                if job.epoch is not None:
                    job.due_failover = f"the broker did not take a record: {input.error}"
                else:
                    failover.wait_again(job)
        case HeartbeatLost():
            job.heartbeat.written_at = None
        case EndsSeen():
            batches.ends_seen(job, input)
        case RequestAnswered():
            commands.request_answered(job, input)
        case BatchHandled():
            feeds.handled(job, input)
        case WorkLeft():
            job_end.work_left(job, input)
        case FutureCompleted() | FutureFailed() | StateStored() | StateNotStored() | AttemptRejected():
            if job.epoch is not None:
                _dispatch_in_epoch(job, input)
        case Tick():
            pass
        case Committed():
            raise AssertionError("Committed, and no commit is under way")
        case _:
            assert_never(input)


def _take_reread(job: JobState, input: Reread | RereadEnd) -> None:
    match job.rereading, input:
        case None, Reread():
            recovery.reread(job, input)
        case None, RereadEnd():
            recovery.caught_up(job)
        case HandingOver() as under_way, Reread(offset=offset, record=record):
            inbox.reread(job, under_way, offset, record)
        case HandingOver() as under_way, RereadEnd():
            inbox.reread_end(job, under_way)
        case Rereading() as under_way, Reread(record=record):
            batch_inbox.reread(job, under_way, record)
        case Rereading() as under_way, RereadEnd():
            batches.reread_end(job, under_way)


def _dispatch_in_epoch(
    job: JobState, input: FutureCompleted | FutureFailed | StateStored | StateNotStored | AttemptRejected
) -> None:
    match input:
        case FutureCompleted():
            checkpoints.cut(job, input)
        case FutureFailed():
            checkpoints.cut_failed(job, input)
        case StateStored():
            checkpoints.state_stored(job, input)
        case StateNotStored():
            checkpoints.state_not_stored(job, input)
        case AttemptRejected():
            attempt = job.current.slots[input.subtask].attempt
            if attempt is not None and (attempt.id, job.current.number) == (input.attempt, input.epoch):
                failover.fail_attempt(job, input.subtask, input.cause)
        case _:
            assert_never(input)


def _follow_up(job: JobState, then: AfterCommit, committed: Committed) -> None:
    match then:
        case NoFollowUp():
            pass
        case BeginEpoch(first_checkpoint_id=first):
            recovery.claimed(job, first, committed)
        case FinishCatchUp():
            recovery.begin_running(job)
        case Complete(checkpoint_id=n, gone=gone):
            checkpoints.completed(job, n, gone)
        case CompleteBatch(checkpoint_id=n, gone=gone):
            batches.completed(job, n, gone)
        case CompleteEarlierBatch(gone=gone):
            batches.completed_earlier(job, gone)
        case AwaitDecision(checkpoint_id=n):
            batches.prepared(job, n)
        case AnswerQuery(answer=answer):
            batches.answer(job, answer)
        case BeginQueryAnew(locations=locations):
            batches.begins_anew(job, locations)
        case AnswerCommands(outcomes=outcomes):
            commands.executed(job, outcomes)
        case ForgetDiscarded(command=offset, gone=discarded):
            commands.discarded(job, offset, discarded)
        case EndJob():
            job_end.ended(job, then)
        case _:
            assert_never(then)


# ---- the acks topic


def _read(job: JobState, read: AckRead) -> None:
    assert read.offset >= job.position, f"acks are read in order: {read.offset} after {job.position}"
    job.position = read.offset + 1
    record = read.record
    match record:
        case None:
            job.drop(Dropped.UNREADABLE)
        case RunStarted():
            attempts.read_run(job, read.offset, record)
        case Hello():
            attempts.read_hello(job, read.offset, record)
        case Command():
            commands.read_command(job, read.offset, record)
        case BatchWanted() | BatchCommitted() | BatchEventFrame() | BatchEvents():
            batches.read(job, read.offset, record)
        case FeedPart():
            feeds.read(job, record)
        case FailureHint():
            _read_hint(job, record)
        case CoordinatorHeartbeat():
            liveness.read_heartbeat(job, read.appended_at_ms, record)
        case _:
            _read_from_attempt(job, read, record)


def _read_hint(job: JobState, hint: FailureHint) -> None:
    """A runner saw a task die: its attempt is failed, and a Hello it left behind is answered no more."""
    subtask = SubtaskId(hint.operator, hint.subtask)
    slot = None if job.epoch is None or job.phase is not Phase.RUNNING else job.epoch.slots.get(subtask)
    if job.registry.forget_hello_of(hint, job.clock.seconds) and slot is not None and slot.phase is SlotPhase.ABSENT:
        # No Start will carry the generation to an older instance that this Hello had superseded.
        job.emit(Append(subtask, Reset(job.current.number, slot.generation)))  # mutant: hint-owes-no-reset
    if slot is not None and slot.attempt is not None and hint.names(slot.attempt.hello):
        failover.fail_attempt(job, subtask, hint.cause)


def _read_from_attempt(job: JobState, read: AckRead, record: FromAttempt) -> None:
    """Judged here and now, in log order: whether its sender is the current attempt in its current generation ◆."""
    sender = record.sender
    if sender.epoch > job.history.epoch:
        return job.end(Ending.FENCED, f"epoch {sender.epoch} has begun elsewhere")
    slot = None if job.epoch is None else job.epoch.slots.get(sender.subtask_id)
    seen_at = job.clock.of(read.appended_at_ms)
    if slot is not None and slot.attempt is not None and slot.attempt.id == sender.attempt:
        slot.attempt.seen_at = seen_at  # alive, also where it has not read its newest Start
        answered = job.registry.unconfirmed.get(slot.subtask)
        if answered is not None and answered.astray_since is None:
            answered.astray_since = seen_at
    undone = job.registry.undone.get(sender.subtask_id)
    if undone is not None and undone.attempt == sender.attempt:
        undone.seen_at = seen_at
        undone.step = record.step if isinstance(record, Heartbeat) else undone.step
    if (
        slot is None
        or slot.attempt is None
        or slot.attempt.sender(slot.subtask) != sender  # mutant: anybodys-records, any-generation
    ):
        return job.drop(Dropped(f"stale-{type(record).__name__}"))
    attempt = slot.attempt
    job.registry.unconfirmed.pop(slot.subtask, None)
    match record:
        case Heartbeat():
            attempt.step, attempt.step_age_ms = record.step, record.step_age_ms
            _settle(job, slot, record.handled_through)
            if record.aligning:
                attempt.progress_at = attempt.seen_at
        case SnapshotTaken():
            checkpoints.snapshot_taken(job, slot, record.checkpoint_id)
        case CheckpointAck():
            if (why := acceptance.refusal(job, slot, record)) is not None:
                return failover.fail_attempt(job, slot.subtask, why)
            _settle(job, slot, record.handled_through)
            checkpoints.acknowledge(job, slot, read.offset, record)
        case CheckpointDecline():
            checkpoints.decline(job, slot, record)
        case Failed():
            failover.said_failed(job, slot, record)
        case Refused():
            cause = record.cause or f"{slot.subtask} refused to start, without a cause"
            job.due_end = (Ending.FAILED, cause)
        case Finished():
            attempt.finished = True
            job.schedule.trigger_at = job.now  # a checkpoint that contains the end need not wait for the interval
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


def _complete(job: JobState) -> bool:
    """Commits the oldest checkpoint that everybody has acknowledged; whether there was one."""
    pending = checkpoints.oldest_acknowledged(job)
    if pending is None:
        return False
    if job.settings.driven_by_query:
        batches.prepare(job, pending)
    else:
        checkpoints.complete(job, pending, Complete)
    return True


def _advance(job: JobState) -> bool:
    """Does the first thing that is due; whether anything was. Called until nothing is, or a commit is under way."""
    match job.phase:
        case Phase.BACKING_OFF:
            if job.due_end is not None:
                return job_end.commit(job)
            if job.now >= job.next_epoch.claim_at:
                restored = NO_CHECKPOINT if job.next_epoch.restores_nothing else job.history.last_id
                recovery.claim(job, restored, job.next_epoch.cause)
                return True
        case Phase.RUNNING:
            if job.due_end is not None:
                return job_end.commit(job)
            if (cause := job.due_failover) is not None:
                job.due_failover = None
                failover.fail_globally(job, cause)
                return True
            return (
                inbox.read_again(job)
                or checkpoints.overflow(job)  # mutant: held-without-bound
                or checkpoints.overdue(job)
                or attempts.claim_run(job)
                or attempts.answer_hellos(job)
                or commands.begin_due(job)
                or commands.commit_outcomes(job)
                or feeds.hand_over(job)
                or _complete(job)
                or batches.serve(job)
                or job_end.drain(job)
                or checkpoints.trigger_due(job)
                or liveness.fail_unregistered(job)
                or liveness.beat(job)
            )
        case Phase.NEW | Phase.RESCALING | Phase.CLAIMING | Phase.CATCHING_UP | Phase.ENDED:
            pass
    return False


def _deadline(job: JobState) -> float | None:
    if job.committing is not None or job.rereading is not None:
        return None
    if job.phase is Phase.BACKING_OFF:
        return job.next_epoch.claim_at
    if job.phase is not Phase.RUNNING:
        return None
    settings, epoch = job.settings, job.current
    due = [job.heartbeat.due_at]
    due += [p.triggered_at + settings.checkpoint.timeout for p in epoch.pending.values() if p.step is not Step.PREPARED]
    due += [max(epoch.slots[s].start_not_before, inbox.start_at(job, s)) for s in job.registry.waiting]
    if epoch.draining is not None:
        due.append(epoch.draining.until)
    if job.registry.incomplete_since is not None:
        due.append(job.registry.incomplete_since + settings.start_timeout)
    if (trigger_at := checkpoints.trigger_at(job)) is not None:
        due.append(trigger_at)
    if (answer_at := batches.answer_at(job)) is not None:
        due.append(answer_at)
    return min(due)
