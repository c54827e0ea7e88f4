"""What a coordinator takes in memory: with a thousand subtasks, and with a million futures that have not settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.coordinator.futures import EventFuture
from penstock.coordinator.service import CoordinatorService
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Subtask

from . import checkpoints
from .figures import SIZE, Figure, Setting
from .job import DEADLINE_S, Sender, hold_file, sending, wait_for_status, wait_while
from .resident import in_a_process_of_its_own, resident_mb

SUBTASKS = 1_000
CHECKPOINTS = 5
FUTURES = 1_000_000
DROPPED, LISTED, CALLED_BACK = "dropped by user code", "kept in a list", "each with a callback"
KEPT = (DROPPED, LISTED, CALLED_BACK)
"""What user code does with a future."""
BOUND_S = 180.0


class Futures(NamedTuple):
    """Megabytes by which the coordinator's process had grown while so many futures were open, and how they settled."""

    grown_mb: float
    settled_per_second: float


def figures(setting: Setting) -> Iterator[Figure]:
    at, subtasks = setting.bootstrap, setting.count(SUBTASKS, checkpoints.PROCESSES_MAX + 2)
    setting.say(f"a coordinator of {subtasks:,} subtasks")
    one = in_a_process_of_its_own(BOUND_S, memory_of_coordinator, at, 1)
    many = in_a_process_of_its_own(BOUND_S, memory_of_coordinator, at, subtasks)
    yield Figure(
        f"memory of a coordinator, {subtasks:,} subtasks", f"resident memory behind {CHECKPOINTS} checkpoints",
        many, "MB", one, "with 1 subtask",
    )  # fmt: skip
    count = setting.count(FUTURES, 20_000)
    setting.say(f"{count:,} outstanding futures")
    what = f"{count:,} events sent to 1 subtask that handles none; resident memory of the coordinator's process, grown"
    for how in KEPT:
        runs = [_futures(setting, how, count) for _ in range(setting.repeats)]
        yield Figure.of_runs(f"outstanding futures, {how}", what, [run.grown_mb for run in runs], "MB")
        if how == CALLED_BACK:
            settled = "from the release of the handler to the last callback called"
            per_second = [run.settled_per_second for run in runs]
            yield Figure.of_runs("outstanding futures, settling", settled, per_second, "futures/s")


def _futures(setting: Setting, how: str, count: int) -> Futures:
    return in_a_process_of_its_own(BOUND_S, memory_of_futures, setting.bootstrap, how, count)


def memory_of_coordinator(bootstrap: str, subtasks: int) -> float:
    """Megabytes, all of the process."""
    with checkpoints.running(bootstrap, subtasks, checkpoints.pause_of(subtasks)) as stopwatch:
        stopwatch.wait(subtasks, CHECKPOINTS)
        return resident_mb()


class Stuck(Subtask):
    """Handles nothing as long as a file is there."""

    def __init__(self, hold_on: Path) -> None:
        self.hold_on = hold_on

    def handle_operator_event(self, event: bytes) -> None:
        wait_while(self.hold_on)


def memory_of_futures(bootstrap: str, how: str, count: int) -> Futures:
    payload, kept = bytes(SIZE), []
    with _running(bootstrap) as (sender, service, hold_on):
        left, settled = [count], threading.Event()

        def call(_: EventFuture) -> None:
            left[0] -= 1
            if not left[0]:
                settled.set()

        began_mb = resident_mb()
        for _ in range(count):
            future = sender.send(0, payload)
            if how == LISTED:
                kept.append(future)
            elif how == CALLED_BACK:
                future.add_done_callback(call)
        wait_for_status(service, lambda s: s.sent >= count, f"not all of {count} events are in the log")
        grown_mb = resident_mb() - began_mb
        if how != CALLED_BACK:
            left[0] = 1
            future.add_done_callback(call)
        began = time.monotonic()
        hold_on.unlink()
        if not settled.wait(DEADLINE_S):
            raise TimeoutError(f"{left[0]} of {count} futures have not settled")
        return Futures(grown_mb, count / (time.monotonic() - began))


@contextmanager
def _running(bootstrap: str) -> Iterator[tuple[Sender, CoordinatorService, Path]]:
    """A job whose subtask is up, and a file that keeps it from handling anything while it is there."""
    sender, no_checkpoints = Sender(), CheckpointSettings(interval=None)
    with (
        hold_file() as hold_on,
        sending(
            bootstrap, sender, partial(Stuck, hold_on), checkpoint=no_checkpoints, event_ack_timeout=DEADLINE_S
        ) as service,
    ):
        yield sender, service, hold_on
