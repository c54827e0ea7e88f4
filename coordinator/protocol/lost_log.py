"""A checkpoint log that has lost its end, as an unclean leader election makes one (protocol, section 4.5).

What stood there is gone for good. A restore to what is left would undo completed checkpoints in silence, so it is
refused unless a person asks for it.
"""

from __future__ import annotations

from ...schemas.acks import Hello
from ...schemas.errors import JobRefused
from ...schemas.settings import Restore
from .inputs import Begin
from .state import JobState


def check(job: JobState, begin: Begin) -> None:
    """Raise JobRefused if the log lacks what an earlier instance of this host knows to stand there."""
    job.accepts_lost_log = begin.restore is not Restore.LATEST
    known, history = begin.known, job.history
    if job.accepts_lost_log:
        return
    if known.checkpoint_id > history.completed_through:
        raise JobRefused(_told(job, f"checkpoint {known.checkpoint_id} was completed"))
    if known.epoch > history.epoch:
        raise JobRefused(_told(job, f"epoch {known.epoch} was begun"))


def refusal(job: JobState, hello: Hello) -> str | None:
    """Return why the job cannot go on: this instance was told of a checkpoint that the log lacks. None: it can."""
    if job.accepts_lost_log or hello.completed <= job.history.completed_through:
        return None
    return _told(job, f"subtask {hello.subtask_id} was told that checkpoint {hello.completed} is complete")


def _told(job: JobState, what: str) -> str:
    name, history = job.settings.name, job.history
    last = f"checkpoint {history.last_id}" if history.last is not None else "no checkpoint"
    way = f"--from-checkpoint {history.last_id}, or " if history.last is not None else ""
    return (
        f"the checkpoint log of job {name} has lost its end: {what}, and the log ends with {last} of epoch"
        f" {history.epoch}. Kafka elected a broker without these records (unclean.leader.election.enable=true, or"
        f" min.insync.replicas=1 and a lost disk). What the job did behind it elsewhere is not undone by a restore. To"
        f" go on from what is left all the same, start with {way}--fresh"
    )
