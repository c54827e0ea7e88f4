"""Checkpoint time under full load, beside the same job without events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from penstock.coordinator.api import Gateway
from penstock.schemas.settings import CheckpointSettings

from .checkpoints import WARM_UP, Stopwatch
from .events import INTERVAL_S, UNHANDLED_MAX
from .figures import SIZE, Figure, Goal, Setting
from .job import Counter, Sender, sending

CHECKPOINTS = 30
"""Of each side, in each repeat."""


class TimedSender(Stopwatch, Sender):
    """Sends events, and times the checkpoints meanwhile."""

    def __init__(self) -> None:
        Sender.__init__(self)
        Stopwatch.__init__(self)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        Sender.execution_attempt_ready(self, subtask, attempt, gateway)
        Stopwatch.execution_attempt_ready(self, subtask, attempt, gateway)


def figures(setting: Setting) -> Iterator[Figure]:
    for subtasks in setting.parallelisms:
        setting.say(f"{subtasks} subtask(s)")
        idle, loaded = list[float](), list[float]()
        for _ in range(setting.repeats):
            times = checkpoint_times(setting.bootstrap, subtasks, setting.count(CHECKPOINTS, 3))
            idle += times[0]
            loaded += times[1]
        yield Figure.of_runs(
            f"checkpoint under full load, {subtasks} subtask{'s' if subtasks > 1 else ''}",
            f"checkpoint_coordinator to notify_checkpoint_complete every {1000 * INTERVAL_S:g} ms, median of"
            f" {len(loaded)}, while {SIZE}-byte events are sent, at most {UNHANDLED_MAX:,} unhandled, each subtask in a"
            " process of its own",
            [1000 * seconds for seconds in loaded],
            "ms",
            [1000 * seconds for seconds in idle],
            "the same job before it sends",
            Goal("<= 2 times", "ratio", at_most=2),
        )


def checkpoint_times(bootstrap: str, subtasks: int, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each of ``count`` checkpoints without events, and of as many under full load."""
    sender, stop = TimedSender(), threading.Event()
    checkpoint = CheckpointSettings(interval=INTERVAL_S)
    with sending(bootstrap, sender, Counter, subtasks, checkpoint=checkpoint, max_unhandled=UNHANDLED_MAX):
        idle = _next_times(sender, subtasks, count)
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(_send_until, stop, sender, subtasks)
            try:
                loaded = _next_times(sender, subtasks, count)
            finally:
                stop.set()
            load.result()
    return idle, loaded


def _next_times(sender: TimedSender, subtasks: int, count: int) -> list[float]:
    begin = len(sender.taken) + WARM_UP
    sender.wait(subtasks, begin + count)
    return sender.taken[begin : begin + count]


def _send_until(stop: threading.Event, sender: Sender, subtasks: int) -> None:
    payload = bytes(SIZE)
    while not stop.is_set():
        for subtask in range(subtasks):
            sender.send(subtask, payload)
