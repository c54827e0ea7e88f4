"""The job whose coordinator is taken over: every subtask is sent 0, 1, 2 ... and checks that it gets just that."""

from __future__ import annotations

import time
from multiprocessing.queues import Queue
from typing import Any, ClassVar

import penstock

OPERATOR = "numbers"
SUBTASKS = 4
TICK_S = 0.005


class Sender(penstock.OperatorCoordinator):
    """State: the next number of each subtask. A request ends the sending and is answered by that."""

    def __init__(self) -> None:
        self.gateways: dict[int, penstock.Gateway] = {}
        self.next = [0] * SUBTASKS
        self.sending = True

    def start(self) -> None:
        self.context.call_every(TICK_S, self.tick)

    def tick(self) -> None:
        if self.sending:
            for subtask in self.gateways:
                self.send(subtask)

    def send(self, subtask: int, last: bool = False) -> None:
        self.gateways[subtask].send_event({"n": self.next[subtask], "epoch": self.context.epoch, "last": last})
        self.next[subtask] += 1

    def handle_request(self, request: Any) -> Any:
        self.sending = False
        for subtask in self.gateways:
            self.send(subtask, last=True)
        return self.next

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.gateways.pop(subtask, None)

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        result.complete(self.next)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.gateways.clear()
        self.next = list(state) if state is not None else [0] * SUBTASKS


class Checker(penstock.Subtask):
    """State: the number that it waits for. Reports what it gets to the benchmark."""

    reports: ClassVar[Queue[tuple[str, int, int, float]]]
    """Of its process: what, subtask, number or epoch, monotonic second."""

    def open(self, context: penstock.Context) -> None:
        self.subtask = context.subtask
        self.awaited = 0
        self.epoch = -1

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.awaited = int(state)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.awaited

    def handle_operator_event(self, event: Any) -> None:
        if event["n"] != self.awaited:
            self.report("wrong", event["n"])
        self.awaited += 1
        if event["epoch"] != self.epoch:
            self.epoch = event["epoch"]
            self.report("epoch", self.epoch)
        if event["last"]:
            self.report("last", self.awaited)

    def report(self, what: str, number: int) -> None:
        self.reports.put((what, self.subtask, number, time.monotonic()))


job = penstock.Job("takeover", checkpoint=penstock.CheckpointSettings(interval=0.5))
job.operator(OPERATOR, coordinator=Sender, subtask=Checker, parallelism=SUBTASKS, codec="json", state_codec="json")
