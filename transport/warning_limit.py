"""Warnings about single records, of which a topic may hold any number."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any

WARNINGS_MAX = 10
INTERVAL_S = 60.0


class WarningLimit:
    """Logs at most :data:`WARNINGS_MAX` warnings in :data:`INTERVAL_S` seconds, and says how many it left out.

    ``what`` they are about, in the plural. For any thread.
    """

    def __init__(
        self, log: logging.Logger | logging.LoggerAdapter[Any], what: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._what, self._clock = log, what, clock
        self._lock = threading.Lock()
        self._ends = -inf
        self._logged = self._left_out = 0

    def warn(self, message: str, *arguments: object) -> None:
        """Log a warning, or count it where there have been too many."""
        now = self._clock()
        if now >= self._ends:
            self.tell()
        with self._lock:
            if now >= self._ends:
                self._ends, self._logged = now + INTERVAL_S, 0
            self._logged += 1
            if self._logged > WARNINGS_MAX:
                self._left_out += 1
                return
        self._log.warning(message, *arguments)

    def tell(self) -> None:
        """Log how many warnings were left out since the last time, if any were."""
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._log.warning("%d more warnings about %s were left out", left_out, self._what)
