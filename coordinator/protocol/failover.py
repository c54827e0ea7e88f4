"""What a failure undoes: a region of subtasks, or the whole job (protocol, section 8)."""

from __future__ import annotations

from ...schemas.acks import Failed
from ...schemas.errors import RolledBack, TaskNotRunning
from ...schemas.events import FailoverPolicy, Reset
from ...schemas.ids import SubtaskId
from ...schemas.status import Ending
from . import checkpoints, sending
from .effects import Append, CallAborted, CallFailed, CallSubtaskReset, KillTask
from .gateway import GatewayState
from .pending import Step
from .registry import UndoneAttempt
from .state import JobState, Phase, Slot, SlotPhase

ALIKE_MAX = 8
"""How often a subtask, or the job, may fail over with the same cause before the job has completed any checkpoint."""


def region_of(job: JobState, subtask: SubtaskId) -> list[SubtaskId]:
    """The subtasks that fail together with this one, itself first: those that channels connect with it.

    One whose end the last completed checkpoint contains is not among them: nothing of it is undone.
    """
    connected = job.settings.graph.region(subtask)
    slots = job.current.slots
    # mutant: region-is-itself
    return [subtask, *(s for s in connected if s != subtask and slots[s].phase is not SlotPhase.DONE)]


def fail_attempt(job: JobState, subtask: SubtaskId, cause: str, *, counted: bool = True, silent: bool = False) -> None:
    """The subtask's live attempt has failed: its region starts over, the coordinators keep their live state."""
    epoch = job.current
    attempt = epoch.slots[subtask].attempt
    assert attempt is not None, f"{subtask} has no live attempt to fail"
    if silent:
        attempt.killed = True
        job.emit(KillTask(subtask, attempt.hello.task, cause))
    job.statistics.failures[subtask] += 1
    job.statistics.last_failure = f"{subtask} attempt {attempt.id}: {cause}"
    region = region_of(job, subtask)
    policies = {member: job.settings.operator(member.operator).on_failover for member in region}
    if FailoverPolicy.GLOBAL in policies.values() or job.settings.driven_by_query:
        return fail_globally(job, job.statistics.last_failure, failed=subtask, counted=counted)
    delay = _spend(job, counted, subtask, cause)
    if delay is None:
        return None
    job.statistics.region_failovers += 1
    job.timeline.failed_over(job.now, job.statistics.last_failure, region, of_job=False)
    aborted = checkpoints.drop_all(job)  # hands over what was read before
    for member in region:  # mutant: failed-before-handed-over
        slot = epoch.slots[member]
        if policies[member] is FailoverPolicy.RESET:
            failure = TaskNotRunning(f"attempt of {member} failed before it handled the event: {cause}")
            sending.fail_stream(job, slot, failure)  # mutant: reset-forgets-futures
        if slot.attempt is not None and job.has_coordinator(member.operator):
            reason = cause if member == subtask else None
            job.emit(CallFailed(member.operator, member.index, slot.attempt.id, reason))
    for pending in aborted:
        checkpoints.announce_abort(job, pending, f"failover of {subtask}: {cause}")
    for member in region:
        slot = epoch.slots[member]
        _undo(job, slot)
        slot.phase, slot.attempt, slot.gateway = SlotPhase.ABSENT, None, GatewayState()
        slot.generation += 1  # mutant: only-the-failed-gets-a-generation
        slot.since = job.now
        slot.start_not_before = job.now + delay
        if member not in job.registry.waiting:  # a newer Hello gets its Start alone ◆
            job.emit(Append(member, Reset(epoch.number, slot.generation)))
        if job.has_coordinator(member.operator):
            job.emit(CallSubtaskReset(member.operator, member.index, job.history.last_id))
    return None


def said_failed(job: JobState, slot: Slot, failed: Failed) -> None:
    """An attempt says that it has failed. If one before it missed the same event, the log has a hole, or somebody's
    record: every attempt would miss it again, and a new epoch voids it ◆."""
    stream = slot.stream
    if stream is not None and failed.missing >= 0:
        if stream.missing == failed.missing:  # mutant: same-gap-for-ever
            cause = f"two attempts of {slot.subtask} missed event {failed.missing}; the last one: {failed.cause}"
            return fail_globally(job, cause, failed=slot.subtask)
        stream.missing = failed.missing
    return fail_attempt(job, slot.subtask, failed.cause)


def fail_globally(job: JobState, cause: str, *, failed: SubtaskId | None = None, counted: bool = True) -> None:
    """The coordinators are rolled back: a new epoch. However many causes come together, once."""
    if job.phase not in (Phase.CATCHING_UP, Phase.RUNNING):
        return
    epoch = job.current
    delay = _spend(job, counted, None, cause)
    if delay is None:
        return
    job.statistics.global_failovers += 1
    job.statistics.last_failure = cause
    undone = [subtask for subtask, slot in epoch.slots.items() if slot.phase is not SlotPhase.DONE]
    job.timeline.failed_over(job.now, cause, undone, of_job=True)
    for subtask, slot in epoch.slots.items():
        _undo(job, slot)
        if slot.attempt is not None and job.has_coordinator(subtask.operator):
            reason = cause if subtask == failed else None
            job.emit(CallFailed(subtask.operator, subtask.index, slot.attempt.id, reason))
    reason = f"global failover: {cause}"
    for pending in epoch.pending.values():
        if pending.step is Step.PREPARED:
            continue  # a query decides about it
        for operator in job.coordinated():
            job.emit(CallAborted(operator, pending.id, reason))
        checkpoints.forget(job, pending, reason)
    for slot in epoch.slots.values():
        # mutant: rollback-forgets-futures
        sending.fail_stream(job, slot, RolledBack(f"epoch {epoch.number} has been rolled back: {cause}"))
    wait_again(job, failed)
    job.epoch = None
    job.phase = Phase.BACKING_OFF
    job.next_epoch.claim_at = job.now + delay
    job.next_epoch.cause = cause


