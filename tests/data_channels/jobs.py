"""Jobs of several operators whose result is known beforehand, and what their last checkpoint says came of them."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from penstock import (
    CheckpointSettings,
    Context,
    Finished,
    Idle,
    Job,
    OperatorCoordinator,
    Progress,
    RestartStrategy,
    Subtask,
)

GROUPS, BATCH = 10, 10


class Collected:
    """What the subtasks of a job's last operator were in, by completed checkpoint, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[int, Any] = {}

    def keep(self, subtask: int, state: Any) -> None:
        with self._lock:
            self._states[subtask] = state

    @property
    def records(self) -> list[Any]:
        """Of all subtasks together."""
        with self._lock:
            return [record for state in self._states.values() for record in state]


class Gate(Protocol):
    """A ``threading.Event``, or something that other processes see too."""

    def is_set(self) -> bool: ...


class FileGate:
    """Open once the file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_set(self) -> bool:
        return self.path.exists()


class Numbers(Subtask):
    """Emits the numbers below ``limit`` that leave its own index when divided by the parallelism.

    Half of them until its gate opens, where it has one.
    """

    def __init__(self, limit: int, pace_s: float = 0.0, gate: Gate | None = None) -> None:
        self.limit, self.pace_s, self.gate = limit, pace_s, gate
        self.next = 0

    def open(self, context: Context) -> None:
        self.context = context

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.next = state

    def snapshot_state(self, checkpoint_id: int) -> int:
        return self.next

    def poll(self) -> Progress | Idle | Finished:
        for _ in range(BATCH):
            number = self.next * self.context.parallelism + self.context.subtask
            if number >= self.limit:
                return Finished()
            if number >= self.limit // 2 and self.gate is not None and not self.gate.is_set():
                return Idle(0.01)
            self.context.emit(number)
            self.next += 1
        return Idle(self.pace_s) if self.pace_s else Progress()


class Counting(OperatorCoordinator):
    """Sends every subtask 1, 2, 3, ... whatever else goes on."""

    def __init__(self, pace_s: float = 0.02) -> None:
        self.pace_s = pace_s
        self.sent: Counter[int] = Counter()
        self.gateways: dict[int, Any] = {}

    def start(self) -> None:
        self.context.call_every(self.pace_s, self._send)

    def _send(self) -> None:
        for subtask, gateway in self.gateways.items():
            self.sent[subtask] += 1
            gateway.send_event(self.sent[subtask])

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.gateways.pop(subtask, None)

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        result.complete(sorted(self.sent.items()))

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.sent, self.gateways = Counter(dict(state or [])), {}


class Passing(Subtask):
    """Passes on (number, running count of its group). Each number of its coordinator comes once, in order."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.told = 0

    def open(self, context: Context) -> None:
        self.context = context

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.counts, self.told = Counter(state["counts"]), state["told"]

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {"counts": self.counts, "told": self.told}

    def handle_operator_event(self, event: Any) -> None:
        assert event == self.told + 1, f"{event} behind {self.told}"
        self.told = event

    def process(self, record: Any, input: str) -> None:
        group = str(record % GROUPS)
        self.counts[group] += 1
        self.context.emit([record, self.counts[group]])


class CountingInBatches(Counting):
    """The same, some at a time."""

    def _send(self) -> None:
        for subtask, gateway in self.gateways.items():
            begin = self.sent[subtask] + 1
            self.sent[subtask] += 5
            gateway.send_events(list(range(begin, begin + 5)))


class PassingInBatches(Passing):
    """The same, as much as comes at a time."""

    def handle_operator_events(self, events: list[Any]) -> None:
        assert events == list(range(self.told + 1, self.told + 1 + len(events))), f"{events} behind {self.told}"
        self.told = events[-1]

    def process_many(self, records: list[Any], input: str) -> None:
        counted = []
        for record in records:
            group = str(record % GROUPS)
            self.counts[group] += 1
            counted.append([record, self.counts[group]])
        self.context.emit_many(counted)


class Collecting(Subtask):
    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self.seen: list[Any] = []
        self.snapshots: dict[int, int] = {}

    def open(self, context: Context) -> None:
        self.context = context

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.seen = state

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self.snapshots[checkpoint_id] = len(self.seen)
        return self.seen

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.collected.keep(self.context.subtask, self.seen[: self.snapshots[checkpoint_id]])

    def process(self, record: Any, input: str) -> None:
        self.seen.append(record)


def group_of(number: int) -> int:
    return number % GROUPS


def counting_job(
    name: str, collected: Collected, limit: int, *, parallelism: tuple[int, int, int] = (2, 3, 2),
    pace_s: float = 0.0, gate: Gate | None = None, batches: bool = False, **checkpoint: Any,
) -> Job:  # fmt: skip
    """numbers, keyed to passing (which has a coordinator), rebalanced to collecting."""
    job = Job(
        name,
        checkpoint=CheckpointSettings(**{"interval": 0.05, **checkpoint}),
        restart=RestartStrategy(0.0, 0.01, 0.05, budget=1000),
        heartbeat_interval=0.2,
        heartbeat_timeout=5.0,
    )
    numbers = job.operator(
        "numbers", subtask=lambda: Numbers(limit, pace_s, gate), parallelism=parallelism[0],
        output_codec="json", state_codec="json",
    )  # fmt: skip
    passing = job.operator(
        "passing", subtask=PassingInBatches if batches else Passing,
        coordinator=CountingInBatches if batches else Counting, parallelism=parallelism[1],
        inputs=[numbers.keyed_by(group_of)], codec="json", state_codec="json", output_codec="json",
    )  # fmt: skip
    job.operator(
        "collecting", subtask=lambda: Collecting(collected), parallelism=parallelism[2],
        inputs=[passing.rebalance()], state_codec="json",
    )  # fmt: skip
    return job


def check_counted(records: list[Any], limit: int) -> None:
    """Every number once, and the counts of each group without a gap; which number has which is the senders' race."""
    assert sorted(number for number, _ in records) == list(range(limit))
    for group in range(GROUPS):
        counts = sorted(count for number, count in records if number % GROUPS == group)
        assert counts == list(range(1, len(counts) + 1)), f"group {group}"
