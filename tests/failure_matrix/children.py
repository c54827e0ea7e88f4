"""Processes of a test, and what starts subtasks again as Spark would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.broker import processes

from .points import SETTINGS_VARIABLE

ROOT = Path(__file__).parents[2]
ENDS_S = 180.0
_LOOK_S = 0.02


class Child:
    """One process; what it says goes into a file of its own."""

    def __init__(self, pid: int, log_file: Path) -> None:
        self.pid, self.log_file = pid, log_file
        self._code: int | None = None
        self._ended = threading.Event()

    def note_end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def alive(self) -> bool:
        return not self._ended.is_set()

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._code

    def ended(self, timeout_s: float = ENDS_S) -> int:
        """Its exit code, as soon as there is one."""
        assert self._ended.wait(timeout_s), f"{self.log_file.name} has not ended in {timeout_s:g} s: {self.said()}"
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        processes.send_signal(self, signal.SIGKILL)
        self.ended()

    def freeze(self) -> None:
        """SIGSTOP; returns when no thread of it runs any more."""
        processes.pause(self)

    def thaw(self) -> None:
        processes.send_signal(self, signal.SIGCONT)

    def said(self) -> str:
        return self.log_file.read_text(errors="replace")


class Zygote:
    """Starts processes, and learns of their ends. Nothing that it started outlives it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.failure_matrix.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._children: dict[int, Child] = {}
        self._codes: dict[int, int] = {}
        self._asked = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def start(self, arguments: list[str], settings: dict[str, Any], log_file: Path) -> Child:
        environment = {SETTINGS_VARIABLE: json.dumps(settings), "PENSTOCK_DEBUG": "1"}
        log_file.touch()
        with self._changed:
            number = self._asked = self._asked + 1
            wanted = {"number": number, "arguments": arguments, "environment": environment, "log": str(log_file)}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
            assert self._changed.wait_for(lambda: number in self._pids, ENDS_S), "the zygote does not answer"
            child = Child(self._pids.pop(number), log_file)
            self._children[child.pid] = child
            self._tell_ends()
        return child

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, b""):
            said = json.loads(line)
            with self._changed:
                if "started" in said:
                    self._pids[said["number"]] = said["started"]
                else:
                    self._codes[said["ended"]] = said["code"]
                self._tell_ends()
                self._changed.notify_all()

    def _tell_ends(self) -> None:
        for pid in self._codes.keys() & self._children.keys():
            self._children.pop(pid).note_end(self._codes.pop(pid))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(ENDS_S)
        self._thread.join(10.0)


class Nursery:
    """The processes of one test."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote, self._folder = zygote, folder
        self.children: list[Child] = []

    def start(self, arguments: list[str], settings: dict[str, Any]) -> Child:
        log_file = self._folder / f"{len(self.children)}-{arguments[0]}-{settings['who'].replace('/', '-')}.log"
        child = self._zygote.start(arguments, settings, log_file)
        self.children.append(child)
        return child

    def close(self) -> None:
        for child in self.children:
            child.kill()


class Supervised:
    """One subtask: what returns normally is done, what ends otherwise is started again."""

    def __init__(self, start: Callable[[], Child]) -> None:
        self._start = start
        self.children = [start()]
        self._let_go: set[int] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def child(self) -> Child:
        """The newest."""
        return self.children[-1]

    def replace(self) -> Child:
        """Starts another beside the present one, as Spark does with one that it takes for dead; returns the old one."""
        old = self.child
        self._let_go.add(old.pid)  # from now on its end is nobody's business
        self.children.append(self._start())
        return old

    def returned(self, timeout_s: float = ENDS_S) -> None:
        """Waits until it is done."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self.child.log_file} has not returned: {self.child.said()[-3000:]}"
        assert self.child.poll() == 0, self.child.said()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10.0)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_S):
            child = self.child
            code = child.poll()
            if code == 0:
                return
            if code is not None and child.pid not in self._let_go:
                self.children.append(self._start())
