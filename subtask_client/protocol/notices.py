"""What became of a checkpoint, as its coordinator says (protocol, sections 7.7 and 7.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.events import CheckpointAborted, CheckpointCompleted
from . import effects as do
from .effects import Departure, Effect
from .reading import Dropped

if TYPE_CHECKING:
    from .core import SubtaskCore
    from .running import Running


def completed(core: SubtaskCore, running: Running, notice: CheckpointCompleted) -> list[Effect]:
    n = notice.checkpoint_id
    if notice.epoch != running.start.epoch or (finished := running.checkpoints.completed(n)) is None:
        return core.drop(Dropped.STALE_NOTICE)
    running.ends_with = n if finished else None
    return [running.begin_call(do.NotifyCompleted(n))]


def aborted(core: SubtaskCore, running: Running, notice: CheckpointAborted) -> list[Effect]:
    n = notice.checkpoint_id
    if notice.epoch != running.start.epoch or not running.checkpoints.aborted(n):
        return core.drop(Dropped.STALE_NOTICE)
    upload = running.checkpoints.uploads.pop(n, None)
    effects: list[Effect] = [] if upload is None else [do.DropState(upload.location)]
    if running.stopping is not None and running.stopping[0] == n:  # the job goes on: so does the work behind it
        core.position = running.stopping[1] + 1
        running.stopping = None
        effects.append(do.Seek(core.position))
    return [*effects, running.begin_call(do.NotifyAborted(n))]


def told(core: SubtaskCore, running: Running, checkpoint_id: int) -> list[Effect]:
    running.end_call(do.NotifyCompleted, do.NotifyAborted)
    if running.ends_with == checkpoint_id:
        return core.leave(Departure.FINISHED, f"checkpoint {checkpoint_id} contains the end of {core.who()}")
    return []
