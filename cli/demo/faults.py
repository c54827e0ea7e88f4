"""The faults of the demo, brought about by progress and not by the clock.

A fault that tasks can be told of goes through the job's own request channel, as `penstock request` would; a worker is
killed with SIGKILL. The next one waits until the job has felt this one and all subtasks run again.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...schemas.errors import PenstockError

LOOK_EVERY_S = 0.1
FELT_TIMEOUT_S = 15.0
"""A fault that nobody has felt by then is brought about again."""
REQUEST_TIMEOUT_S = 5.0


class Fault(StrEnum):
    RAISE = "task_raised"
    KILL = "worker_killed"
    ROLL_BACK = "rolled_back"


AT = {Fault.RAISE: 0.15, Fault.KILL: 0.3, Fault.ROLL_BACK: 0.5}
"""At which part of all rows."""


class Injector:
    """Brings faults about, on a thread of its own, from ``start`` to ``stop``.

    ``ask(request, timeout_s)`` asks the job's coordinator and returns its answer, or raises a PenstockError.
    """

    def __init__(
        self,
        ask: Callable[[Any, float], Any],
        rows: int,
        *,
        seed: int,
        say: Callable[[str], None],
        faults: Collection[Fault] = tuple(Fault),
        kill_every_s: float | None = None,
    ) -> None:
        self._request, self._rows, self._say = ask, rows, say
        self._random = random.Random(seed)
        self._due = [fault for fault in AT if fault in faults]
        self._kill_every_s = kill_every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-faults", daemon=True)
        self.injected: Counter[str] = Counter()

    def start(self) -> Injector:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(REQUEST_TIMEOUT_S + 5.0)

    def _run(self) -> None:
        next_kill = time.monotonic() + (self._kill_every_s or 0.0)
        while (self._due or self._kill_every_s) and not self._stopping.wait(LOOK_EVERY_S):
            if (progress := self._ask("none")) is None or not progress["all_run"]:
                continue
            if self._due and progress["rows"] >= AT[self._due[0]] * self._rows:
                if self._inject(self._due[0], progress):
                    self._due.pop(0)
            elif self._kill_every_s and time.monotonic() >= next_kill and progress["rows"] < self._rows:
                next_kill = time.monotonic() + self._kill_every_s
                self._inject(Fault.KILL, progress)

    def _inject(self, fault: Fault, progress: dict[str, Any]) -> bool:
        """Bring a fault about; return whether the job has felt it and goes on with all of its subtasks."""
        subtask, pid = self._random.choice(sorted(progress["workers"].items()))
        match fault:
            case Fault.RAISE:
                self._say(f"fault: the task of subtask totals/{subtask} raises")
                self._ask("raise", int(subtask))
            case Fault.KILL:
                if not is_python_worker(pid):
                    return False
                self._say(f"fault: SIGKILL to the worker of subtask totals/{subtask}, process {pid}")
                os.kill(pid, signal.SIGKILL)
            case Fault.ROLL_BACK:
                self._say("fault: the coordinators are rolled back to the last checkpoint")
                self._ask("roll back")
        deadline = time.monotonic() + FELT_TIMEOUT_S
        while time.monotonic() < deadline and not self._stopping.wait(LOOK_EVERY_S):
            now = self._ask("none")
            if now is not None and now["all_run"] and _felt(now) > _felt(progress):
                self.injected[fault.value] += 1
                return True
        return False

    def _ask(self, fault: str, subtask: int = -1) -> dict[str, Any] | None:
        """Return the coordinator's answer; None where there is none (it is starting, failing over, or has ended)."""
        try:
            answer: dict[str, Any] = self._request({"fault": fault, "subtask": subtask}, REQUEST_TIMEOUT_S)
        except PenstockError:
            return None
        return answer


def _felt(progress: dict[str, Any]) -> int:
    return int(progress["failures"] + progress["epoch"])


def is_python_worker(pid: int) -> bool:
    """Return whether that process still is a Python worker of Spark, and not us or somebody who got its number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return pid != os.getpid() and not Path("/proc/self/cmdline").exists()  # a system without /proc cannot tell
    except OSError:
        return False
    return pid != os.getpid() and (b"daemon" in command or b"pyspark" in command)
