"""A coordinator that counts what queries send it, for tests of feeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import penstock


class Counts(penstock.OperatorCoordinator):
    """Counts each event that it is given, by its text."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def handle_batch(self, query: str, batch_id: int, events: Sequence[Any]) -> None:
        for event in events:
            self.counts[str(event)] = self.counts.get(str(event), 0) + 1

    def handle_request(self, request: Any) -> Any:
        return self.counts

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        result.complete(self.counts)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.counts = dict(state or {})


class Idle(penstock.Subtask):
    """Is there, so that checkpoints complete."""

    def handle_operator_event(self, event: Any) -> None:
        pass
