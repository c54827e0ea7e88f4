"""Who of several candidates goes first, in memory: the one that has stood longest, of those that are alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager


class MemoryElection:
    """See :class:`penstock.transport.ports.Election`. Without a thread: whoever asks also sees who has died.

    ``alive`` says whether its process runs; one that does not has its session end, as in Kafka's groups.
    """

    def __init__(
        self, lock: AbstractContextManager[object], candidates: list[MemoryElection], session_s: float
    ) -> None:
        """``candidates`` are those for one place, this one from now on among them; ``lock`` guards them."""
        self._lock, self._candidates, self._session_s = lock, candidates, session_s
        self.alive: Callable[[], bool] = lambda: True
        self._silent_since: float | None = None
        self._closed = False
        with lock:
            candidates.append(self)

    def elected(self) -> bool:
        with self._lock:
            if self._closed:
                return False
            candidates, now = self._candidates, time.monotonic()
            candidates[:] = [candidate for candidate in candidates if not candidate._lost(now)]
            if self not in candidates:  # its session ended while it was stopped: it stands again, behind the others
                candidates.append(self)
            return candidates[0] is self

    def _lost(self, now: float) -> bool:
        if self.alive():
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        return self._silent_since is not None and now - self._silent_since >= self._session_s

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self in self._candidates:
                self._candidates.remove(self)
