"""The job that is measured: one coordinator that sends, subtasks in processes of their own that do nothing."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from penstock.coordinator.api import EventContext, Gateway, OperatorCoordinator
from penstock.coordinator.futures import EventFuture
from penstock.job import Job
from penstock.schemas.errors import Backpressure
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Context, Subtask
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport.kafka import KafkaTransport

from .service import coordinated

DEADLINE_S = 120.0
_STAMP = struct.Struct("<d")


def now() -> bytes:
    """What a subtask tells its :class:`Sender` of the moment in which it was through."""
    return _STAMP.pack(time.monotonic())


class Sender(OperatorCoordinator):
    """Sends when told to, from the benchmark's own thread; learns from each subtask when it was through."""

    def __init__(self) -> None:
        self.gateways: dict[int, Gateway] = {}
        self.done: dict[int, float] = {}
        self.changed = threading.Condition()

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        with self.changed:
            self.gateways[subtask] = gateway
            self.changed.notify_all()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: bytes, context: EventContext) -> None:
        with self.changed:
            self.done[subtask] = _STAMP.unpack(event)[0]
            self.changed.notify_all()

    def wait_for_gateways(self, count: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.gateways) == count, DEADLINE_S):
                raise TimeoutError(f"{len(self.gateways)} of {count} subtasks registered")

    def wait_until_done(self, count: int) -> float:
        """Monotonic second at which the last subtask had handled its last event."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.done) == count, DEADLINE_S):
                raise TimeoutError(f"{len(self.done)} of {count} subtasks are done")
            return max(self.done.values())

    def send(self, subtask: int, event: bytes) -> EventFuture:
        while True:
            try:
                return self.gateways[subtask].send_event(event)
            except Backpressure:
                writable = threading.Event()
                self.context.on_writable(subtask, writable.set)
                if not writable.wait(DEADLINE_S):
                    raise


class Counter(Subtask):
    """Counts, and tells when it has seen what it was to expect."""

    expected = 0

    def open(self, context: Context) -> None:
        self.context = context
        self.left = self.expected

    def handle_operator_event(self, event: bytes) -> None:
        self.left -= 1
        if self.left == 0:
            self.context.send_event_to_coordinator(now())


class Stamp(Subtask):
    """Answers each event with the moment at which it was handled."""

    def open(self, context: Context) -> None:
        self.context = context

    def handle_operator_event(self, event: bytes) -> None:
        self.context.send_event_to_coordinator(now())


def _run_subtask(job: Job, subtask: SubtaskId, bootstrap: str, expected: int, run: str) -> None:
    Counter.expected = expected
    operator = job.operators[subtask.operator]
    SubtaskRuntime(job.settings, subtask, operator.subtask, KafkaTransport(bootstrap), run=run).run()


@contextmanager
def running(
    bootstrap: str,
    subtask: type[Subtask],
    parallelism: int,
    *,
    expected: int = 0,
    max_unhandled: int = 100_000_000,
    checkpoint_interval: float | None = None,
) -> Iterator[Sender]:
    """The sender of a job whose subtasks are all up, each in a process of its own."""
    sender = Sender()
    job = Job(f"bench-{uuid.uuid4().hex[:12]}", checkpoint=CheckpointSettings(interval=checkpoint_interval))
    job.operator(
        "counter",
        subtask=subtask,
        coordinator=lambda: sender,
        parallelism=parallelism,
        max_unhandled=max_unhandled,
        max_unsent_bytes=256 * 1024 * 1024,
    )
    bare = Job(job.name, checkpoint=job.checkpoint)
    bare.operator("counter", subtask=subtask, parallelism=parallelism)
    targets = [partial(_run_subtask, bare, s, bootstrap, expected) for s in job.settings.subtasks()]
    with coordinated(job, bootstrap, targets):
        sender.wait_for_gateways(parallelism)
        yield sender
