"""Where a checkpoint's time goes, step by step, over the number of subtasks; the job is that of ``checkpoints``."""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from penstock.broker import EmbeddedBroker
from penstock.coordinator.protocol import checkpoints as protocol
from penstock.coordinator.protocol.timeline import Over, Timeline
from penstock.schemas.ids import SubtaskId

from .checkpoints import WARM_UP, Small, pause_of, running

_SECONDS = struct.Struct("<d")


class Stamped(Small):
    """Its state is the monotonic second of its snapshot: one clock for all processes of a machine."""

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return _SECONDS.pack(time.monotonic())


@dataclass
class Passed:
    """One checkpoint, in monotonic seconds."""

    cut: float
    """The coordinator had completed its future; the markers go to the client behind it."""
    ended: float
    """The commit stands."""
    snapshots: list[float] = field(default_factory=list)
    """Of each subtask, in the order of time."""
    acks: list[float] = field(default_factory=list)
    """The coordinator had read them, likewise."""


STEPS: Mapping[str, Callable[[Passed], float]] = {
    "first snapshot taken": lambda passed: passed.snapshots[0],
    "half of the snapshots": lambda passed: median(passed.snapshots),
    "last snapshot taken": lambda passed: passed.snapshots[-1],
    "first ack read by the coordinator": lambda passed: passed.acks[0],
    "half of the acks": lambda passed: median(passed.acks),
    "last ack read": lambda passed: passed.acks[-1],
    "commit stands": lambda passed: passed.ended,
}
"""Monotonic second of each, in the order in which they end."""


@contextmanager
def noted() -> Iterator[list[Passed]]:
    """Note every checkpoint that the coordinators of this process complete meanwhile."""
    found: list[Passed] = []
    snapshots: dict[int, dict[SubtaskId, float]] = {}
    acknowledge, checkpoint_over = protocol.acknowledge, Timeline.checkpoint_over

    def acknowledged(job: Any, slot: Any, offset: int, ack: Any) -> None:
        snapshots.setdefault(ack.checkpoint_id, {})[slot.subtask] = _SECONDS.unpack(ack.state.inline)[0]
        acknowledge(job, slot, offset, ack)

    def over(timeline: Timeline, ended: Over) -> None:
        taken = snapshots.pop(ended.id, {})
        if ended.reason is None and ended.times.marked_at is not None:
            acks = sorted(ended.times.acked_at.values())
            found.append(Passed(ended.times.marked_at, ended.ended_at, sorted(taken.values()), acks))
        checkpoint_over(timeline, ended)

    protocol.acknowledge, Timeline.checkpoint_over = acknowledged, over  # type: ignore[method-assign]
    try:
        yield found
    finally:
        protocol.acknowledge, Timeline.checkpoint_over = acknowledge, checkpoint_over  # type: ignore[method-assign]


def profile(bootstrap: str, subtasks: int, count: int) -> dict[str, float]:
    """Return milliseconds from the cut to each of ``STEPS``: medians of ``count`` checkpoints."""
    with noted() as found, running(bootstrap, subtasks, pause_of(subtasks), Stamped) as stopwatch:
        stopwatch.wait(subtasks, WARM_UP + count)
        taken = found[WARM_UP : WARM_UP + count]
    return {step: median(1000 * (at(passed) - passed.cut) for passed in taken) for step, at in STEPS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_profile", description=__doc__)
    parser.add_argument("subtasks", type=int, nargs="+")
    parser.add_argument("--checkpoints", type=int, default=20, help="of each number of subtasks (default 20)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(folder) as broker:
        for subtasks in chosen.subtasks:
            print(f"{subtasks:,} subtask(s), ms from the cut, medians of {chosen.checkpoints}", flush=True)
            for step, taken in profile(broker.bootstrap, subtasks, chosen.checkpoints).items():
                print(f"{taken:10.1f}  {step}", flush=True)


if __name__ == "__main__":
    main()
