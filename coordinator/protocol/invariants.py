"""What must hold of a coordinator's state between two inputs."""

from __future__ import annotations

from ...schemas.ids import NO_CHECKPOINT
from .pending import Step
from .state import JobState, Phase, SlotPhase


def check_invariants(job: JobState) -> None:
    """Raises AssertionError where the state contradicts its own description."""
    epoch = job.epoch
    without = (Phase.NEW, Phase.RESCALING, Phase.CLAIMING, Phase.BACKING_OFF)
    assert (epoch is None) == (job.phase in without) or job.phase is Phase.ENDED
    if epoch is None:
        return
    assert set(epoch.slots) == set(job.settings.subtasks())
    for subtask, slot in epoch.slots.items():
        assert (slot.attempt is not None) == (slot.phase is SlotPhase.LIVE), slot
        assert not (slot.phase is SlotPhase.ABSENT and slot.gateway.closed), f"{subtask} holds events for nobody"
        assert set(slot.gateway.closed) <= set(epoch.pending), f"{subtask} is closed for {slot.gateway.closed}"
        if slot.attempt is not None:
            assert slot.attempt.generation == (epoch.number, slot.generation), slot
        if (stream := slot.stream) is not None:
            assert stream.epoch == epoch.number
            assert stream.handled_through <= stream.appended_through <= stream.next_sequence, stream
            held = stream.next_sequence - stream.appended_through
            assert slot.gateway.held_events == held or stream.failure is not None, (subtask, held)
    assert sorted(epoch.pending) == list(epoch.pending)
    calling = [p.id for p in epoch.pending.values() if p.step is Step.CALLING]
    assert len(calling) <= 1 and (not calling or calling[0] == max(epoch.pending)), "one call at a time"
    for pending in epoch.pending.values():
        assert bool(pending.uncut) == (pending.step is Step.CALLING), pending
        assert set(pending.acks) <= pending.required, pending
        lacking = pending.required - set(pending.acks)
        assert all(epoch.slots[s].phase is SlotPhase.LIVE for s in lacking), "a failover aborts"
        assert NO_CHECKPOINT < pending.id < job.next_checkpoint_id <= job.history.reserved_through + 1
    uncut = {operator for p in epoch.pending.values() for operator in p.uncut}
    assert {operator for operator, queue in epoch.withheld.items() if queue} <= uncut, "events withheld for no reason"
    assert all(count >= 0 for count in epoch.held_bytes.values())
    if epoch.inherited_bytes > job.settings.held_bytes_max:
        assert not any(inherited.parts for inherited in epoch.inherited.values()), "inbox ranges above their bound"
    assert epoch.inherited_due <= epoch.inherited.keys()
