"""An unclean leader election: the checkpoint log loses its end, and who coordinates breaks off (protocol, section 4.5).

From then on the history is another one, and only this is looked at: as long as somebody lives who knows what is lost,
the job does not go on from less in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint_log.history import History, Keyed
from penstock.coordinator.protocol.inputs import Known
from penstock.schemas.checkpoints import EpochClaimed
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.transport.ports import Partition

from .records import keyed
from .violations import Violation

if TYPE_CHECKING:
    from .coordinator_process import CoordinatorProcess
    from .subtask_process import SubtaskProcess
    from .world import World

SAYS_SO = "has lost its end"
_LATEST = 6
"""Of so many of the newest transactions some are lost."""
_SAME_HOST = 0.5
"""Chance that the host of the coordinator lives on, and remembers."""


def elect(world: World) -> None:
    """Cut the log behind one of its transactions: the new leader has no more."""
    log = world.broker._log(Partition(world.settings.topics.checkpoints, 0))
    kept = world.rng.choice(world.commits[:-1][-_LATEST:])
    world.trace(f"an UNCLEAN ELECTION: the checkpoint log ends at {kept}, and it had {log.end} records")
    del log.records[kept - log.begin :]
    del world.commits[world.commits.index(kept) + 1 :]
    owner = world.checks.newest()
    if owner is not None and world.rng.random() < _SAME_HOST:
        history = owner.core.job.history
        world.known = Known(history.epoch, max(history.checkpoints, default=NO_CHECKPOINT))
    for coordinator in world.coordinators:
        if coordinator.alive:
            coordinator.crash()
    left = History.of(keyed(record) for record in log.records)
    world.checks = AfterLoss(world, left, world.checks.history.epoch)  # type: ignore[assignment]


class AfterLoss:
    """In place of the world's other checks, which speak of what can no longer be."""

    def __init__(self, world: World, left: History, lost: int) -> None:
        """``lost`` is the newest epoch of the log that was."""
        self.world, self.history, self._lost = world, left, lost
        self.completed: list[int] = []
        self.strikes_left = 0
        self.successor = None
        self.said = ""
        """Why the job has ended, or does not start."""

    def __getattr__(self, name: str) -> Any:
        return _Muted()

    def knows(self, instance: SubtaskProcess) -> bool:
        """Whether it was told of a checkpoint that the log does not have."""
        mine = instance.alive and instance.run == self.world.run
        return mine and instance.core.completed > self.history.completed_through

    def committed(self, coordinator: CoordinatorProcess, records: Sequence[Keyed]) -> None:
        known, claims = self.world.known, any(isinstance(record, EpochClaimed) for _, record in records)
        lacks = known.checkpoint_id > self.history.completed_through or known.epoch > self.history.epoch
        if claims and lacks:
            raise Violation(f"section 4.5: {coordinator} begins, and its host knows more than the log has: {known}")
        self.history.apply(records)

    def after_step(self) -> None:
        for instance in self.world.instances:
            running = instance.core.running
            if running is not None and running.start.epoch > self._lost and self.knows(instance):
                raise Violation(
                    f"section 4.5: {instance}, which was told that {instance.core.completed} is complete, goes on from"
                    f" {running.start.checkpoint_id}"
                )

    def sent_in(self, checkpoint_id: int, subtask: SubtaskId) -> list[int]:
        return []

    def drained(self) -> str | None:
        knowing = [str(instance) for instance in self.world.instances if self.knows(instance)]
        return f"the log lost its end, {knowing} know, and nobody says so" if knowing and not self.said else None


class _Muted:
    """Something that holds nothing, finds nothing, and does nothing."""

    def __getattr__(self, name: str) -> _Muted:
        return self

    def __call__(self, *_: object) -> None:
        return None
