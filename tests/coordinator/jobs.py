"""A job whose coordinator does what a test tells it, and tells what happened to it: no test sleeps and hopes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import penstock
from penstock.coordinator.api import CheckpointResult, EventContext, Gateway, OperatorCoordinator
from penstock.coordinator.options import CoordinatorOptions
from penstock.schemas.codec import decode
from penstock.schemas.events import EventFrame, EventsRecord
from penstock.schemas.frames import unpack
from penstock.schemas.settings import CheckpointSettings, RestartStrategy
from penstock.schemas.status import JobStatus
from penstock.subtask_client.api import Subtask
from penstock.testing.local import LocalJob
from penstock.transport.ports import Partition, Transport

PATIENCE_S = 20.0
"""Every wait ends after so long, with an error that says what was waited for."""


class Boom(Exception):
    """What user code raises where a test tells it to."""


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """The first truthy value of ``condition``."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        threading.Event().wait(0.005)
    return value


class Plan:
    """What coordinators and subtasks of a job are to do, and what they did; shared by all their instances."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.calls: list[tuple[Any, ...]] = []
        """Callbacks of coordinators, in order: name, then arguments."""
        self.raises: Counter[str] = Counter()
        """How often a callback of that name has yet to raise."""
        self.does: dict[str, Callable[..., Any]] = {}
        """Called with the coordinator and the arguments, in the callback of that name."""
        self.gateways: dict[int, Gateway] = {}
        """The newest of each subtask."""
        self.coordinator: OperatorCoordinator | None = None
        """The newest instance."""
        self.handled: list[tuple[int, bytes]] = []
        """Events that subtasks handled: subtask, event."""
        self.poison: Counter[bytes] = Counter()
        """How often handling an event has yet to raise in a subtask."""

    def note(self, name: str, *args: Any) -> None:
        with self.changed:
            self.calls.append((name, *args))
            self.changed.notify_all()
            boom = self.raises[name] > 0
            self.raises[name] -= boom
        if name in self.does:
            self.does[name](self.coordinator, *args)
        if boom:
            raise Boom(f"in {name}")

    def names(self) -> list[str]:
        with self.changed:
            return [call[0] for call in self.calls]

    def count(self, name: str) -> int:
        return self.names().count(name)

    def wait_for(self, condition: Callable[[], Any], what: str = "a callback") -> Any:
        """Waits for something that a callback or a subtask brings about."""
        with self.changed:
            if not self.changed.wait_for(condition, PATIENCE_S):
                raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}; calls were {self.calls[-40:]}")
            return condition()

    def wait_call(self, name: str, times: int = 1) -> None:
        self.wait_for(lambda: sum(call[0] == name for call in self.calls) >= times, f"{name} x{times}")

    def wait_handled(self, event: bytes, subtask: int = 0) -> None:
        self.wait_for(lambda: (subtask, event) in self.handled, f"{event!r} in subtask {subtask}")

    def wait_gateways(self, *subtasks: int) -> None:
        self.wait_for(lambda: set(subtasks) <= set(self.gateways), f"gateways to {subtasks}")


class Coordinator(OperatorCoordinator):
    """Says everything to its plan. Its state is how many events it was handed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        plan.coordinator = self
        self.received = 0

    def start(self) -> None:
        self.plan.note("start")

    def close(self) -> None:
        self.plan.note("close")

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        self.received += 1
        self.plan.note("handle_event_from_operator", subtask, event)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self.plan.note("checkpoint_coordinator", checkpoint_id, result)
        if "checkpoint_coordinator" not in self.plan.does:
            result.complete(b"%d" % self.received)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.plan.note("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self.plan.note("notify_checkpoint_aborted", checkpoint_id)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.received = int(state) if state is not None and state.isdigit() else 0
        self.plan.note("reset_to_checkpoint", checkpoint_id, state)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        self.plan.note("subtask_reset", subtask, checkpoint_id)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        with self.plan.changed:
            if self.plan.coordinator is self:  # one that has been replaced may be told so later
                self.plan.gateways[subtask] = gateway
        self.plan.note("execution_attempt_ready", subtask, attempt)

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.plan.note("execution_attempt_failed", subtask, attempt, reason)

    def handle_request(self, request: Any) -> Any:
        self.plan.note("handle_request", request)
        return b"answer to " + request


class Handler(Subtask):
    """Says what it handles to its plan; its state is the list of events. Greets its coordinator when it opens."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events: list[bytes] = []

    def open(self, context: Any) -> None:
        self.context = context
        context.send_event_to_coordinator(b"up")

    def handle_operator_event(self, event: bytes) -> None:
        with self.plan.changed:
            poisoned = self.plan.poison[event] > 0
            self.plan.poison[event] -= poisoned
        if poisoned:
            raise Boom(f"handling {event!r}")
        self.events.append(event)
        if event.startswith(b"echo "):
            self.context.send_event_to_coordinator(event[5:])
        with self.plan.changed:
            self.plan.handled.append((self.context.subtask, event))
            self.plan.changed.notify_all()

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b"\0".join(self.events)

    def restore_state(self, checkpoint_id: int, state: bytes | None) -> None:
        self.events = state.split(b"\0") if state else []


def make_job(
    plan: Plan,
    name: str = "job",
    *,
    parallelism: int = 1,
    interval: float | None = 0.05,
    checkpoint: dict[str, Any] | None = None,
    restart: RestartStrategy | None = None,
    state_storage: str | None = None,
    handler: type[Handler] = Handler,
    **operator: Any,
) -> penstock.Job:
    """One operator ``op``; everything is quick, and failovers are cheap."""
    job = penstock.Job(
        name,
        checkpoint=CheckpointSettings(interval=interval, **(checkpoint or {})),
        restart=restart or RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=50),
        heartbeat_interval=0.1,
        heartbeat_timeout=10.0,
        state_storage=state_storage,
    )
    job.operator(
        "op", coordinator=lambda: Coordinator(plan), subtask=lambda: handler(plan), parallelism=parallelism, **operator
    )
    return job


def run(job: penstock.Job, transport: Transport | None = None, **changes: Any) -> LocalJob:
    """The job in threads, telling its status all the time."""
    options = CoordinatorOptions(status_interval_s=0.02, **changes.pop("options", {}))
    return LocalJob(job, transport, options, **changes)


def epoch_of(running: LocalJob) -> int:
    assert running.service is not None
    status = running.service.status()
    return 0 if status is None else status.epoch


def wait_status(running: LocalJob, condition: Callable[[JobStatus], bool]) -> JobStatus:
    return running.wait_for(condition, PATIENCE_S)


def wait_checkpoint(running: LocalJob, plan: Plan) -> int:
    """A checkpoint that was triggered from now on has completed; returns its id."""
    with plan.changed:
        triggered = max((call[1] for call in plan.calls if call[0] == "checkpoint_coordinator"), default=0)

    def done() -> list[int]:
        """Of those that this plan's coordinator has taken part in: a restore notifies of an earlier one."""
        taken = {call[1] for call in plan.calls if call[0] == "checkpoint_coordinator"}
        return [c[1] for c in plan.calls if c[0] == "notify_checkpoint_complete" and c[1] > triggered and c[1] in taken]

    return int(plan.wait_for(done, f"a checkpoint above {triggered}")[0])


def wait_recovered(running: LocalJob, plan: Plan, event: bytes = b"after") -> None:
    """Events flow and checkpoints complete (protocol, G6)."""
    wait_checkpoint(running, plan)

    def through() -> bool:
        plan.gateways[0].send_event(event)
        return any(e == event for _, e in plan.handled)

    wait_until(through, "an event after the failover")


def records(transport: Transport, job: penstock.Job, subtask: int = 0) -> list[EventsRecord]:
    """Everything in the subtask's event partition."""
    found = transport.read_all(Partition(job.settings.topics.events("op"), subtask))
    return [decode(record.value) for record in found]  # type: ignore[misc]


def events_of(frames: list[Any]) -> list[bytes]:
    return [e for f in frames if isinstance(f, EventFrame) for e in unpack(f.count, f.lengths, f.payload)]
