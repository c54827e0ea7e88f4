"""What always holds of a core between two inputs; tests and the simulator check it after each."""

from __future__ import annotations

from itertools import pairwise

from ...schemas.ids import NO_CHECKPOINT
from . import effects as do
from .core import SubtaskCore
from .phases import Phase
from .running import Running


def check_invariants(core: SubtaskCore) -> None:
    """Raises AssertionError, naming what is broken."""
    assert (core.running is not None) == (core.phase in (Phase.RUNNING, Phase.FINISHED)), "a Start outside an attempt"
    if core.phase is Phase.WAITING:
        assert core.nonce is not None, "waits for the answer to no Hello"
    assert core.looking is None or core.phase is Phase.NEW, "looks for a successor although it has said Hello"
    assert core.position >= 0
    assert all(count > 0 for count in core.dropped.values())
    if core.running is not None:
        _check_running(core, core.running)


def _check_running(core: SubtaskCore, running: Running) -> None:
    start, reading, checkpoints = running.start, running.reading, running.checkpoints
    assert core.attempt == start.attempt == running.sender.attempt, "runs as another attempt than its Start names"
    assert running.sender.full_generation == start.full_generation
    assert core.epoch_seen >= start.epoch, "runs under an epoch below the highest it has seen without having seen it"
    assert core.foreign_attempt <= start.attempt, "runs although a newer attempt was started"

    assert all(a.end <= b.begin for a, b in pairwise(reading.ranges)), "ranges overlap"
    assert reading.handled_through >= 0
    assert running.reported_through <= running.handled_through(_under_way(running)), "reported more than was handled"
    assert (running.handling is not None) == isinstance(running.call, do.HandleEvents)

    assert (running.ended_in is not None) == core.finished
    assert running.leaves_after is None or isinstance(running.call, do.NotifyCompleted)

    assert checkpoints.begun >= start.next_checkpoint_id - 1 >= NO_CHECKPOINT
    assert checkpoints.completed_through <= checkpoints.begun, "a checkpoint completed that was never begun"
    assert all(n <= checkpoints.begun for n in checkpoints.unsettled)
    assert checkpoints.parts.keys() <= checkpoints.unsettled.keys(), "waits to ack a settled checkpoint"
    assert all(part.storing or part.missing for part in checkpoints.parts.values()), "waits for nothing"
    assert (checkpoints.cut is not None) == isinstance(running.call, do.TakeSnapshot)
    if checkpoints.cut is not None:
        assert checkpoints.cut.checkpoint_id > checkpoints.begun

    assert running.outbox.belongs_to == checkpoints.belongs_to, "a frame was begun for another checkpoint"
    assert running.outbox.bytes_waiting <= core.config.frame_bytes_max + core.config.event_bytes_max + 4
    aligning = running.alignment
    if running.stopping is not None:
        begun = running.stopping[0] <= checkpoints.begun or isinstance(running.call, do.TakeSnapshot)
        assert begun or (aligning is not None and aligning.id == running.stopping[0])
    assert (running.taking is not None) == isinstance(running.call, do.HandleRecords)
    if aligning is not None:
        assert aligning.id > checkpoints.begun, "aligns for a checkpoint that it has begun"
        assert aligning.delivered, "aligns although nobody has delivered"
        assert not aligning.delivered >= {None, *running.channels.open}, "everybody has delivered, and no snapshot"


def _under_way(running: Running) -> int:
    return len(running.call.events) if isinstance(running.call, do.HandleEvents) else 0
