"""How long an alignment has waited (protocol, section 9: alignment timeout)."""

from __future__ import annotations

import math
import time


class AlignmentClock:
    """Counts from when this subtask first saw the alignment, in seconds of its own: no wall clocks are compared."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._checkpoint_id: int | None = None
        self._ends_at = math.inf

    def overdue(self, aligning: int | None) -> int | None:
        """The checkpoint that aligns now, where it has for too long; said once."""
        if aligning != self._checkpoint_id:
            self._checkpoint_id = aligning
            self._ends_at = math.inf if aligning is None else time.monotonic() + self._timeout_s
        if time.monotonic() < self._ends_at:
            return None
        self._ends_at = math.inf
        return aligning

    def left(self) -> float:
        """Seconds until :meth:`overdue` has something to say."""
        return max(0.0, self._ends_at - time.monotonic())
