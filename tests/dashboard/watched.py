"""A job worth looking at: events all the time, snapshots and uploads that take a while, each subtask its own."""

from __future__ import annotations

import threading
from typing import Any

import penstock
from penstock.coordinator.api import CheckpointResult, Gateway, OperatorCoordinator
from penstock.schemas.settings import CheckpointSettings, RestartStrategy
from penstock.subtask_client.api import Subtask

READERS = 4
CARRIERS = ("AA", "BA", "DL", "LH", "UA", "WN")


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


class Flights(Subtask):
    """Emits a flight for each event of its coordinator."""

    def open(self, context: Any) -> None:
        self.context, self.seen = context, 0

    def handle_operator_event(self, event: Any) -> None:
        self.seen += 1
        self.context.emit({"carrier": CARRIERS[event["split"] % len(CARRIERS)], "delay": event["split"] % 60})

    def snapshot_state(self, checkpoint_id: int) -> Any:
        threading.Event().wait(0.02 * (1 + self.context.subtask))
        return {"seen": self.seen}

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.seen = state["seen"] if state else 0


class Delays(Subtask):
    """Sums up delays by carrier, and passes them on; fails once for each broken record that a test asks for."""

    broken = threading.Event()

    def open(self, context: Any) -> None:
        self.context = context
        self.sums: dict[str, int] = {}

    def process(self, record: Any, input: str) -> None:
        if self.broken.is_set():
            self.broken.clear()
            record = {"carrier": record["carrier"], "delay": None}
        self.sums[record["carrier"]] = self.sums.get(record["carrier"], 0) + minutes_of(record)
        self.context.emit(record)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        threading.Event().wait(0.08)
        return self.sums

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.sums = dict(state or {})


class Report(Subtask):
    """Counts what comes."""

    def open(self, context: Any) -> None:
        self.context, self.count = context, 0

    def process(self, record: Any, input: str) -> None:
        self.count += 1

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.count

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.count = state or 0


def minutes_of(record: Any) -> int:
    return int(record["delay"])


def chain_job(name: str) -> penstock.Job:
    """Three operators with data edges between them: one region."""
    job = penstock.Job(
        name,
        checkpoint=CheckpointSettings(interval=1.0),
        restart=RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=50),
        heartbeat_interval=0.2,
        heartbeat_timeout=1.5,
    )
    flights = job.operator(
        "flights", coordinator=Splits, subtask=Flights, parallelism=4, codec="json", state_codec="json",
        output_codec="json",
    )  # fmt: skip
    delays = job.operator(
        "delays", subtask=Delays, parallelism=3, state_codec="json", output_codec="json",
        inputs=[flights.keyed_by("carrier")],
    )  # fmt: skip
    job.operator("report", subtask=Report, parallelism=2, state_codec="json", inputs=[delays.keyed_by("carrier")])
    return job
