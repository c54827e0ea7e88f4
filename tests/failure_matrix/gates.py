"""Inside the test: learns where its processes are, and holds them there, so that a signal hits between two steps."""

from __future__ import annotations

import json
import shutil
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

DEADLINE_S = 180.0

Matches = Callable[["Passage"], bool]


@dataclass(frozen=True, slots=True)
class Passage:
    """A process has been at a point."""

    who: str
    pid: int
    point: str
    n: int
    data: dict[str, Any] = field(default_factory=dict)


class Hold:
    """Keeps the first process that comes to a point, until it is released."""

    def __init__(self, gates: Gates, what: str, matches: Matches) -> None:
        self._gates, self.what, self.matches = gates, what, matches
        self.caught: Passage | None = None
        self.released = False
        self.then = ""

    def wait(self) -> Passage:
        """Who is held. Fails when nobody comes."""
        self._gates.wait_for(lambda: self.caught is not None, f"somebody at {self.what}")
        assert self.caught is not None
        return self.caught

    def release(self, then: str = "") -> None:
        """Lets it go on; ``then`` is what it is to do beside that. One that is stopped finds that when it goes on."""
        with self._gates.changed:
            self.then, self.released = then, True
            self._gates.changed.notify_all()


class Gates:
    """A Unix socket that every process of a test talks to, and what they have said so far."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.passages: list[Passage] = []
        self.limit = 0
        """Coordinators send the numbers below it."""
        self._holds: list[Hold] = []
        self._closed = False
        self._folder = Path(tempfile.mkdtemp(prefix="gates-"))  # short: addresses of sockets are
        self.address = str(self._folder / "s")
        self._server = _Server(self.address, _Connection)
        self._server.gates = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def hold(self, who: str, point: str, where: Matches = lambda passage: True) -> Hold:
        """Holds the first that comes to ``point`` from now on and is as ``where`` says."""
        hold = Hold(self, f"{who} {point}", lambda p: (p.who, p.point) == (who, point) and where(p))
        with self.changed:
            self._holds.append(hold)
        return hold

    def of(self, who: str, point: str) -> list[Passage]:
        """Everybody who has been at a point, in order."""
        with self.changed:
            return [p for p in self.passages if (p.who, p.point) == (who, point)]

    def wait_passage(self, who: str, point: str, where: Matches = lambda passage: True) -> Passage:
        """The first passage as ``where`` says, also one of before."""
        found: list[Passage] = []

        def there() -> bool:
            found[:] = [p for p in self.passages if (p.who, p.point) == (who, point) and where(p)]
            return bool(found)

        self.wait_for(there, f"{who} at {point}")
        return found[0]

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
        """Waits for something that passages lead to."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not condition():
                left = deadline - time.monotonic()
                assert left > 0, f"not within {timeout_s:g} s: {what}; last seen: {self.passages[-12:]}"
                self.changed.wait(min(left, 0.5))

    def reached(self, passage: Passage) -> dict[str, Any]:
        """On a connection's thread: the answer to a process, when it may go on."""
        with self.changed:
            if passage.point != "tick":
                self.passages.append(passage)
                self.changed.notify_all()
            hold = next((h for h in self._holds if h.caught is None and h.matches(passage)), None)
            if hold is not None:
                hold.caught = passage
                self.changed.notify_all()
                while not hold.released and not self._closed:
                    self.changed.wait()
            return {"limit": self.limit, "then": "" if hold is None else hold.then}

    def stories(self) -> Iterator[tuple[str, list[int]]]:
        """For every object of a user's subtask: whose it was, and the numbers it was restored with and then handled."""
        objects: dict[tuple[str, int], list[int]] = {}
        for passage in list(self.passages):
            key = passage.who, passage.pid
            match passage.point:
                case "opened":
                    if key in objects:
                        yield passage.who, objects[key]
                    objects[key] = []
                case "restored":
                    objects[key] = list(passage.data["got"])
                case "handled":
                    objects[key].append(passage.n)
        for (who, _), numbers in objects.items():
            yield who, numbers

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)
        shutil.rmtree(self._folder)

    def __enter__(self) -> Gates:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    gates: Gates


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            for line in self.rfile:
                answer = self.server.gates.reached(Passage(**json.loads(line)))
                self.wfile.write(json.dumps(answer).encode() + b"\n")
                self.wfile.flush()
        except (OSError, ValueError):
            pass  # the process has been killed, perhaps in the middle of a line
