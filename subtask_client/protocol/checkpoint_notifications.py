"""What became of a checkpoint, as its coordinator says (protocol, sections 7.7 and 7.8)."""

from __future__ import annotations

from ...schemas.events import CheckpointAborted, CheckpointCompleted
from . import alignment, ending
from . import effects as do
from .drop_reasons import Dropped
from .instance import Instance
from .running import Running


def completed(core: Instance, running: Running, notice: CheckpointCompleted) -> None:
    n = notice.checkpoint_id
    if notice.epoch != running.start.epoch or (finished := running.checkpoints.completed(n)) is None:
        return core.drop(Dropped.STALE_NOTICE)
    core.completed = max(core.completed, n)
    running.leaves_after = n if finished else None
    return core.emit(running.begin_call(do.NotifyCompleted(n)))


def aborted(core: Instance, running: Running, notice: CheckpointAborted) -> None:
    """Obeyed also while the events partition is blocked: what waits for this checkpoint goes on."""
    n, checkpoints = notice.checkpoint_id, running.checkpoints
    if notice.epoch != running.start.epoch:
        return core.drop(Dropped.STALE_NOTICE)
    begun = checkpoints.aborted(n)
    if running.alignment is not None and running.alignment.id == n:  # mutant: abort-leaves-blocked
        alignment.unblock(core, running)
    if (part := checkpoints.parts.pop(n, None)) is not None and part.location is not None:
        core.emit(do.DropState(part.location))
    if running.stopping is not None and running.stopping[0] == n:  # the job goes on: so does the work behind it
        alignment.resume_after_aborted_stop(core, running)
    if not begun:
        return core.drop(Dropped.STALE_NOTICE)
    return core.emit(running.begin_call(do.NotifyAborted(n, notice.reason)))


def notified(core: Instance, running: Running, checkpoint_id: int) -> None:
    completed = isinstance(running.call, do.NotifyCompleted)
    running.end_call(do.NotifyCompleted, do.NotifyAborted)
    if completed:
        ending.completion_notified(core, running, checkpoint_id)
