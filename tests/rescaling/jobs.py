"""Jobs that are started again and again with another parallelism, and whose result is known beforehand."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from penstock import CheckpointSettings, Context, Idle, Job, OperatorCoordinator, Progress, RestartStrategy, Subtask
from penstock.checkpoint_log.history import Checkpoint
from penstock.schemas.errors import StateError
from penstock.schemas.ids import SubtaskId
from penstock.schemas.state import StateHandle
from penstock.testing.local import LocalJob
from penstock.transport.ports import Transport
from penstock.transport.state_storage import StateStorage

PATIENCE_S = 60.0
GROUPS, SPLITS = 10, 6


def new_job(name: str, **changes: Any) -> Job:
    given: dict[str, Any] = {
        "checkpoint": CheckpointSettings(**{"interval": 0.05, **changes.pop("checkpoint", {})}),
        "restart": RestartStrategy(0.0, 0.01, 0.05, budget=1000),
        "heartbeat_interval": 0.2,
        "heartbeat_timeout": 10.0,
    }
    return Job(name, **{**given, **changes})


# ---- a coordinator that hands out numbers, and subtasks that keep them


class HandingOut(OperatorCoordinator):
    """Sends every number below ``limit`` once, to one subtask after the other. Its state is the next one."""

    def __init__(self, limit: int) -> None:
        self.limit, self.next = limit, 0
        self.gateways: dict[int, Any] = {}

    def start(self) -> None:
        self.context.call_every(0.002, self._send)

    def _send(self) -> None:
        for _, gateway in sorted(self.gateways.items()):
            if self.next < self.limit:
                gateway.send_event(self.next)
                self.next += 1

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.gateways.pop(subtask, None)

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        result.complete(self.next)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.next, self.gateways = state or 0, {}


class Keeping(Subtask):
    """Its state is the list of the numbers that it was handed."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def handle_operator_event(self, event: int) -> None:
        self.numbers.append(event)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.numbers

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.numbers = state


class KeepingNamed(Keeping):
    """The same, in a state that nothing but a function of its own can redistribute."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {"numbers": self.numbers}

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.numbers = state["numbers"]


def round_robin(states: Sequence[Any], parallelism: int) -> Sequence[Any]:
    """A user's function."""
    numbers = [number for state in states if state is not None for number in state["numbers"]]
    return [{"numbers": numbers[index::parallelism]} for index in range(parallelism)]


def splits_job(name: str, parallelism: int, limit: int, how: str = "list", **changes: Any) -> Job:
    """``how``: "list", or "function"."""
    job = new_job(name, **changes)
    by_function = how == "function"
    job.operator(
        "keepers", parallelism=parallelism, coordinator=lambda: HandingOut(limit), codec="json", state_codec="json",
        subtask=KeepingNamed if by_function else Keeping, rescale=round_robin if by_function else "list",
    )  # fmt: skip
    return job


# ---- operators that feed one another


class Numbers(Subtask):
    """Emits the numbers of its splits; split k is k, k + SPLITS, ... Its state is the list of [split, next]."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def open(self, context: Context) -> None:
        self.context = context
        self.splits = [[k, k] for k in range(SPLITS) if k % context.parallelism == context.subtask]

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.splits = state

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.splits

    def poll(self) -> Progress | Idle:
        for split in self.splits:
            if split[1] < self.limit:
                self.context.emit(split[1])
                split[1] += SPLITS
        return Idle(0.002)


class Counting(Subtask):
    """Passes on [number, running count of its group]; its state is the counts by group."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def open(self, context: Context) -> None:
        self.context = context

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.counts = Counter(state)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return dict(self.counts)

    def process(self, record: int, input: str) -> None:
        group = group_of(record)
        self.counts[group] += 1
        self.context.emit([record, self.counts[group]])


class Collecting(Subtask):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.seen = state

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.seen

    def process(self, record: Any, input: str) -> None:
        self.seen.append(record)


def group_of(number: int) -> str:
    """JSON makes every key of a mapping a string, so the key that records are routed by is one too."""
    return str(number % GROUPS)


def counting_job(name: str, parallelism: tuple[int, int, int], limit: int, **changes: Any) -> Job:
    job = new_job(name, **changes)
    numbers = job.operator(
        "numbers", subtask=lambda: Numbers(limit), parallelism=parallelism[0],
        output_codec="json", state_codec="json", rescale="list",
    )  # fmt: skip
    counting = job.operator(
        "counting", subtask=Counting, parallelism=parallelism[1], inputs=[numbers.keyed_by(group_of)],
        state_codec="json", output_codec="json", rescale="keyed",
    )  # fmt: skip
    job.operator(
        "collecting", subtask=Collecting, parallelism=parallelism[2], inputs=[counting.rebalance()],
        state_codec="json", rescale="list",
    )  # fmt: skip
    return job


# ---- running them, and what their last checkpoint says


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        threading.Event().wait(0.01)


def last_of(running: LocalJob) -> Checkpoint | None:
    return running.client.history().last


def states(running: LocalJob, operator: str) -> list[Any]:
    """Of the subtasks of one operator, in the last checkpoint."""
    storage = StateStorage(running.settings.state_storage, running.settings.topics.root)
    while True:
        last = last_of(running)
        if last is None or (was := last.operator(operator)) is None:
            return []
        handles = [last.subtasks[SubtaskId(operator, index)].state for index in range(was.parallelism)]
        try:
            return [json.loads(_state(storage, handle)) for handle in handles]
        except StateError:  # a job that runs may have completed others since, and deleted this one's states
            now = last_of(running)
            if now is None or now.id == last.id:
                raise


def _state(storage: StateStorage, handle: StateHandle | None) -> bytes:
    assert handle is not None
    return handle.inline if handle.inline is not None else storage.get(handle.location or "")


def run_until(
    job: Job, transport: Transport, reached: Callable[[LocalJob], bool], *, savepoint: bool = False
) -> LocalJob:
    """Runs the job until its last checkpoint is as wanted; then it is killed, or stopped with a savepoint."""
    with LocalJob(job, transport) as running:
        wait_until(lambda: running.service.wait(0) or reached(running), f"job {job.name}")  # type: ignore[union-attr]
        if savepoint:
            reply = running.client.stop(savepoint=True)
            assert reply.accepted, reply.outcome
            running.wait(PATIENCE_S)
        else:
            running.crash_coordinator()
            for subtask in job.settings.subtasks():
                running.crash_subtask(*subtask, restart=False)
    return running


def kept(running: LocalJob) -> list[int]:
    """Every number in the lists of the last checkpoint."""
    return [n for state in states(running, "keepers") for n in (state["numbers"] if isinstance(state, dict) else state)]


def collected(running: LocalJob) -> list[Any]:
    return [record for state in states(running, "collecting") for record in state]
