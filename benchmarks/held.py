"""Events held by closed gateways during one long checkpoint, and their release."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.coordinator.api import CheckpointResult
from penstock.coordinator.service import CoordinatorService
from penstock.job import Job
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport.kafka import KafkaTransport

from .figures import SIZE, Figure, Goal, Setting
from .job import DEADLINE_S, Counter, Sender
from .resident import in_a_process_of_its_own, resident_mb, watched
from .service import coordinated

EVENTS = 1_000_000
BOUND_S = 120.0
HELD_BYTES_MAX = 4 * 1024**3
UNBOUNDED = 100_000_000
_LOOK_S = 0.001


class Slow(Counter):
    """Its snapshots take as long as a file is there."""

    def __init__(self, hold_on: Path, expected: int) -> None:
        self.hold_on, self.expected = hold_on, expected

    def snapshot_state(self, checkpoint_id: int) -> bytes | None:
        deadline = time.monotonic() + DEADLINE_S
        while self.hold_on.exists() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return None


class Cutting(Sender):
    """Tells of its first cut: what is sent from then on is held."""

    def __init__(self) -> None:
        super().__init__()
        self.has_cut = threading.Event()

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(None)
        self.has_cut.set()


class Held(NamedTuple):
    """Megabytes by which the coordinator's process had grown, and events a second from the release on."""

    holding_mb: float
    peak_mb: float
    per_second: float


def figures(setting: Setting) -> list[Figure]:
    """By turns: events that are held, and the same events while nothing holds them."""
    events = setting.count(EVENTS, 20_000)
    held: list[Held] = []
    straight: list[float] = []
    for _ in range(setting.repeats):
        straight.append(in_a_process_of_its_own(BOUND_S, straight_through, setting.bootstrap, events))
        held.append(in_a_process_of_its_own(BOUND_S, hold, setting.bootstrap, events))
    what = f"{events:,} {SIZE}-byte events to 1 subtask while its snapshot keeps the gateway closed"
    of_bytes, sizes = "bytes of the events that are held", [events * SIZE / 1e6]
    goal = Goal("<= 1.5 times", "ratio", at_most=1.5)
    return [
        Figure.of_runs("held events: memory, holding", f"{what}: resident memory of the coordinator's process, grown",
                       [run.holding_mb for run in held], "MB", sizes, of_bytes, goal),
        Figure.of_runs("held events: memory, at most", "the same at its peak, from the first send to the last release",
                       [run.peak_mb for run in held], "MB", sizes, of_bytes, goal),
        Figure.of_runs("held events: release", f"{what}: from the end of the snapshot to the last event handled",
                       [run.per_second for run in held], "events/s", straight,
                       "ours, first send_event to last event handled, nothing held",
                       Goal("at full speed (>= 1 times)", "ratio", at_least=1.0)),
    ]  # fmt: skip


def hold(bootstrap: str, events: int) -> Held:
    with _running(bootstrap, events) as (sender, service, hold_on):
        if not sender.has_cut.wait(DEADLINE_S):
            raise TimeoutError("there was no checkpoint")
        with watched() as peak:
            _send(sender, events)
            _wait_until_held(service, events)
            holding_mb = resident_mb() - peak.began_mb
            began = time.monotonic()
            hold_on.unlink()
            ended = sender.wait_until_done(1)
            return Held(holding_mb, peak.look(), events / (ended - began))


def straight_through(bootstrap: str, events: int) -> float:
    """Events a second while nothing holds them."""
    with _running(bootstrap, events) as (sender, _, hold_on):
        hold_on.unlink()
        if not sender.has_cut.wait(DEADLINE_S):
            raise TimeoutError("there was no checkpoint")
        began = time.monotonic()
        _send(sender, events)
        return events / (sender.wait_until_done(1) - began)


@contextmanager
def _running(bootstrap: str, events: int) -> Iterator[tuple[Cutting, CoordinatorService, Path]]:
    """A job that is up, with a checkpoint each second, and a file that holds snapshots up while it is there."""
    sender, checkpoint = Cutting(), CheckpointSettings(interval=1.0, timeout=DEADLINE_S)
    job = Job(f"bench-{uuid.uuid4().hex[:12]}", checkpoint=checkpoint)
    job.operator(
        "held",
        subtask=Counter,
        coordinator=lambda: sender,
        parallelism=1,
        max_unhandled=UNBOUNDED,
        max_held_bytes=HELD_BYTES_MAX,
    )
    with tempfile.TemporaryDirectory() as folder:
        hold_on = Path(folder) / "hold on"
        hold_on.touch()
        bare = Job(job.name, checkpoint=checkpoint)
        bare.operator("held", subtask=partial(Slow, hold_on, events), parallelism=1)
        with coordinated(job, bootstrap, [partial(_run_subtask, bare, bootstrap)]) as service:
            sender.wait_for_gateways(1)
            yield sender, service, hold_on


def _run_subtask(job: Job, bootstrap: str, run: str) -> None:
    SubtaskRuntime(
        job.settings, SubtaskId("held", 0), job.operators["held"].subtask, KafkaTransport(bootstrap), run=run
    ).run()


def _wait_until_held(service: CoordinatorService, events: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (status := service.status()) is None or status.operators[0].subtasks[0].held < events:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {events} events are held: {status}")
        time.sleep(0.05)


def _send(sender: Sender, events: int) -> None:
    payload = bytes(SIZE)
    for _ in range(events):
        sender.send(0, payload)
