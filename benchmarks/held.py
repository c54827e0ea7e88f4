"""Events held by closed gateways during one long checkpoint, and their release."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.coordinator.api import CheckpointResult
from penstock.coordinator.service import CoordinatorService
from penstock.schemas.settings import CheckpointSettings

from .figures import SIZE, Figure, Goal, Setting
from .job import DEADLINE_S, Counter, Sender, hold_file, sending, wait_for_status, wait_while
from .resident import in_a_process_of_its_own, resident_mb, watched

EVENTS = 1_000_000
BOUND_S = 120.0
HELD_BYTES_MAX = 4 * 1024**3


class Slow(Counter):
    """Its snapshots take as long as a file is there."""

    def __init__(self, hold_on: Path, expected: int) -> None:
        super().__init__(expected)
        self.hold_on = hold_on

    def snapshot_state(self, checkpoint_id: int) -> bytes | None:
        wait_while(self.hold_on)
        return None


class Cutting(Sender):
    """A sender that says when it made its first cut: events sent from then on are held."""

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
            wait_for_status(service, lambda s: s.held >= events, f"not all of {events} events are held")
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
    with (
        hold_file() as hold_on,
        sending(
            bootstrap, sender, partial(Slow, hold_on, events), checkpoint=checkpoint, max_held_bytes=HELD_BYTES_MAX
        ) as service,
    ):
        yield sender, service, hold_on


def _send(sender: Sender, events: int) -> None:
    payload = bytes(SIZE)
    for _ in range(events):
        sender.send(0, payload)
