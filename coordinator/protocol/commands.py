"""What people and programs ask of a running job: executed until their effect or refusal is committed (section 8)."""

from __future__ import annotations

from collections.abc import Iterable

from ...checkpoint_log.history import Checkpoint, keyed
from ...schemas.acks import Command, CommandKind
from ...schemas.checkpoints import CommandExecuted, JobFinished, JobOutcome
from ...schemas.ids import NO_CHECKPOINT
from ...schemas.status import CommandReply, Ending
from . import retention
from .after_commit import AnswerCommands, CommandOutcome, EndJob, ForgetDiscarded
from .effects import CallRequest, Reply
from .inputs import RequestAnswered
from .state import Dropped, JobState, SavepointRequest

JOB_ENDS = "every subtask has ended, and the job is about to"
WAITING_MAX = 1_000
"""Commands begun and not executed; more are refused at once (G7)."""


def read_command(job: JobState, offset: int, command: Command) -> None:
    if offset < job.history.commands_position or offset in job.history.executed:
        return job.drop(Dropped.COMMAND_EXECUTED_BEFORE)
    job.commands.waiting[offset] = command
    return None


def begin_due(job: JobState) -> bool:
    """Begins every command that has not begun; whether there was one."""
    waiting = [offset for offset in job.commands.waiting if offset not in job.commands.begun]
    for offset in waiting:
        job.commands.begun.add(offset)
        _begin(job, offset, job.commands.waiting[offset])
        if job.committing is not None:
            break
    return bool(waiting)


def _begin(job: JobState, offset: int, command: Command) -> None:
    if len(job.commands.begun) > WAITING_MAX and command.kind is not CommandKind.STOP:
        refuse(job, offset, f"{WAITING_MAX} commands wait for their effect already; ask again when some have had it")
        return
    stops = command.kind in (CommandKind.STOP, CommandKind.STOP_WITH_SAVEPOINT)
    if stops and offset < job.registry.run_offset:  # mutant: a-stop-is-executed-late
        _refuse_stop(job, offset)
        return
    if job.current.draining is not None and command.kind in (CommandKind.SAVEPOINT, CommandKind.STOP_WITH_SAVEPOINT):
        refuse(job, offset, JOB_ENDS)
        return
    if job.settings.driven_by_query and command.kind in (CommandKind.SAVEPOINT, CommandKind.STOP_WITH_SAVEPOINT):
        refuse(job, offset, "a query drives this job: its savepoints are copies of Spark's checkpointLocation")
        return
    match command.kind:
        case CommandKind.SAVEPOINT:
            job.schedule.savepoints.append(SavepointRequest(offset, stop=False))
        case CommandKind.STOP_WITH_SAVEPOINT:
            job.schedule.savepoints.append(SavepointRequest(offset, stop=True))
        case CommandKind.STOP:
            _stop(job, offset, command)
        case CommandKind.REQUEST:
            if command.operator in job.coordinated():
                job.emit(CallRequest(command.operator, offset, command.payload))
            else:
                known = ", ".join(job.coordinated()) or "none"
                refuse(job, offset, f"no operator {command.operator!r} with a coordinator; there is: {known}")
        case CommandKind.DISCARD:
            _discard(job, offset, command)


def _discard(job: JobState, offset: int, command: Command) -> None:
    """A savepoint, or another checkpoint that no restart needs, is given up with all that only it holds."""
    history, asked = job.history, command.payload[:20]
    n = int(asked) if asked.isdigit() else NO_CHECKPOINT
    if n not in history.checkpoints:
        kept = ", ".join(map(str, sorted(history.checkpoints))) or "none"
        return refuse(job, offset, f"there is no checkpoint {asked.decode(errors='replace')}; kept are: {kept}")
    if n == history.last_id:  # mutant: discards-the-last-one
        return refuse(job, offset, f"checkpoint {n} is the last completed one: a restart begins with it")
    executed = CommandExecuted(offset, command.command, True, _discarded(n), n)
    then = ForgetDiscarded(offset, history.checkpoints[n])
    return job.commit([*keyed(executed), *history.checkpoint_tombstones([n], commands_below=0)], then)


def discarded(job: JobState, offset: int, gone: Checkpoint) -> None:
    retention.forget(job, [gone])
    answered(job, offset, _discarded(gone.id), gone.id)


def _discarded(n: int) -> str:
    return f"checkpoint {n} discarded"


def refuse_savepoints(job: JobState) -> None:
    """Refuse those that wait for their turn: nobody is left to take part in one."""
    for request in job.schedule.savepoints:
        refuse(job, request.command, JOB_ENDS)
    job.schedule.savepoints.clear()


def refuse_stops(job: JobState) -> None:
    """A newer run has begun: what was to stop the one before, and has not been triggered, is refused."""
    for request in [request for request in job.schedule.savepoints if request.stop]:
        job.schedule.savepoints.remove(request)
        _refuse_stop(job, request.command)


def _refuse_stop(job: JobState, offset: int) -> None:
    refuse(job, offset, f"the run that it was meant for ended before run {job.registry.run_id} began")


def _stop(job: JobState, offset: int, command: Command) -> None:
    cause = f"stopped by {command.issuer}"
    records = keyed(
        CommandExecuted(offset, command.command, True, cause),
        JobFinished(job.history.epoch, JobOutcome.STOPPED, cause, job.registry.run_id),
    )
    job.commit([*records, *job.history.stop_tombstone()], EndJob(Ending.STOPPED, cause, offset))


def request_answered(job: JobState, answer: RequestAnswered) -> None:
    command = job.commands.waiting.get(answer.offset)
    if command is not None:
        executed = CommandExecuted(answer.offset, command.command, answer.accepted, answer.outcome)
        job.commands.outcomes.append(CommandOutcome(executed, answer.payload))


def refuse(job: JobState, offset: int, reason: str) -> None:
    """The command has no effect; the refusal is committed, then told."""
    command = job.commands.waiting.get(offset)
    if command is not None:
        job.commands.outcomes.append(CommandOutcome(CommandExecuted(offset, command.command, False, reason)))


def commit_outcomes(job: JobState) -> bool:
    """Commits what came of commands, then answers them; whether there was anything to commit."""
    outcomes, job.commands.outcomes = job.commands.outcomes, []
    if not outcomes:
        return False
    job.commit(keyed(*(outcome.executed for outcome in outcomes)), AnswerCommands(tuple(outcomes)))
    return True


def executed(job: JobState, outcomes: Iterable[CommandOutcome]) -> None:
    """Their outcomes are committed."""
    for outcome in outcomes:
        done = outcome.executed
        job.commands.forget(done.offset)
        reply = CommandReply(done.command, done.accepted, done.outcome, done.checkpoint_id, outcome.payload)
        job.emit(Reply(reply))


def answered(job: JobState, offset: int, outcome: str, checkpoint_id: int) -> None:
    """The command's effect is committed."""
    command = job.commands.waiting[offset]
    job.commands.forget(offset)
    job.emit(Reply(CommandReply(command.command, True, outcome, checkpoint_id, b"")))
