"""A job worth looking at: events all the time, snapshots and uploads that take a while, each subtask its own."""

from __future__ import annotations

import threading
from typing import Any

import penstock
from penstock.coordinator.api import CheckpointResult, Gateway, OperatorCoordinator
from penstock.schemas.settings import CheckpointSettings, RestartStrategy
from penstock.subtask_client.api import Subtask

READERS = 4


class Splits(OperatorCoordinator):
    """Sends every subtask some splits, again and again; takes a moment for its own state."""

    def start(self) -> None:
        self.gateways: dict[int, Gateway] = {}
        self.sent = 0
        self.context.call_every(0.02, self.send)

    def send(self) -> None:
        for gateway in self.gateways.values():
            for _ in range(3 + gateway.subtask):
                gateway.send_event({"split": self.sent})
                self.sent += 1

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self.gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
        pass

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.sent = 0 if state is None else state["sent"]

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self.context.call_later(0.02, lambda: result.complete({"sent": self.sent}))


class Reader(Subtask):
    """Its snapshot takes the longer the higher its index."""

    def open(self, context: Any) -> None:
        self.context, self.seen = context, 0

    def handle_operator_event(self, event: Any) -> None:
        self.seen += 1
        if self.seen % 50 == 0:
            self.context.send_event_to_coordinator({"read": self.seen})

    def snapshot_state(self, checkpoint_id: int) -> Any:
        threading.Event().wait(0.03 * (1 + self.context.subtask))
        return {"seen": self.seen, "rows": "x" * 200_000 * (1 + self.context.subtask)}

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.seen = state["seen"] if state else 0


def watched_job(name: str, state_storage: str | None = None) -> penstock.Job:
    """Four readers. One that falls silent is given up after a second and a half."""
    job = penstock.Job(
        name,
        checkpoint=CheckpointSettings(interval=1.0, inline_state_max=10_000),
        restart=RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=50),
        heartbeat_interval=0.2,
        heartbeat_timeout=1.5,
        state_storage=state_storage,
    )
    job.operator("reader", coordinator=Splits, subtask=Reader, parallelism=READERS, codec="json", state_codec="json")
    return job
