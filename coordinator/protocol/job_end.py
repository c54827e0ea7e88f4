"""The end of a job: its coordinators finish what they have begun, then it is committed (protocol, section 7.10).

::

    every subtask DONE ──Drain──> draining ──WorkLeft: none──> JobFinished commits ──> ENDED
                                     │
                                     └──end_timeout──> failed, with the operators that had work left
"""

from __future__ import annotations

from ...checkpoint_log.history import keyed
from ...schemas.checkpoints import JobFinished, JobOutcome
from ...schemas.ids import NO_CHECKPOINT
from ...schemas.status import Ending
from . import checkpoints, commands
from .after_commit import EndJob
from .effects import Drain
from .inputs import WorkLeft
from .state import Draining, JobState, SlotPhase


def drain(job: JobState) -> bool:
    """Begin to drain once every subtask is done; fail the job where that takes too long. Whether either happened."""
    epoch = job.current
    if (draining := epoch.draining) is not None:
        if job.now < draining.until:
            return False
        left = ", ".join(f"{operator} ({count})" for operator, count in sorted(draining.left.items()))
        job.due_end = (
            Ending.FAILED,
            f"{_how(job)[1]}, and the coordinators of {left} had calls of call_async that did not end within"
            f" {job.settings.end_timeout:g} s (end_timeout). Start the job again: it restores checkpoint"
            f" {job.history.last_id}, notifies its coordinators that it is complete, and then ends",
        )
        return True
    if any(slot.phase is not SlotPhase.DONE for slot in epoch.slots.values()):
        return False
    for pending in list(epoch.pending.values()):  # what is withheld for them is handed over
        checkpoints.abort(job, pending, commands.JOB_ENDS, countable=False)  # mutant: ends-with-notices-withheld
    epoch.draining = Draining(job.now + job.settings.end_timeout)
    commands.refuse_savepoints(job)
    job.emit(Drain())
    return True


def work_left(job: JobState, left: WorkLeft) -> None:
    epoch = job.epoch
    if epoch is None or epoch.number != left.epoch or epoch.draining is None:
        return
    epoch.draining.left = left.by_operator
    if not left.by_operator:  # mutant: ends-with-work-left
        job.due_end = job.due_end or _how(job)


def _how(job: JobState) -> tuple[Ending, str]:
    if (stopping := job.history.stopping) is not None:
        return Ending.STOPPED, stopping.cause
    return Ending.FINISHED, "every subtask has finished"


def commit(job: JobState) -> bool:
    """Commit the end that is due. A stop that failed is finished by whoever starts the job next."""
    assert job.due_end is not None
    (ending, cause), job.due_end = job.due_end, None
    finished = JobFinished(job.history.epoch, JobOutcome(ending), cause, job.registry.run_id)
    over = [] if ending is Ending.FAILED else job.history.stop_tombstone()
    job.commit([*keyed(finished), *over], EndJob(ending, cause))
    return True


def ended(job: JobState, how: EndJob) -> None:
    """The end of the job is committed."""
    if how.command is not None:
        commands.answered(job, how.command, how.cause, NO_CHECKPOINT)
    job.end(how.ending, how.cause)
