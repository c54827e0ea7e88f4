"""Jobs that count: every subtask must see exactly the numbers 0, 1, 2 ... in order, and says what it has seen."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock import CheckpointSettings, Context, Idle, Job, OperatorCoordinator, RestartStrategy, Subtask
from penstock.spark_integration import JobHandle

CHECKPOINT = CheckpointSettings(interval=0.2)
TICK_S = 0.01


def cluster_session(master: str, warehouse: str, more: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A session on a cluster that grows no web pages, and starts a task again as often as it takes."""
    settings = {
        "spark.task.maxFailures": "1000000",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.python.daemon.module": "penstock.spark_integration.daemon",
        "spark.sql.warehouse.dir": warehouse,
        **more,
    }
    builder = SparkSession.builder.master(master).appName("penstock-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Teller(OperatorCoordinator):
    """Sends every subtask the numbers below ``limit``, some at a time, and keeps the newest report of each."""

    def __init__(self, limit: int, batch: int = 10) -> None:
        self.limit, self.batch = limit, batch
        self.sent: dict[str, int] = {}
        self.gateways: dict[int, Any] = {}
        self.reports: dict[str, Any] = {}

    def start(self) -> None:
        self.context.call_every(TICK_S, self.send_some)

    def send_some(self) -> None:
        for subtask, gateway in self.gateways.items():
            sent = self.sent.get(str(subtask), 0)
            for number in range(sent, min(sent + self.batch, self.limit)):
                gateway.send_event(number)
                self.sent[str(subtask)] = number + 1

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        self.gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
        self.reports[str(subtask)] = event

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        result.complete(dict(self.sent))

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.sent, self.gateways = dict(state or {}), {}

    def handle_request(self, request: Any) -> Any:
        if request == "more":
            self.limit += 100
        return self.reports


class Counter(Subtask):
    """Raises when a number is missing or comes twice."""

    def open(self, context: Context) -> None:
        self.context, self.count = context, 0

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.count = state

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.count

    def handle_operator_event(self, event: Any) -> None:
        assert event == self.count, f"expected {self.count}, got {event}"
        self.count += 1
        self.report()

    def report(self) -> None:
        task = TaskContext.get()
        assert task is not None
        report = {"count": self.count, "pid": os.getpid(), "task": task.taskAttemptId(), "at": time.time()}
        self.context.send_event_to_coordinator(report)


class CounterThatRaisesOnce(Counter):
    """Raises at its 50th number, unless ``marker`` says that somebody has done so."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def handle_operator_event(self, event: Any) -> None:
        super().handle_operator_event(event)
        if self.count == 50:
            try:
                self.marker.touch(exist_ok=False)
            except FileExistsError:
                return
            raise ValueError("once")


class Raiser(Subtask):
    """Raises in one callback, always."""

    def __init__(self, callback: str) -> None:
        self.callback = callback
        self.completed = False

    def _perhaps(self, callback: str) -> None:
        if callback == self.callback:
            raise LookupError(f"as {callback} does")

    def open(self, context: Context) -> None:
        self._perhaps("open")

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self._perhaps("restore_state")

    def handle_operator_event(self, event: Any) -> None:
        self._perhaps("handle_operator_event")

    def poll(self) -> Idle:
        self._perhaps("poll")
        if self.callback == "restore_state" and self.completed:
            raise LookupError("to be restored")
        return Idle(0.05)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self._perhaps("snapshot_state")
        return 0

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed = True
        self._perhaps("notify_checkpoint_complete")

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self._perhaps("notify_checkpoint_aborted")


def counting_job(
    name: str, limit: int = 300, parallelism: int = 2, subtask: Any = Counter, batch: int = 10, **settings: Any
) -> Job:
    """Two operators, alike."""
    job = Job(name, **{"checkpoint": CHECKPOINT, "heartbeat_interval": 0.3, **settings})
    for operator in ("left", "right"):
        job.operator(
            operator,
            subtask=subtask,
            coordinator=partial(Teller, limit, batch),
            parallelism=parallelism,
            codec="json",
            state_codec="json",
        )
    return job


def raising_job(name: str, callback: str) -> Job:
    """Fails soon: its budget is two failovers."""
    job = Job(name, checkpoint=CHECKPOINT, restart=RestartStrategy(budget=2), heartbeat_interval=0.3)
    job.operator(
        "only", subtask=partial(Raiser, callback), coordinator=partial(Teller, 10), parallelism=1, codec="json",
        state_codec="json",
    )  # fmt: skip
    return job


class SlowToSnapshot(Subtask):
    """Slower than any checkpoint may be."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        time.sleep(0.6)
        return 0


def raising_when_told_of_an_abort(name: str) -> Job:
    """Each checkpoint is aborted after one of its two subtasks has taken part."""
    checkpoint = CheckpointSettings(interval=0.1, timeout=0.3, tolerable_failures=1000)
    job = Job(name, checkpoint=checkpoint, restart=RestartStrategy(budget=2), heartbeat_interval=0.3)
    raiser = partial(Raiser, "notify_checkpoint_aborted")
    job.operator("raises", subtask=raiser, parallelism=1, state_codec="json")
    job.operator("delays", subtask=SlowToSnapshot, parallelism=1, state_codec="json")
    return job


def reports_of(handle: JobHandle) -> dict[str, Any]:
    """The newest report of every subtask, by operator/subtask."""
    return {
        f"{operator}/{subtask}": report
        for operator in ("left", "right")
        for subtask, report in handle.request(operator, "reports").items()
    }


def wait_until_counted(handle: JobHandle, count: int, subtasks: int = 4, timeout: float = 60.0) -> dict[str, Any]:
    """The reports in which every subtask has counted at least ``count``."""
    deadline = time.monotonic() + timeout
    while True:
        reports = reports_of(handle)
        if len(reports) == subtasks and all(report["count"] >= count for report in reports.values()):
            return reports
        assert time.monotonic() < deadline, f"not within {timeout} s: {reports}; {handle.status()}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether the process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def threads_since(before: set[threading.Thread], name: str) -> list[str]:
    """The names of threads that were not there before and have ``name`` in theirs."""
    return [thread.name for thread in threading.enumerate() if thread not in before and name in thread.name]


def wait_until(condition: Any, timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.02)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(worker: int) -> int:
    """The JVM above the daemon above the worker."""
    return parent_of(parent_of(worker))
