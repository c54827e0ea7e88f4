"""What becomes of a snapshot once the user's object has given its state (section 7.6).

A small state travels in its ack. A larger one is stored while everything else goes on; and an unaligned snapshot waits
for the channels that have not delivered. SnapshotTaken goes ahead of either, so that held events need not wait.
"""

from __future__ import annotations

from dataclasses import replace

from ...schemas.acks import CheckpointDecline, SnapshotTaken
from ...schemas.ids import SubtaskId
from ...schemas.state import StateHandle, attempt_location
from . import effects as do
from .inputs import SnapshotReturned, StateRefused, StateStored
from .instance import Instance
from .running import Running
from .snapshots import Part


def snapshot_returned(core: Instance, running: Running, returned: SnapshotReturned) -> None:
    """Flush, so that what snapshot_state sent and emitted stands before the barriers and the ack; then ack or wait."""
    running.end_call(do.TakeSnapshot)
    checkpoints, sender, state = running.checkpoints, running.sender, returned.state
    n, savepoint = returned.checkpoint_id, checkpoints.savepoint
    core.emit(*running.flush())  # mutant: snapshot-events-left-out.before-barriers
    # mutant: barrier-before-its-records, barrier-with-the-ack.snapshot
    core.emit(*running.outputs.barriers(n, savepoint=savepoint, at_ms=returned.wall_ms))
    cut = checkpoints.taken()
    part = Part(cut, running.outbox.sent_sequence, None, returned.elapsed_ms, checkpoints.missing, storing=False)
    checkpoints.parts[n] = part
    running.outbox.belongs_to = checkpoints.belongs_to
    if state is not None and len(state) <= core.config.inline_state_max:
        part.state = StateHandle(len(state), inline=state)
    elif state is not None:
        part.state, part.storing = StateHandle(len(state), location=attempt_location(n, sender)), True
    if part.storing or part.missing:
        core.emit(do.Write(SnapshotTaken(sender, n)))
    if part.storing:
        assert state is not None and part.location is not None
        core.emit(do.StoreState(n, part.location, state))
    _ack_if_complete(core, running, n)


def delivered(core: Instance, running: Running, checkpoint_id: int, who: SubtaskId | None) -> None:
    """A channel that was behind has delivered; its range has been closed."""
    running.checkpoints.parts[checkpoint_id].missing.discard(who)
    _ack_if_complete(core, running, checkpoint_id)


def give_up(core: Instance, running: Running, checkpoint_id: int, reason: str) -> None:
    part = running.checkpoints.parts.pop(checkpoint_id)
    if part.location is not None:
        core.emit(do.DropState(part.location))
    core.emit(do.Write(CheckpointDecline(running.sender, checkpoint_id, reason)))


def state_stored(core: Instance, running: Running | None, stored: StateStored) -> None:
    """Acks it, if this attempt still waits for it and for nothing else."""
    part = _storing(running, stored.checkpoint_id, stored.location)
    if part is None or running is None:
        return core.emit(do.DropState(stored.location))
    assert part.state is not None
    part.storing, part.elapsed_ms = False, stored.elapsed_ms
    part.state = replace(part.state, checksum=stored.checksum)
    return _ack_if_complete(core, running, stored.checkpoint_id)


def state_refused(core: Instance, running: Running | None, refused: StateRefused) -> None:
    if _storing(running, refused.checkpoint_id, refused.location) is None or running is None:
        return
    del running.checkpoints.parts[refused.checkpoint_id]
    core.emit(do.Write(CheckpointDecline(running.sender, refused.checkpoint_id, refused.cause, not_stored=True)))


def _ack_if_complete(core: Instance, running: Running, checkpoint_id: int) -> None:
    part = running.checkpoints.parts[checkpoint_id]
    if (
        part.storing
        # mutant: unaligned-ack-at-once
        or part.missing
    ):
        return
    del running.checkpoints.parts[checkpoint_id]
    if running.reported_through < part.cut.handled_through:
        running.reported_through = part.cut.handled_through  # the ack says so
    core.emit(*running.flush())  # mutant: snapshot-events-left-out.before-ack, barrier-with-the-ack.ack
    core.emit(do.Write(part.cut.ack(running.sender, part.state, part.sent_sequence, part.elapsed_ms)))


def _storing(running: Running | None, checkpoint_id: int, location: str) -> Part | None:
    part = None if running is None else running.checkpoints.parts.get(checkpoint_id)
    return part if part is not None and part.storing and part.location == location else None
