"""A subtask whose may_begin() is False gets its events, and no poll and no record before it is True."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest

import penstock
from penstock.testing import LocalJob

PATIENCE_S = 30.0
NUMBERS = 200


class Starter(penstock.OperatorCoordinator):
    """Sends one event to each attempt: some when ``go`` is set, at last."""

    def __init__(self, go: threading.Event) -> None:
        self.go = go
        self.waiting: list[penstock.Gateway] = []

    def start(self) -> None:
        self.context.call_every(0.01, self.look)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        self.waiting.append(gateway)
        gateway.send_event("not yet")

    def look(self) -> None:
        if self.go.is_set():
            while self.waiting:
                self.waiting.pop().send_event("begin")


class Waits(penstock.Subtask):
    begun = False

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.numbers: list[int] = []

    def handle_operator_event(self, event: str) -> None:
        self.told.append(event)
        self.begun = self.begun or event == "begin"

    def may_begin(self) -> bool:
        return self.begun

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.numbers = state

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.numbers

    def take(self, number: int) -> None:
        if not self.begun:
            self.told.append("too early")
        self.numbers.append(number)


class Takes(Waits):
    def process(self, record: int, input: str) -> None:
        self.take(record)

    def end_inputs(self) -> None:
        self.told.append(f"ended after {len(self.numbers)}" if self.begun else "ended too early")


class Polls(Waits):
    def poll(self) -> penstock.Progress | penstock.Finished:
        self.take(len(self.numbers))
        return penstock.Progress() if len(self.numbers) < NUMBERS else penstock.Finished()


class Numbers(penstock.Subtask):
    position = 0

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def poll(self) -> penstock.Progress | penstock.Finished:
        if self.position == NUMBERS:
            return penstock.Finished()
        self.context.emit(self.position)
        self.position += 1
        return penstock.Progress()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.position

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.position = state


def job_of(go: threading.Event, subtask: Any, *, unaligned: bool = False, with_input: bool) -> penstock.Job:
    checkpoint = penstock.CheckpointSettings(interval=0.05, timeout=0.5, tolerable_failures=10_000, unaligned=unaligned)
    job = penstock.Job("waits", checkpoint=checkpoint, heartbeat_interval=0.1, heartbeat_timeout=5.0)
    json = {"state_codec": "json", "output_codec": "json"}
    inputs = [job.operator("numbers", subtask=Numbers, parallelism=1, **json).rebalance()] if with_input else []
    coordinator = functools.partial(Starter, go)
    job.operator("waiter", subtask=subtask, coordinator=coordinator, parallelism=1, inputs=inputs, codec="json", **json)
    return job


@pytest.mark.parametrize("crash", [False, True], ids=["once", "and again in the next attempt"])
@pytest.mark.parametrize("kind", ["records", "records, unaligned", "polls"])
def test_no_work_begins_before_the_subtask_says_so(kind: str, crash: bool) -> None:
    go, told = threading.Event(), list[str]()
    subtask = functools.partial(Polls if kind == "polls" else Takes, told)
    job = job_of(go, subtask, unaligned="unaligned" in kind, with_input=kind != "polls")
    with LocalJob(job) as running:
        running.wait_for(lambda _: "not yet" in told, PATIENCE_S)
        if crash:
            told.clear()
            running.crash_subtask("waiter", 0)
            running.wait_for(lambda _: "not yet" in told, PATIENCE_S)
        if kind == "polls":  # its checkpoints need no record
            running.wait_for(lambda status: status.checkpoints_completed >= 2, PATIENCE_S)
        else:
            running.wait_for(lambda status: status.checkpoints_aborted + status.checkpoints_completed >= 2, PATIENCE_S)
        go.set()
        assert running.wait(PATIENCE_S).ending.value == "finished"
    assert "begin" in told
    assert not [each for each in told if "too early" in each]
    if kind != "polls":
        assert told[-1] == f"ended after {NUMBERS}"


def test_what_may_begin_raises_fails_the_attempt() -> None:
    class Raises(Waits):
        def may_begin(self) -> bool:
            raise ValueError("never")

    job = job_of(threading.Event(), functools.partial(Raises, []), with_input=False)
    with LocalJob(job) as running:
        failed = running.wait_for(lambda status: status.failovers_region >= 1, PATIENCE_S)
    assert "ValueError: never" in failed.last_failure
