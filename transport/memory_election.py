"""Who of several candidates goes first, in memory: the one that has stood longest, of those that are alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .memory import MemoryBroker


class MemoryElection:
    """See :class:`penstock.transport.ports.Election`. Without a thread: whoever asks also sees who has died.

    ``alive`` says whether its process runs; one that does not has its session end, as in Kafka's groups.
    """

    def __init__(self, broker: MemoryBroker, name: str, session_s: float) -> None:
        self._broker, self._name, self._session_s = broker, name, session_s
        self.alive: Callable[[], bool] = lambda: True
        self._silent_since: float | None = None
        self._closed = False
        with broker._lock:
            broker._candidates.setdefault(name, []).append(self)

    def elected(self) -> bool:
        with self._broker._lock:
            if self._closed:
                return False
            candidates = self._broker._candidates[self._name]
            now = time.monotonic()
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
        with self._broker._lock:
            if self in self._broker._candidates[self._name]:
                self._broker._candidates[self._name].remove(self)
