"""What must hold of a coordinator's state between two inputs."""

from __future__ import annotations

from ...schemas.ids import NO_CHECKPOINT
from .pending import Step
from .registry import DISPLACED_MAX
from .state import Epoch, JobState, Phase, SlotPhase


def check_invariants(job: JobState) -> None:
    """Raises AssertionError where the state contradicts its own description."""
    epoch = job.epoch
    without = (Phase.NEW, Phase.RESCALING, Phase.CLAIMING, Phase.BACKING_OFF)
    assert (epoch is None) == (job.phase in without) or job.phase is Phase.ENDED
    assert (job.next_epoch.rescaling is not None) == (job.phase is Phase.RESCALING)
    assert job.commands.begun <= job.commands.waiting.keys()
    _check_registry(job)
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
        assert NO_CHECKPOINT < pending.id < job.schedule.next_id <= job.history.reserved_through + 1
    uncut = {operator for p in epoch.pending.values() for operator in p.uncut}
    assert {operator for operator, queue in epoch.withheld.items() if queue} <= uncut, "events withheld for no reason"
    assert all(count >= 0 for count in epoch.held_bytes.values())
    _check_feeds(epoch)
    if epoch.inherited_bytes > job.settings.held_bytes_max:
        assert not any(inherited.parts for inherited in epoch.inherited.values()), "inbox ranges above their bound"
    assert epoch.inherited_due <= epoch.inherited.keys()


def _check_feeds(epoch: Epoch) -> None:
    feeds = epoch.feeds
    assert all(batch <= feeds.positions.get(key, -1) for key, batch in feeds.durable.items()), "durable ahead of effect"
    assert all(feeds.positions[key] >= batch for key, (batch, _) in feeds.waiting.items()), "an answer without effect"
    assert feeds.calling is None or feeds.calling in feeds.parts


def _check_registry(job: JobState) -> None:
    registry, subtasks = job.registry, set(job.settings.subtasks())
    assert registry.run_id not in registry.older_runs
    for subtask, waiting in registry.waiting.items():
        assert subtask in subtasks and waiting.hello.subtask_id == subtask, f"{waiting} waits as {subtask}"
        tasks = [waiting.hello.task]
        while waiting.displaced is not None:
            waiting = waiting.displaced
            tasks.append(waiting.hello.task)
        assert tasks[0] not in tasks[1:] and len(tasks) <= DISPLACED_MAX + 1, f"{subtask}: {tasks} wait"
    if job.epoch is not None and job.phase is Phase.RUNNING:
        live = {slot.subtask for slot in job.live()}
        assert not live & registry.undone.keys(), "an attempt runs, and one before it is waited for"
        for subtask in live & registry.unconfirmed.keys():
            attempt = job.epoch.slots[subtask].attempt
            assert attempt is not None and attempt.id == registry.unconfirmed[subtask].offset
