"""A job that counts: what each subtask was sent must be 0, 1, 2, ... in the end, whatever was injected."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import penstock
from penstock.coordinator.options import CoordinatorOptions
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.status import Ending, JobStatus
from penstock.testing import Faults, LocalJob
from penstock.transport import Transport

PATIENCE_S = 30.0
EVENTS = 40
SUBTASKS = 2
OPERATOR = "reader"


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """The first truthy value of ``condition``."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        threading.Event().wait(0.005)
    return value


class Course:
    """How far the job may go, and what its objects saw; shared by all of them."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        """Before it is set the last event of each subtask is not sent."""
        self.limit = EVENTS
        """So many events are sent to each subtask, at most."""
        self.lock = threading.Lock()
        self.settled: Counter[int] = Counter()
        """How often the future of each send settled, by the number of the send."""
        self.sent = 0
        self.handled: Counter[int] = Counter()
        """Events handled by each subtask, undone ones included."""
        self.closed: list[str] = []
        self.completed: list[int] = []
        self.aborted: list[int] = []
        self.told: list[list[int]] = []
        """What the coordinator had been told when the newest checkpoint completed."""


class Counting(penstock.OperatorCoordinator):
    """Sends 0, 1, 2, ... to each subtask; its state is what comes next, and what it was told."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.gateways: dict[int, penstock.Gateway] = {}
        self.next = [0] * SUBTASKS
        self.told: list[list[int]] = [[] for _ in range(SUBTASKS)]

    def start(self) -> None:
        self.context.call_every(0.005, self._send)

    def close(self) -> None:
        self.course.closed.append("coordinator")

    def _send(self) -> None:
        end = min(self.course.limit, EVENTS if self.course.may_end.is_set() else EVENTS - 1)
        for subtask, gateway in self.gateways.items():
            if self.next[subtask] < end:
                self._send_one(gateway, self.next[subtask])
                self.next[subtask] += 1

    def _send_one(self, gateway: penstock.Gateway, event: int) -> None:
        course = self.course
        with course.lock:
            number = course.sent
            course.sent += 1

        def settled(_: object) -> None:
            with course.lock:
                course.settled[number] += 1

        gateway.send_event(event).add_done_callback(settled)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        self.gateways[subtask] = gateway

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        pass

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        result.complete({"next": self.next, "told": self.told})

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.course.told = [list(told) for told in self.told]  # everything that belongs to it has been handed over
        self.course.completed.append(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self.course.aborted.append(checkpoint_id)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.gateways.clear()
        state = state or {"next": [0] * SUBTASKS, "told": [[] for _ in range(SUBTASKS)]}
        self.next, self.told = list(state["next"]), [list(told) for told in state["told"]]

    def handle_event_from_operator(self, subtask: int, attempt: int, event: int, context: Any) -> None:
        self.told[subtask].append(event)


class Listing(penstock.Subtask):
    """Keeps what it was sent, tells it back, and finishes with the last one."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.got: list[int] = []

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def close(self) -> None:
        self.course.closed.append(f"subtask {self.context.subtask}")

    def handle_operator_event(self, event: int) -> None:
        self.got.append(event)
        self.context.send_event_to_coordinator(event)
        with self.course.lock:
            self.course.handled[self.context.subtask] += 1

    def poll(self) -> penstock.Idle | penstock.Finished:
        return penstock.Finished() if len(self.got) >= EVENTS else penstock.Idle(0.02)

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        return self.got

    def restore_state(self, checkpoint_id: int, state: list[int]) -> None:
        self.got = list(state)


def counting_job(course: Course, *, checkpoint: dict[str, Any] | None = None, **settings: Any) -> penstock.Job:
    """Everything is quick; ``settings`` are the job's and the operator's, as their names say."""
    operator = {k: settings.pop(k) for k in ("on_failover", "event_ack_timeout") if k in settings}
    quick: dict[str, Any] = {"heartbeat_interval": 0.1, "heartbeat_timeout": 20.0, "start_timeout": 60.0}
    quick["frame_events_max"] = 4  # however slow the machine is, there are frames enough to meet a fault
    restart = penstock.RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=settings.pop("budget", 100))
    job = penstock.Job(
        f"counting-{uuid.uuid4().hex[:8]}",
        checkpoint=penstock.CheckpointSettings(**{"interval": 0.05, "timeout": 20.0, **(checkpoint or {})}),
        restart=restart,
        **(quick | settings),
    )
    job.operator(
        OPERATOR,
        coordinator=lambda: Counting(course),
        subtask=lambda: Listing(course),
        parallelism=SUBTASKS,
        codec="json",
        state_codec="json",
        **operator,
    )
    return job


def run(job: penstock.Job, transport: Transport, faults: Faults, **changes: Any) -> LocalJob:
    return LocalJob(job, transport, CoordinatorOptions(status_interval_s=0.02), faults=faults, **changes)


def status_of(running: LocalJob) -> JobStatus:
    return running.wait_for(lambda _: True, PATIENCE_S)


def failures(status: JobStatus) -> list[int]:
    """How often each subtask has failed."""
    return [s.failures for s in status.operators[0].subtasks]


def failed_with(running: LocalJob, words: str) -> JobStatus:
    """The status once a failover had a cause with these words."""
    return running.wait_for(
        lambda s: words in s.last_failure and s.failovers_region + s.failovers_global > 0, PATIENCE_S
    )


def wait_checkpoint(running: LocalJob, course: Course) -> int:
    """A checkpoint that completes from now on."""
    known = len(course.completed)
    wait_until(lambda: len(course.completed) > known, "another checkpoint")
    return course.completed[-1]


def ends_exactly(running: LocalJob, course: Course, *, check: bool = True) -> None:
    """The job ends by itself, its last checkpoint has exactly what was to be sent, and every future has settled."""
    course.may_end.set()
    outcome = running.wait(PATIENCE_S)
    assert outcome.ending is Ending.FINISHED, f"{outcome}\n{running.describe()}"
    last = running.client.history().last
    assert last is not None
    exact = list(range(EVENTS))
    for subtask, snapshot in last.subtasks.items():
        assert snapshot.state is not None
        assert json.loads(snapshot.state.inline or b"null") == exact, f"{subtask}\n{running.describe()}"
    operator = last.operator(OPERATOR)
    assert operator is not None
    assert operator.coordinator_state is not None
    state = json.loads(operator.coordinator_state.inline or b"null")
    assert state["next"] == [EVENTS] * SUBTASKS
    if running.settings.operator(OPERATOR).on_failover is FailoverPolicy.GLOBAL:
        assert course.told == [exact] * SUBTASKS, running.describe()
    else:  # events that a region failover has undone may stand among them
        assert [set(told) for told in course.told] == [set(exact)] * SUBTASKS
    with course.lock:
        assert set(course.settled.values()) <= {1}, "a future settled twice"
        assert len(course.settled) == course.sent, "a future never settled"
    if check:
        running.check()
