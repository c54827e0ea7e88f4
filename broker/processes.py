"""Processes that may not be our children: who they are, and how to end them by id."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Protocol

from .errors import BrokerStateError, BrokerStopTimeout

POLL_S = 0.02
_AFTER_SIGKILL_S = 10.0
_AFTER_SIGSTOP_S = 10.0


class Process(Protocol):
    """What starting and ending need to know of the broker's process."""

    @property
    def pid(self) -> int: ...

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        ...


def identity(pid: int) -> str | None:
    """A text that no other process ever has, even under the same id later or after a reboot; None when it is gone."""
    if sys.platform != "linux":
        return _identity_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name, in brackets, may hold anything. Behind it: the state, and 19 fields further on the start time.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else f"{_boot_id()}:{pid}:{fields[18]}"


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "?"


def _identity_by_ps(pid: int) -> str | None:
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
    )
    state, _, started = shown.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else f"{pid}:{started.strip()}"


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal it unless it is gone."""
    if process.alive():
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def end(process: Process, timeout_s: float) -> bool:
    """SIGTERM, and SIGKILL when it is still there after `timeout_s` seconds; returns whether SIGTERM was enough.

    Raises BrokerStopTimeout when not even SIGKILL ended it.
    """
    send_signal(process, signal.SIGTERM)
    # A paused process would keep the signal for later.
    send_signal(process, signal.SIGCONT)
    if _gone_within(process, timeout_s):
        return True
    kill(process)
    return False


def kill(process: Process) -> None:
    """SIGKILL, and wait until it is gone. Raises BrokerStopTimeout."""
    send_signal(process, signal.SIGKILL)
    if not _gone_within(process, _AFTER_SIGKILL_S):
        raise BrokerStopTimeout(
            f"the broker's process {process.pid} is still there {_AFTER_SIGKILL_S:.0f} s after SIGKILL: it hangs in "
            "the kernel, most likely on its disk; look at that before the data is used again"
        )


def pause(process: Process) -> None:
    """SIGSTOP, and wait until no thread of it runs any more: the kernel stops them one by one, after the call.

    Raises BrokerStateError when that takes more than 10 s.
    """
    send_signal(process, signal.SIGSTOP)
    deadline = time.monotonic() + _AFTER_SIGSTOP_S
    while not _is_stopped(process.pid):
        if time.monotonic() >= deadline or not process.alive():
            raise BrokerStateError(
                f"the broker's process {process.pid} did not pause within {_AFTER_SIGSTOP_S:.0f} s, or ended: "
                "see its log"
            )
        time.sleep(POLL_S)


def _is_stopped(pid: int) -> bool:
    if sys.platform != "linux":
        shown = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
        )
        return shown.stdout.strip().startswith("T")
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread that ended between the listing and the reading
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return bool(states) and all(state == "T" for state in states)


def _gone_within(process: Process, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
