"""A coordinator whose events come in groups: each batch of the query that reads it is exactly one group."""

from __future__ import annotations

from typing import Any

from penstock import OperatorCoordinator

OPERATOR = "reader"
PARALLELISM = 2


class Groups(OperatorCoordinator):
    """Sends a group when the one before is in a completed checkpoint. A text in place of a group fails the job."""

    def __init__(self, groups: list[Any], parallelism: int = PARALLELISM) -> None:
        self.groups, self.parallelism = groups, parallelism
        self.sent = self.completed = 0
        self.at_cut: dict[int, int] = {}
        self.gateways: dict[int, Any] = {}
        self.attempt = -1

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        if attempt != self.attempt:
            self.attempt, self.gateways = attempt, {}
        self.gateways[subtask] = gateway
        self.send()

    def send(self) -> None:
        if len(self.gateways) < self.parallelism or self.sent > self.completed or self.sent == len(self.groups):
            return
        group = self.groups[self.sent]
        if isinstance(group, str):
            self.context.fail_job(group)
            return
        self.sent += 1
        for subtask, events in enumerate(group):
            for event in events:
                self.gateways[subtask].send_event(event)

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        self.at_cut[checkpoint_id] = self.sent
        result.complete(self.sent)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed = self.at_cut.get(checkpoint_id, self.completed)
        self.send()

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.sent = self.completed = state or 0
        self.gateways, self.at_cut = {}, {}
