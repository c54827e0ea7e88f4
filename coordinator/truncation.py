"""Deleting what no checkpoint needs any more, behind the coordinator's back and not too often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .protocol.effects import Truncate

EVERY_S = 5.0
"""Seconds between two truncations: each asks the broker about every partition."""


class Truncation:
    """Only the newest wish matters, and lagging behind is harmless."""

    def __init__(self, truncate: Callable[[Truncate], None], submit: Callable[[Callable[[], None]], object]) -> None:
        self._truncate = truncate
        self._submit = submit
        self._lock = threading.Lock()
        self._wanted: Truncate | None = None
        self._at = 0.0
        self._running = False

    def want(self, wanted: Truncate) -> None:
        with self._lock:
            self._wanted = wanted
            if self._running or time.monotonic() < self._at + EVERY_S:
                return
            self._running = True
            self._at = time.monotonic()
        self._submit(self._run)

    def _run(self) -> None:
        try:
            with self._lock:
                wanted, self._wanted = self._wanted, None
            if wanted is not None:
                self._truncate(wanted)
        finally:
            with self._lock:
                self._running = False