def _undo(job: JobState, slot: Slot) -> None:
    """Its instance is to say Hello again; one that is frozen, or stuck in user code, does not."""
    attempt, log_time = slot.attempt, job.clock.seconds
    if attempt is not None and not job.settings.driven_by_query:
        hello, killed_at = attempt.hello, log_time if attempt.killed else None
        job.registry.undone[slot.subtask] = UndoneAttempt(
            attempt.id, hello.task, hello.host, log_time, attempt.seen_at, attempt.step, killed_at
        )


def end_undone(job: JobState) -> None:
    """Ends the task of whoever is to start over and falls silent, or goes on in user code for too long ◆.

    Where that does not end it, nobody can who is there: the job fails, rather than wait for ever. One that is silent
    then is waited for, since it may have died, and its task may yet be started again.
    """
    log_time, settings = job.clock.seconds, job.settings
    for subtask, undone in job.registry.undone.items():
        if subtask in job.registry.waiting:
            continue  # it has said so, or another is to take its place
        silent_s = log_time - undone.seen_at
        silent = silent_s > settings.heartbeat_timeout
        waited_s = log_time - (undone.since if undone.killed_at is None else undone.killed_at)
        if undone.killed_at is None and silent:
            _end_task(job, subtask, undone, f"silent for {silent_s:.1f} s, and it had to start over")
        elif silent or waited_s <= settings.task_cancellation_timeout:
            continue
        elif undone.killed_at is None:
            # mutant: stuck-waited-for
            _end_task(job, subtask, undone, f"it had to start over {waited_s:.1f} s ago, and goes on ({undone.doing})")
        else:
            job.due_end = (
                Ending.FAILED,
                f"{subtask} had to start over {log_time - undone.since:.0f} s ago, and its attempt {undone.attempt}"
                f" goes on ({undone.doing}); its task was to be ended {waited_s:.0f} s ago, and no runner did. End it"
                f" by hand (task {undone.task or 'unknown'}, host {undone.host or 'unknown'}) and start the job again,"
                " or raise task_cancellation_timeout"
                f" ({settings.task_cancellation_timeout:g} s) above what user code may take",
            )


def ends_unconfirmed(job: JobState, subtask: SubtaskId) -> bool:
    """Fails an attempt that speaks, but not under its Start: it goes on in the user code of a generation before ◆."""
    answered = job.registry.unconfirmed.get(subtask)
    since = None if answered is None else answered.astray_since
    if since is None or job.clock.seconds - since <= job.settings.task_cancellation_timeout:
        return False
    del job.registry.unconfirmed[subtask]  # no further Start: its task is to end
    cause = f"not under its Start for {job.clock.seconds - since:.1f} s: it goes on with what it did before"
    fail_attempt(job, subtask, cause, silent=True)
    return True


def _end_task(job: JobState, subtask: SubtaskId, undone: UndoneAttempt, cause: str) -> None:
    undone.killed_at = job.clock.seconds
    job.emit(KillTask(subtask, undone.task, cause))


def wait_again(job: JobState, failed: SubtaskId | None = None) -> None:
    """Nothing has been heard of these attempts: their Start may have been refused with the frame behind it ◆."""
    for subtask, answered in job.registry.unconfirmed.items():
        if subtask != failed:  # mutant: lost-start-forgotten
            answered.at_takeover = True
            job.registry.waiting.setdefault(subtask, answered)


def _spend(job: JobState, counted: bool, failed: SubtaskId | None, cause: str) -> float | None:
    """Seconds to wait before the restart; None where the budget is used up and the job ends.

    ``failed`` is None where the whole job has. What fails alike again and again, in a job that has never completed a
    checkpoint, has a mistake in it as a rule: it need not use up the budget.
    """
    if not counted:
        return 0.0
    if job.history.last is None:
        job.restarts.alike[failed, cause] += 1
        if job.restarts.alike[failed, cause] > ALIKE_MAX:
            who = "the job" if failed is None else str(failed)
            why = f"{who} failed {ALIKE_MAX + 1} times with the same cause, before any checkpoint completed: {cause}"
            job.due_end = (Ending.FAILED, why)
            return None
    delay = job.restarts.spend(job.now, () if failed is None else region_of(job, failed))
    if delay is None:
        strategy = job.settings.restart
        last = cause if failed is None else job.statistics.last_failure
        job.due_end = (
            Ending.FAILED,
            f"more than {strategy.budget} failovers in {strategy.budget_window:g} s; the last cause: {last}",
        )
    return delay
