"""How many failovers are allowed, and how long each one waits (protocol, section 8)."""

from __future__ import annotations

from collections import Counter, deque

from ...schemas.ids import SubtaskId
from ...schemas.settings import RestartStrategy


class RestartBudget:
    """Failovers of the last ``budget_window`` seconds; a quiet window lets the delays begin anew."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._at: deque[float] = deque()
        self.alike: Counter[tuple[SubtaskId | None, str]] = Counter()
        """Failovers by subtask (None: of the job) and cause, before the first checkpoint of all completes."""

    def spend(self, now: float) -> float | None:
        """Seconds to wait before this restart, or None where the budget is used up."""
        s = self._strategy
        while self._at and self._at[0] <= now - s.budget_window:
            self._at.popleft()
        if len(self._at) >= s.budget:
            return None
        earlier = len(self._at)
        self._at.append(now)
        if earlier == 0:
            return s.backoff_first
        doubled: float = s.backoff_next * 2.0 ** min(earlier - 1, 60)
        return min(doubled, s.backoff_max)
