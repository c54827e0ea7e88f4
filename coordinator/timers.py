"""Things to do at a time, on the coordinator's thread."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Timer:
    """A thing to do, until it is done or cancelled."""

    __slots__ = ("cancelled", "every_s", "fn")

    def __init__(self, fn: Callable[[], object], every_s: float | None) -> None:
        self.fn = fn
        self.every_s = every_s
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """Added from any thread; run by one. ``woken`` is called when an added timer comes before all others."""

    def __init__(self, woken: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Timer]] = []
        self._woken = woken

    def add(self, delay_s: float, fn: Callable[[], object], *, every_s: float | None = None) -> Timer:
        """Runs ``fn`` in ``delay_s`` seconds, and every ``every_s`` seconds from then on where that is given."""
        timer = Timer(fn, every_s)
        self._push(time.monotonic() + max(0.0, delay_s), timer)
        self._woken()
        return timer

    def next_at(self) -> float | None:
        """Monotonic second of the earliest one."""
        with self._lock:
            return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > now:
                    return
                _, _, timer = heapq.heappop(self._heap)
            if timer.cancelled:
                continue
            timer.fn()
            if timer.every_s is not None and not timer.cancelled:
                self._push(now + timer.every_s, timer)

    def _push(self, at: float, timer: Timer) -> None:
        with self._lock:
            heapq.heappush(self._heap, (at, next(self._order), timer))
