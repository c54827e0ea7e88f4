"""The faults of the demo, brought about by progress and not by the clock: each comes before the data are used up.

A fault that tasks can be told of goes through the job's own request channel, as `penstock request` would; a worker is
killed with SIGKILL. The next one waits until the job has felt this one and all subtasks run again.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...schemas.errors import PenstockError

LOOK_EVERY_S = 0.1
REMIND_EVERY_S = 1.0
FELT_TIMEOUT_S = 15.0
"""A fault that nobody has felt by then is brought about again."""
REQUEST_TIMEOUT_S = 5.0


class Fault(StrEnum):
    RAISE = "task_raised"
    KILL = "worker_killed"
    ROLL_BACK = "rolled_back"


AT = {Fault.RAISE: 0.2, Fault.KILL: 0.4, Fault.ROLL_BACK: 0.65}
"""At which part of all splits done."""
_GATE_BEHIND = 0.15
"""So much more may be handed out before the fault has come."""


@dataclass(frozen=True, slots=True)
class Planned:
    fault: Fault
    at: int
    """Splits done."""
    gate: int
    """Splits handed out before it has been survived."""


def plan(splits: int, wanted: tuple[Fault, ...] = tuple(Fault)) -> tuple[list[Planned], list[str]]:
    """What will come, and why the rest will not: each fault needs splits done before it and splits left behind it."""
    planned: list[Planned] = []
    left_out: list[str] = []
    for fault in wanted:
        at = max(1, math.ceil(AT[fault] * splits), planned[-1].at + 1 if planned else 0)
        if at >= splits:
            left_out.append(f"the input is too small for this fault, and it is left out: {fault.value}")
        else:
            planned.append(Planned(fault, at, min(splits - 1, max(at, int((AT[fault] + _GATE_BEHIND) * splits)))))
    return planned, left_out


class Injector:
    """Brings the planned faults about, on a thread of its own, from ``start`` to ``stop``.

    ``ask(request, timeout_s)`` asks the job's coordinator and returns its answer, or raises a PenstockError.
    """

    def __init__(
        self,
        ask: Callable[[Any, float], Any],
        planned: list[Planned],
        *,
        seed: int,
        say: Callable[[str], None],
        kill_every_s: float | None = None,
    ) -> None:
        self._request, self._planned, self._say = ask, planned, say
        self._random = random.Random(seed)
        self._kill_every_s = kill_every_s
        self._next_kill = math.inf
        self._survived = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-faults", daemon=True)
        self.injected: Counter[str] = Counter()
        self.last_progress: dict[str, Any] = {}

    def start(self) -> Injector:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(REQUEST_TIMEOUT_S + 5.0)

    @property
    def all_survived(self) -> bool:
        return self._survived == len(self._planned)

    def _run(self) -> None:
        if not self._planned and self._kill_every_s is None:
            return
        while not self._stopping.wait(LOOK_EVERY_S):
            progress = self._ask({"gates_passed": self._survived})
            if progress is None or progress["live"] < progress["subtasks"]:
                continue
            if self._kill_every_s is not None and self._kill_is_due(progress, self._kill_every_s):
                self._inject(Fault.KILL, progress)
            elif self._survived < len(self._planned):
                planned = self._planned[self._survived]
                if progress["done"] >= planned.at and self._inject(planned.fault, progress):
                    self._survived += 1
            elif self._kill_every_s is None:
                self._stopping.wait(REMIND_EVERY_S)  # a coordinator instance that is new has to be told of the gates

    def _inject(self, fault: Fault, progress: dict[str, Any]) -> bool:
        """Whether the job has felt the fault and goes on with all of its subtasks."""
        before = progress["failed"] + progress["resets"]
        if not self._bring_about(fault, progress):
            return False
        survived = self._wait(
            lambda now: now["failed"] + now["resets"] > before and now["live"] == now["subtasks"], FELT_TIMEOUT_S
        )
        self.injected[fault.value] += survived
        return survived

    def _kill_is_due(self, progress: dict[str, Any], every_s: float) -> bool:
        now = time.monotonic()
        if self._next_kill == math.inf:
            self._next_kill = now + every_s
        if now < self._next_kill or progress["done"] == progress["splits"]:
            return False
        self._next_kill = now + every_s
        return True

    def _bring_about(self, fault: Fault, progress: dict[str, Any]) -> bool:
        subtask = self._random.choice(range(progress["subtasks"]))
        match fault:
            case Fault.RAISE:
                self._say(f"fault: the task of subtask {subtask} raises")
                return self._ask({"fault": "raise", "subtask": subtask}) is not None
            case Fault.KILL:
                return self._kill(progress)
            case Fault.ROLL_BACK:
                self._say("fault: the coordinators are rolled back to the last checkpoint")
                return self._ask({"fault": "roll back"}) is not None

    def _kill(self, progress: dict[str, Any]) -> bool:
        """SIGKILL to the process of some subtask; whether there was one to kill."""
        workers = sorted((int(subtask), pid) for subtask, (_, pid) in progress["workers"].items())
        workers = [(subtask, pid) for subtask, pid in workers if is_python_worker(pid)]
        if not workers:
            return False
        subtask, pid = self._random.choice(workers)
        self._say(f"fault: SIGKILL to the worker of subtask {subtask}, process {pid}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _wait(self, condition: Callable[[dict[str, Any]], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._stopping.is_set():
            progress = self._ask({"gates_passed": self._survived})
            if progress is not None and condition(progress):
                return True
            self._stopping.wait(LOOK_EVERY_S)
        return False

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The coordinator's answer; None where there is none (it is starting, failing over, or has ended)."""
        try:
            self.last_progress = self._request(request, REQUEST_TIMEOUT_S)
        except PenstockError:
            return None
        return self.last_progress


def is_python_worker(pid: int) -> bool:
    """Whether that process still is a Python worker of Spark, and not us or somebody who got its number."""
    if pid == os.getpid():
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return not Path("/proc/self/cmdline").exists()  # a system without /proc: there is no way to tell
    except OSError:
        return False
    return b"daemon" in command or b"pyspark" in command
