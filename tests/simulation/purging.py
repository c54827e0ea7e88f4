"""A job that is purged and begins anew under its name, while processes of before are frozen, and go on later.

They read no topic that is gone, as every reader promises. What they write, and what they had on its way when they were
frozen, goes by the topics' names: so it lands in those of the new incarnation. Their folder of states is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.coordinator.protocol.state import Phase
from penstock.transport.memory import MemoryReader
from penstock.transport.ports import Partition

from .configs import PAUSES_S
from .coordinator_process import CoordinatorProcess
from .pen import Pen
from .subtask_process import SubtaskProcess

if TYPE_CHECKING:
    from .world import World

_SURVIVES = 0.7


class Past:
    """The world as those see it who are left over: with what was checked, and who there was, before the purge."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.checks, self.external, self.commands = world.checks, world.external, world.commands
        self.coordinators, self.instances = world.coordinators, world.instances

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


def purge(world: World) -> None:
    """Delete the job's topics and begin it again; a purge waits until everybody is silent, dead or frozen."""
    world.trace("the job is PURGED, and begins anew")
    left = [p for p in world.processes() if isinstance(p, CoordinatorProcess | SubtaskProcess)]
    frozen = [process for process in left if _has_begun(process) and world.rng.random() < _SURVIVES]
    for process in left:
        if process not in frozen:
            process.crash()
    past: Any = Past(world)
    for process in frozen:
        process.frozen_until = world.now + world.rng.choice(PAUSES_S)
        world.trace(f"{process} is left over, frozen until {process.frozen_until:.3f}")
        if process in world.leftovers:
            continue
        process.world = past
        if isinstance(process, CoordinatorProcess):
            process.wish_to_truncate()
        for user in process.users.values() if isinstance(process, CoordinatorProcess) else ():
            user.world = past
    past.checks.world = past
    world.adrift.clear()
    world.truncations.clear()
    world.side = Pen(world.transport)
    world.broker.purge(world.settings.topics.root)
    world.transport.create_topics(world.settings.topic_specs)
    world.begin_incarnation(frozen)
    past.checks.successor = world.checks
    world.spawn_coordinator().claim()
    world.new_run()


def _has_begun(process: CoordinatorProcess | SubtaskProcess) -> bool:
    """One that has not joins whatever job has its name when it goes on, as any start."""
    return isinstance(process, SubtaskProcess) or process.core.job.phase is not Phase.NEW


def is_gone(world: World, reader: MemoryReader, partition: Partition) -> bool:
    """Whether the topic that is read has been deleted, so that the next read says so."""
    return reader._logs[partition] is not world.broker._log(partition)
