"""Stop: one instance of a subtask is told to return normally, and told again until that stands (section 4)."""

from __future__ import annotations

from dataclasses import replace

from ...schemas.acks import Hello
from ...schemas.events import Stop
from ...schemas.ids import NO_ATTEMPT, SubtaskId
from ...schemas.sanitize import recordable
from .effects import Append
from .registry import OwedStop
from .state import JobState


def stop_superseded(job: JobState, offset: int, hello: Hello, newer: int) -> None:
    reason = f"superseded by attempt {newer}, which said Hello after attempt {hello.previous} of this instance"
    _append(job, hello, Stop(job.history.epoch, offset, hello.nonce, reason, superseded=True))


def stop(job: JobState, attempt: int, hello: Hello, reason: str) -> None:
    """Tells one instance to return normally, so that nothing retries it for ever."""
    _append(job, hello, Stop(job.history.epoch, attempt, hello.nonce, recordable(reason)))


def stop_finished(job: JobState, subtask: SubtaskId) -> None:
    """Whose end the restored checkpoint contains leaves ◆: its notice may never have stood, and where everybody has
    finished this coordinator is gone before it could answer another Hello."""
    restored = job.current.restored
    assert restored is not None
    snapshot = restored.subtasks.get(subtask)
    if snapshot is None or snapshot.attempt == NO_ATTEMPT:
        return  # it has come with a rescaling, or since a stop, and never ran
    reason = why_done(job, f"checkpoint {restored.id} contains the end of {subtask}")
    job.emit(Append(subtask, Stop(job.current.number, snapshot.attempt, "", reason)))


def why_done(job: JobState, finished: str) -> str:
    """Why a subtask is never started again: the job stops, or it has ``finished``."""
    stopping = job.history.stopping
    return finished if stopping is None else stopping.cause


def _append(job: JobState, hello: Hello, stop: Stop) -> None:
    job.registry.owed_stops.append(OwedStop(hello.subtask_id, stop, until=job.schedule.next_id))
    job.emit(Append(hello.subtask_id, stop))


def stop_again(job: JobState) -> None:
    """Append every owed Stop again: the broker may have refused it with a record behind it ◆."""
    for owed in job.registry.owed_stops:
        job.emit(Append(owed.subtask, replace(owed.stop, epoch=job.history.epoch)))


def stand(job: JobState, checkpoint_id: int) -> None:
    """A checkpoint completes: whoever acknowledged it read its marker, so what stood before that has not been refused.

    A Stop behind its markers, or to a subtask that has finished and got none, is owed on ◆.
    """
    marked = {slot.subtask for slot in job.live()}
    stand = [owed for owed in job.registry.owed_stops if owed.until <= checkpoint_id and owed.subtask in marked]
    for owed in stand:
        job.registry.owed_stops.remove(owed)
