"""A job whose every event has a number: what the query wrote, and what came back, can be counted.

`penstock coordinator` runs it from this file too, so it imports nothing but Penstock.
"""

from __future__ import annotations

from typing import Any

from penstock import CheckpointResult, EventContext, Gateway, Job, OperatorCoordinator, RestartStrategy

OPERATOR = "reader"
PARALLELISM = 2
PER_SEND = 3
AHEAD_MAX = 200
"""Numbers of a subtask that may be under way."""
EVERY_S = 0.02
"""Between two sends, whatever the query does: events come between every two steps of a checkpoint."""


class Numbers(OperatorCoordinator):
    """Sends 0, 1, 2, ... to each subtask. Each must come back once, in order, with its batch's checkpoint."""

    stopped = False
    """Of this process: whoever asks for it knows that no coordinator dies any more."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, state: Any) -> None:
        self.sent, self.received, self.wrong = state or ([0] * PARALLELISM, [0] * PARALLELISM, [])
        self.gateways: dict[int, Gateway] = {}

    def start(self) -> None:
        self.context.call_every(EVERY_S, self._send)

    def _send(self) -> None:
        if Numbers.stopped or len(self.gateways) < PARALLELISM:
            return
        for subtask, gateway in self.gateways.items():
            for _ in range(PER_SEND):
                if self.sent[subtask] - self.received[subtask] < AHEAD_MAX:
                    gateway.send_event({"number": self.sent[subtask]})
                    self.sent[subtask] += 1

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.gateways.pop(subtask, None)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        expected = [self.received[subtask], context.belongs_to]
        if [event["number"], event["checkpoint"]] != expected:
            self.wrong.append([subtask, event["number"], event["checkpoint"], *expected])
        self.received[subtask] = event["number"] + 1

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete([self.sent, self.received, self.wrong])

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any | None) -> None:
        self._begin(state)

    def handle_request(self, request: Any) -> Any:
        """``"stop"`` sends no more; whatever is asked, the answer is how far it has come."""
        Numbers.stopped = Numbers.stopped or request == "stop"
        return {"sent": self.sent, "received": self.received, "wrong": self.wrong}


def job_of(name: str) -> Job:
    job = Job(name, restart=RestartStrategy(budget=1_000))
    job.operator(OPERATOR, coordinator=Numbers, parallelism=PARALLELISM, codec="json", state_codec="json")
    return job


job = job_of("numbered")
