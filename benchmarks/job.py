"""The job that is measured: one coordinator that sends, subtasks in processes of their own that do nothing."""

from __future__ import annotations

import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock.coordinator.api import EventContext, Gateway, OperatorCoordinator
from penstock.coordinator.futures import EventFuture
from penstock.coordinator.service import CoordinatorService
from penstock.job import Job
from penstock.schemas.errors import Backpressure
from penstock.schemas.settings import CheckpointSettings
from penstock.schemas.status import SubtaskStatus
from penstock.subtask_client.api import Context, Subtask

from .service import coordinated, run_subtask

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
        """Send one event as users do, by the call for one; wait for room first."""
        while True:
            try:
                return self.gateways[subtask].send_event(event)
            except Backpressure:
                self._wait_for_room(subtask)

    def send_batch(self, subtask: int, events: list[bytes]) -> EventFuture:
        while True:
            try:
                return self.gateways[subtask].send_events(events)
            except Backpressure:
                self._wait_for_room(subtask)

    def _wait_for_room(self, subtask: int) -> None:
        writable = threading.Event()
        self.context.on_writable(subtask, writable.set)
        if not writable.wait(DEADLINE_S):
            raise TimeoutError(f"no room for events to subtask {subtask}")


class Counter(Subtask):
    """A subtask that counts its events, and says when it has seen as many as expected."""

    def __init__(self, expected: int = 0) -> None:
        self.left = expected

    def open(self, context: Context) -> None:
        self.context = context

    def handle_operator_event(self, event: bytes) -> None:
        self.left -= 1
        if self.left == 0:
            self.context.send_event_to_coordinator(now())


class BatchCounter(Counter):
    """The same for lists of events."""

    def handle_operator_events(self, events: list[bytes]) -> None:
        self.left -= len(events)
        if self.left <= 0:
            self.context.send_event_to_coordinator(now())


class Stamp(Subtask):
    """Answers each event with the moment at which it was handled."""

    def open(self, context: Context) -> None:
        self.context = context

    def handle_operator_event(self, event: bytes) -> None:
        self.context.send_event_to_coordinator(now())


@contextmanager
def sending(
    bootstrap: str,
    sender: Sender,
    subtask: Callable[[], Subtask],
    parallelism: int = 1,
    *,
    checkpoint: CheckpointSettings,
    **limits: float,
) -> Iterator[CoordinatorService]:
    """A job that ``sender`` coordinates. Its subtasks are all up, each in a process of its own."""
    bare = Job(f"bench-{uuid.uuid4().hex[:12]}", checkpoint=checkpoint)
    bare.operator("receiver", subtask=subtask, parallelism=parallelism)
    job = Job(bare.name, checkpoint=checkpoint)
    job.operator(
        "receiver", subtask=subtask, coordinator=lambda: sender, parallelism=parallelism,
        **{"max_unhandled": 100_000_000, **limits},
    )  # fmt: skip
    targets = [partial(run_subtask, bare, s, bootstrap) for s in job.settings.subtasks()]
    with coordinated(job, bootstrap, targets) as service:
        sender.wait_for_gateways(parallelism)
        yield service


@contextmanager
def running(
    bootstrap: str,
    subtask: Callable[[], Subtask],
    parallelism: int,
    *,
    checkpoint_interval: float | None = None,
    **limits: float,
) -> Iterator[Sender]:
    """The sender of a job whose subtasks are all up, each in a process of its own."""
    sender, checkpoint = Sender(), CheckpointSettings(interval=checkpoint_interval)
    limits = {"max_unsent_bytes": 256 * 1024 * 1024, **limits}
    with sending(bootstrap, sender, subtask, parallelism, checkpoint=checkpoint, **limits):
        yield sender


@contextmanager
def hold_file() -> Iterator[Path]:
    """A file that subtasks wait for while it is there, with :func:`wait_while`."""
    with tempfile.TemporaryDirectory() as folder:
        hold = Path(folder) / "hold on"
        hold.touch()
        yield hold


def wait_while(hold: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while hold.exists() and time.monotonic() < deadline:
        time.sleep(0.001)


def wait_for_status(service: CoordinatorService, reached: Callable[[SubtaskStatus], bool], what: str) -> None:
    """Wait until the first subtask's status has reached it; TimeoutError names ``what`` was missing."""
    deadline = time.monotonic() + DEADLINE_S
    while (status := service.status()) is None or not reached(status.operators[0].subtasks[0]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: {status}")
        time.sleep(0.05)
