"""What must hold of queries that feed coordinators (protocol, section 10.9)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.checkpoint_log.history import Checkpoint

from .violations import Violation

if TYPE_CHECKING:
    from .feeder import Feeder
    from .world import World

Fed = Mapping[str, list[list[Any]]]
"""By query: each batch that was handled, with its rows."""


class FeedChecks:
    def __init__(self, world: World) -> None:
        self._world = world

    def completed(self, checkpoint: Checkpoint, operator: str, fed: Fed) -> None:
        """Each batch once and in order, and the positions are those of the state beside them."""
        for query, batches in fed.items():
            ids = [batch for batch, _ in batches]
            if ids != list(range(len(ids))):
                raise Violation(f"section 10.9: checkpoint {checkpoint.id} has batches {ids} of query {query}")
        part = checkpoint.operator(operator)
        said = {feed.query: feed.batch for feed in part.feeds} if part is not None else {}
        had = {query: batches[-1][0] for query, batches in fed.items()}
        if said != had:
            raise Violation(f"section 10.9: checkpoint {checkpoint.id} says {said} of its feeds, its state has {had}")

    def committed(self, feeder: Feeder) -> None:
        """Spark commits the batch from now on: a restore must have its effect."""
        last = self._world.checks.history.last
        part = None if last is None else last.operator(feeder.operator)
        if last is None or part is None:
            raise Violation(f"section 10.9: {feeder} is answered, and no checkpoint is complete")
        fed: Fed = json.loads(self._world.checks.state_of(last.id, part.coordinator_state))["fed"]
        if len(fed.get(feeder.query, ())) <= feeder.committed:
            raise Violation(
                f"section 10.9: batch {feeder.committed} of {feeder} is committed, and checkpoint {last.id} does not"
                " have it"
            )

    def drained(self) -> str | None:
        waiting = [feeder for feeder in self._world.feeders if not feeder.is_over]
        return ", ".join(f"{feeder} waits for batch {feeder.committed + 1}" for feeder in waiting) or None
