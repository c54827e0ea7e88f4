"""What restored ranges need: partitions that are not read for a while, and failures before the next checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schemas.acks import FailureHint
from penstock.schemas.codec import encode

from .faults import Fault

if TYPE_CHECKING:
    from .subtask_process import SubtaskProcess
    from .world import Action, World

BURST_MAX = 3
"""Records that a source emits at once."""
_STALL_STEPS, _STALL_STEPS_IN_RANGE = (5, 25), (30, 100)
"""How long a partition is not read, by how many operators there are."""
_STALL, _STALL_IN_RANGE, _STALL_EVENTS = 0.06, 2.0, 0.03
_STRIKE = 0.3
STRIKES_MAX = 3
"""Before the next checkpoint, which else would hardly ever complete."""


class Stalls:
    """Partitions that an instance does not read although they have records; None is the events partition."""

    def __init__(self, instance: SubtaskProcess) -> None:
        self._instance = instance
        self._until: dict[str | None, int] = {}

    def on(self, upstream: str | None) -> bool:
        world = self._instance.world
        return world.faulty and self._until.get(upstream, 0) > world.steps

    def begin(self, upstream: str | None, least: int, most: int) -> None:
        world = self._instance.world
        steps = world.rng.randint(least, most) * world.config.operators
        self._until[upstream] = world.steps + steps
        world.trace(f"{self._instance} does not read {upstream or 'its events'} for {steps} steps")

    def actions(self) -> list[Action]:
        running = self._instance.core.running
        if not self._instance.world.config.backlog or not self._instance.world.faulty or running is None:
            return []
        acts: list[Any] = [] if self.on(None) else [Fault(_STALL_EVENTS, self.begin, None, *_STALL_STEPS)]
        for upstream in self._instance.data:
            if self.on(upstream):
                continue
            if any(channel.ranges for channel in running.channels.of(upstream)):
                acts.append(Fault(_STALL_IN_RANGE, self.begin, upstream, *_STALL_STEPS_IN_RANGE))
            else:
                acts.append(Fault(_STALL, self.begin, upstream, *_STALL_STEPS))
        return acts


def strikes(world: World) -> list[Action]:
    """While the last checkpoint names ranges: whoever fails now is restored to them, and may be again."""
    if world.config.backlog and world.faulty and world.checks.strikes_left:
        return [Fault(_STRIKE, _strike, world)]
    return []


def _strike(world: World) -> None:
    world.checks.strikes_left -= 1
    if world.rng.random() < 0.25:
        world.spawn_coordinator()
        return
    running = [instance for instance in world.instances if instance.alive and instance.core.running is not None]
    if running:
        victim = world.rng.choice(running)
        victim.crash()
        hint = FailureHint(*victim.subtask, victim.run, victim.name, "its process died")
        world.side.append(world.acks, encode(hint), None, None)
