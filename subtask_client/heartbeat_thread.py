"""The thread that keeps a subtask's heart beating, whatever its user code does (protocol, sections 6 and 8)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("penstock.subtask")

HANDLED_THROUGH_INTERVAL_S = 0.05
"""At the latest so often is the handled-through sequence sent while events are handled (section 6)."""


NEWS_WITHIN, TOLD_WITHIN, LATE_BY = 0.75, 3.75, 0.25
"""In intervals. Behind another record, which is a sign of life too, a beat that has news waits until the last one is so
old, and one that has none until that is; the next beat of the thread's own is put off by an interval and so much more,
for the next record may be a little late."""


class HeartbeatThread:
    """Calls ``beat(periodic=True)`` every ``interval_s``, and ``beat(periodic=False)`` every 50 ms while
    ``handling()``; :meth:`touch` tells that handling has begun. Idle, it wakes for its periodic beats only.

    :meth:`record_written` puts a beat off, or makes it at once, on a thread that is awake anyway: a heartbeat by itself
    wakes the writer, the broker and the coordinator."""

    def __init__(self, interval_s: float, beat: Callable[[bool], None], handling: Callable[[], bool]) -> None:
        self._interval_s, self._beat, self._handling = interval_s, beat, handling
        self._wake = threading.Event()
        self._busy = False
        self._ended = False
        self._last_at, self._due_at = -math.inf, math.inf
        """Monotonic seconds of the last periodic beat, and of the next one."""
        self._thread = threading.Thread(target=self._run, name="penstock-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def touch(self) -> None:
        """Cheap: to be called after ``handling()`` has become true."""
        if not self._busy:
            self._busy = True
            self._wake.set()

    def record_written(self, news: bool) -> None:
        """Another sign of life has just been written; ``news`` is whether a heartbeat would tell more."""
        since = time.monotonic() - self._last_at
        if since >= (NEWS_WITHIN if news else TOLD_WITHIN) * self._interval_s:
            self._beat_periodically()
        self._due_at = time.monotonic() + (1 + LATE_BY) * self._interval_s

    def close(self) -> None:
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _beat_periodically(self) -> None:
        self._last_at = time.monotonic()
        self._due_at = self._last_at + self._interval_s
        self._beat_once(True)

    def _beat_once(self, periodic: bool) -> None:
        try:
            self._beat(periodic)
        except Exception:  # a heart that stops at one error would look like a frozen process
            logger.exception("a heartbeat could not be written; the next one is tried in its time")

    def _run(self) -> None:
        self._due_at = time.monotonic() + self._interval_s
        while not self._ended:
            busy = self._busy
            until = min(self._due_at, time.monotonic() + HANDLED_THROUGH_INTERVAL_S) if busy else self._due_at
            self._wake.wait(max(0.0, until - time.monotonic()))
            self._wake.clear()
            if self._ended:
                return
            if time.monotonic() >= self._due_at:
                self._beat_periodically()
            elif busy:
                self._beat_once(False)
            if busy and not self._handling():
                self._busy = False
                if self._handling():  # began just now, and found the flag still up
                    self._busy = True
