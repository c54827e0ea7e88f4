"""What becomes of a snapshot once the user's object has given its state: acked, or stored first (section 7.6)."""

from __future__ import annotations

from ...schemas.acks import CheckpointDecline, SnapshotTaken
from ...schemas.state import StateHandle
from . import effects as do
from .effects import Effect
from .inputs import SnapshotReturned, StateRefused, StateStored
from .running import Running
from .snapshots import Upload, location_of


def snapshot_returned(running: Running, returned: SnapshotReturned, inline_state_max: int) -> list[Effect]:
    """A small state travels in its ack. A larger one is stored while everything else goes on; SnapshotTaken goes
    ahead of that, so that events held for the snapshot need not wait."""
    running.end_call(do.TakeSnapshot)
    checkpoints, sender, state = running.checkpoints, running.sender, returned.state
    effects = running.flush()  # what snapshot_state sent belongs to this checkpoint
    cut = checkpoints.taken()
    sent_sequence = running.outbox.sent_sequence
    running.outbox.belongs_to = checkpoints.belongs_to
    if state is None or len(state) <= inline_state_max:
        running.reported_through = cut.handled_through  # the ack says so
        handle = None if state is None else StateHandle(len(state), inline=state)
        return [*effects, do.Write(cut.ack(sender, handle, sent_sequence, returned.elapsed_ms))]
    location = location_of(cut.checkpoint_id, sender)
    checkpoints.uploads[cut.checkpoint_id] = Upload(cut, location, len(state), sent_sequence)
    taken = SnapshotTaken(sender, cut.checkpoint_id)
    return [*effects, do.Write(taken), do.StoreState(cut.checkpoint_id, location, state)]


def state_stored(running: Running | None, stored: StateStored) -> list[Effect]:
    """Acks it, if this attempt still waits for it."""
    upload = _take_upload(running, stored.checkpoint_id, stored.location)
    if upload is None or running is None:
        return [do.DropState(stored.location)]
    handle = StateHandle(upload.size, location=upload.location)
    ack = upload.cut.ack(running.sender, handle, upload.sent_sequence, stored.elapsed_ms)
    return [*running.flush(), do.Write(ack)]


def state_refused(running: Running | None, refused: StateRefused) -> list[Effect]:
    upload = _take_upload(running, refused.checkpoint_id, refused.location)
    if upload is None or running is None:
        return []
    return [do.Write(CheckpointDecline(running.sender, refused.checkpoint_id, refused.cause))]


def _take_upload(running: Running | None, checkpoint_id: int, location: str) -> Upload | None:
    uploads = running.checkpoints.uploads if running is not None else {}
    upload = uploads.get(checkpoint_id)
    return uploads.pop(checkpoint_id) if upload is not None and upload.location == location else None
