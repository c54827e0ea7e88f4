"""Inside a process under test: says where it is, and waits there until the test lets it go on."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import dataclass
from functools import cache
from io import BufferedRWPair
from typing import Any

SETTINGS_VARIABLE = "PENSTOCK_FAILURE_MATRIX"
"""Holds what :class:`tests.failure_matrix.rig.Rig` tells its processes, as JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the test says to a process at a point."""

    limit: int
    """Coordinators send the numbers below it."""
    then: str
    """What the process is to do beside going on: nothing, "raise", "flush"."""


class Points:
    """The way to the test's :class:`tests.failure_matrix.gates.Gates`; a connection per thread."""

    def __init__(self, address: str, who: str) -> None:
        self._address, self.who = address, who
        self._threads = threading.local()

    def reach(self, point: str, n: int = -1, **data: Any) -> Answer:
        """Says that the calling thread is at ``point``; returns when the test lets it go on.

        A test that is gone takes its processes with it.
        """
        stream = self._stream()
        said = {"who": self.who, "pid": os.getpid(), "point": point, "n": n, "data": data}
        try:
            stream.write(json.dumps(said).encode() + b"\n")
            stream.flush()
            line = stream.readline()
        except OSError:
            line = b""
        if not line:
            os._exit(99)
        return Answer(**json.loads(line))

    def _stream(self) -> BufferedRWPair:
        if not hasattr(self._threads, "stream"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self._address)
            self._threads.stream = connection.makefile("rwb")
        stream: BufferedRWPair = self._threads.stream
        return stream


def settings() -> dict[str, Any]:
    """What the test has told this process."""
    told: dict[str, Any] = json.loads(os.environ[SETTINGS_VARIABLE])
    return told


@cache
def here() -> Points:
    """This process's points."""
    told = settings()
    return Points(told["gates"], told["who"])
