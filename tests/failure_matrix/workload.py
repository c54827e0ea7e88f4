"""The job under test: every subtask is sent 0, 1, 2 ..., lists them, and tells each one back.

Whatever is killed, in the end both sides must hold exactly these lists.
"""

from __future__ import annotations

import os
from typing import Any

import penstock

from .points import here, settings

OPERATOR = "list"
SUBTASKS = 2
TICK_S = 0.005


class Sender(penstock.OperatorCoordinator):
    """State: the next number for each subtask, and what each has told back."""

    def __init__(self) -> None:
        self.points = here()
        self.policy: str = settings()["policy"]
        self.gateways: dict[int, penstock.Gateway] = {}
        self._become({"next": [0] * SUBTASKS, "told": [[] for _ in range(SUBTASKS)]})

    def _become(self, state: dict[str, Any], checkpoint_id: int = -1) -> None:
        self.next: list[int] = list(state["next"])
        self.told: list[list[list[int]]] = [list(told) for told in state["told"]]
        """Of each subtask: [number, lowest checkpoint that can contain it]."""
        self.cuts: dict[int, list[int]] = {checkpoint_id: list(self.next)}

    def start(self) -> None:
        self.points.reach("started")
        self.context.call_every(TICK_S, self.tick)

    def tick(self) -> None:
        answer = self.points.reach("tick")
        if answer.then == "fail":
            return self.context.fail_job("as the test wants it")
        for subtask, gateway in self.gateways.items():
            if self.next[subtask] < answer.limit:
                gateway.send_event({"n": self.next[subtask], "by": os.getpid()})
                self.next[subtask] += 1
        return None

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        self.points.reach("ready", subtask, attempt=attempt)
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.points.reach("failed", subtask, attempt=attempt, reason=reason)
        self.gateways.pop(subtask, None)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """What the subtask told after the checkpoint is undone; under policy reset, what it was sent too."""
        self.told[subtask] = [entry for entry in self.told[subtask] if entry[1] <= checkpoint_id]
        if self.policy == "reset":
            self.next[subtask] = self.cuts[checkpoint_id][subtask] if checkpoint_id >= 0 else 0

    def handle_event_from_operator(
        self, subtask: int, attempt: int, event: Any, context: penstock.EventContext
    ) -> None:
        self.told[subtask].append([event, context.belongs_to])

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        self.points.reach("cut", checkpoint_id)
        self.cuts[checkpoint_id] = list(self.next)
        result.complete({"next": self.next, "told": self.told})

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.points.reach("completed", checkpoint_id, told=[[n for n, _ in told] for told in self.told])

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.points.reach("reset", checkpoint_id)
        self.gateways.clear()
        self._become(state or {"next": [0] * SUBTASKS, "told": [[] for _ in range(SUBTASKS)]}, checkpoint_id)


class Lister(penstock.Subtask):
    """State: the numbers it has handled. Finishes with the last one."""

    def __init__(self) -> None:
        self.points = here()
        self.events: int = settings()["events"]
        self.got: list[int] = []

    def open(self, context: penstock.Context) -> None:
        self.context = context
        self.points.reach("opened", context.attempt, epoch=context.fencing_token.epoch)

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.got = list(state)
        self.points.reach("restored", checkpoint_id, got=self.got)

    def handle_operator_event(self, event: Any) -> None:
        if self.points.reach("before-handling", event["n"]).then == "raise":
            raise RuntimeError("as the test wants it")
        self.got.append(event["n"])
        self.context.send_event_to_coordinator(event["n"])
        self.points.reach("handled", event["n"], by=event["by"])

    def poll(self) -> penstock.Idle | penstock.Finished:
        return penstock.Finished() if len(self.got) >= self.events else penstock.Idle(0.05)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self.points.reach("before-snapshot", checkpoint_id)
        state = list(self.got)
        self.points.reach("after-snapshot", checkpoint_id)
        return state


def make_job() -> penstock.Job:
    """As this process's settings say."""
    told = settings()
    job = penstock.Job(
        told["job"],
        checkpoint=penstock.CheckpointSettings(**told["checkpoint"]),
        restart=penstock.RestartStrategy(**told["restart"]),
        **told["timing"],
    )
    job.operator(
        OPERATOR,
        subtask=Lister,
        coordinator=Sender,
        parallelism=SUBTASKS,
        on_failover=told["policy"],
        codec="json",
        state_codec="json",
        event_ack_timeout=told["event_ack_timeout"],
    )
    return job
