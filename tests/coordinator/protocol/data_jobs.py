"""Jobs with data channels, what their checkpoints name, and what can happen to them: for tests."""

from __future__ import annotations

from typing import Any

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised
from penstock.coordinator.protocol.state import SlotPhase
from penstock.schemas.graph import DataPartition, InputSettings, Partitioning
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings, RestartStrategy
from penstock.schemas.state import Segment

from .driver import Script, channel, open_from

A0, A1 = SubtaskId("a", 0), SubtaskId("a", 1)
B0, B1 = SubtaskId("b", 0), SubtaskId("b", 1)
C0 = SubtaskId("c", 0)
TO_B0, TO_B1 = DataPartition("a", B0), DataPartition("a", B1)
FOREVER = RestartStrategy(backoff_next=0.0, backoff_max=0.0, budget=1_000)
RANGE = Segment(4, 9, 1, 0, 1)
"""Of an unaligned checkpoint: closed in the generation that it was written in, by the attempt that wrote there."""


def operator(name: str, parallelism: int, *upstreams: str, by: Partitioning = Partitioning.KEYED) -> OperatorSettings:
    return OperatorSettings(name, parallelism, inputs=tuple(InputSettings(upstream, by) for upstream in upstreams))


def pair(by: Partitioning = Partitioning.KEYED, **changes: Any) -> Script:
    """Two subtasks of ``a`` feed two of ``b``; nothing has been emitted."""
    return Script.running(operator("a", 2), operator("b", 2, "a", by=by), restart=FOREVER, **changes)


def started(script: Script, receiver: SubtaskId = B0) -> dict[str, tuple[Segment, ...]]:
    """The segments that the newest Start of ``receiver`` names, by channel."""
    return {position.channel: position.segments for position in script.task(receiver).start.data_positions}


def hello_all(script: Script) -> None:
    """Whoever is down comes back."""
    for subtask in script.settings.subtasks():
        if script.slot(subtask).phase is SlotPhase.ABSENT:
            script.hello(subtask)


def fail_region(script: Script) -> None:
    script.read(script.task(B1).failed())
    hello_all(script)


def fail_job(script: Script) -> None:
    script.handle(CoordinatorRaised("a", script.job.history.epoch, "call_later", "no"))
    hello_all(script)


def replace_coordinator(script: Script) -> None:
    script.restart()
    hello_all(script)


NEW_EPOCHS = [fail_job, replace_coordinator]
FAILOVERS = [fail_region, *NEW_EPOCHS]


def unaligned(script: Script, *segments: Segment, end: int = 12) -> int:
    """A checkpoint for which b/0 names a range of a/0's channel; behind it both channels are open from ``end`` on."""
    script.emit_data("a", B0, end)
    opened = open_from(end, (script.epoch.number, script.slot(B0).generation))
    script.positions[B0] = (channel(A0, *(segments or (RANGE,)), opened, sequence=3), channel(A1, opened))
    return script.checkpoint()


def floors(script: Script) -> dict[DataPartition, int]:
    """What the newest Truncate says of data partitions."""
    return dict(script.made(effects.Truncate)[-1].data)


def at(begin: int, *segments: Segment) -> tuple[Segment, ...]:
    return (*segments, open_from(begin, (1, 0)))


def checkpoint(script: Script, a0: tuple[Segment, ...], a1: tuple[Segment, ...]) -> int:
    """One in which b/0 names these segments; b/1 has read nothing."""
    script.positions = {
        B0: (channel(A0, *a0), channel(A1, *a1)),
        B1: (channel(A0, *at(0)), channel(A1, *at(0))),
    }
    return script.checkpoint()
