"""How many failovers are allowed, and how long each one waits (protocol, section 8)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

from ...schemas.ids import SubtaskId
from ...schemas.settings import RestartStrategy

TOGETHER_S = 10.0
"""Failures of different regions within so many seconds count as one failover: a lost host takes all of its own."""


class RestartBudget:
    """Failovers of the last ``budget_window`` seconds; a quiet window lets the delays begin anew."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._at: deque[float] = deque()
        """Of every restart; delays grow with their number."""
        self._counted: deque[float] = deque()
        """Of those that count."""
        self._together = set[SubtaskId]()
        """Subtasks of the regions that have failed since the last one that counted; none if that was the job."""
        self.alike: Counter[tuple[SubtaskId | None, str]] = Counter()
        """Failovers by subtask (None: of the job) and cause, before the first checkpoint of all completes."""

    def spend(self, now: float, region: Collection[SubtaskId] = ()) -> float | None:
        """Seconds to wait before this restart, or None where the budget is used up. ``region``: empty for the job.

        A region that fails soon after another does not count; one that fails again does.
        """
        s = self._strategy
        for times in (self._at, self._counted):
            while times and times[0] <= now - s.budget_window:
                times.popleft()
        soon = bool(self._counted) and now < self._counted[-1] + TOGETHER_S
        if region and self._together and soon and self._together.isdisjoint(region):
            self._together.update(region)
        elif len(self._counted) >= s.budget:
            return None
        else:
            self._counted.append(now)
            self._together = set(region)
        earlier = len(self._at)
        self._at.append(now)
        if earlier == 0:
            return s.backoff_first
        doubled: float = s.backoff_next * 2.0 ** min(earlier - 1, 60)
        return min(doubled, s.backoff_max)
