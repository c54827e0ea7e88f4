"""Events on their way to subtasks: numbered, framed, held or appended (protocol, section 6)."""

from __future__ import annotations

from ...schemas.errors import EventNotHandled
from ...schemas.events import EventFrame
from ...schemas.ids import NO_ATTEMPT
from .effects import Append, Settle
from .gateway import merged
from .state import JobState, Slot
from .stream import EventStream


def send(job: JobState, stream: EventStream, events: list[bytes]) -> None:
    """User code has sent ``events`` through ``stream``. A failed stream's futures have failed: nothing is sent."""
    if stream.failure is not None or job.epoch is None or stream.epoch != job.epoch.number:
        return
    slot = job.epoch.slots[stream.subtask]
    attempt = NO_ATTEMPT if slot.attempt is None else slot.attempt.id
    frames = stream.accept(events, attempt, events_max=job.limits.frame_events, bytes_max=job.limits.frame_bytes)
    if slot.gateway.closed:  # mutant: appended-past-a-closed-gateway
        for frame in frames:
            slot.gateway.hold(frame)
            job.epoch.held_bytes[slot.subtask.operator] += len(frame.payload)
        slot.gateway.join(job.limits.merged_events, job.limits.merged_bytes)
    else:
        append(job, slot, frames)


def append(job: JobState, slot: Slot, frames: list[EventFrame]) -> None:
    """Appends frames of the slot's stream, in order; those of a failed stream are dropped."""
    stream = slot.stream
    if not frames or stream is None or stream.failure is not None:
        return
    attempt = slot.attempt
    if attempt is not None and attempt.handled_through >= stream.appended_through:
        attempt.progress_at = job.clock.seconds  # the ack timeout runs from the first unhandled event
    job.emit(*(Append(slot.subtask, frame) for frame in frames))
    job.current.event_at = job.now
    stream.appended_through = frames[-1].sequence + frames[-1].count


def open_gateway(job: JobState, slot: Slot, checkpoint_id: int) -> None:
    """Opens by id; what may go now is appended."""
    before = slot.gateway.closed
    released = merged(slot.gateway.open(checkpoint_id), job.limits.merged_events, job.limits.merged_bytes)
    if checkpoint_id in before:
        job.current.held_bytes[slot.subtask.operator] -= sum(len(frame.payload) for frame in released)
        append(job, slot, released)


def release_below(job: JobState, slot: Slot, checkpoint_id: int) -> None:
    """Appends what lower ids hold: the marker of ``checkpoint_id`` is to stand behind it ◆."""
    released = merged(slot.gateway.release_below(checkpoint_id), job.limits.merged_events, job.limits.merged_bytes)
    job.current.held_bytes[slot.subtask.operator] -= sum(len(frame.payload) for frame in released)
    append(job, slot, released)


def fail_stream(job: JobState, slot: Slot, failure: EventNotHandled) -> None:
    """Every unsettled future of the slot's stream settles with ``failure``; the stream takes no more."""
    stream, slot.stream = slot.stream, None
    if stream is not None and stream.fail(failure):
        job.emit(Settle(stream))
