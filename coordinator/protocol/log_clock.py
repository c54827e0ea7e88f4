"""Time as the acks topic tells it: it passes only while the coordinator's own heartbeats arrive.

A broker that is away stops this clock for everybody alike, so that an outage fails nobody (protocol, section 8).
"""

from __future__ import annotations


class LogClock:
    """Seconds of log time; each own heartbeat moves it by the append-time distance from the one before.

    A step counts at most two intervals: after an outage, in which at most one own heartbeat was in flight, everybody
    has the time of several further heartbeats to be heard again.
    """

    __slots__ = ("_at_ms", "_step_max_s", "seconds")

    def __init__(self, heartbeat_interval_s: float) -> None:
        self.seconds = 0.0
        self._step_max_s = 2 * heartbeat_interval_s
        self._at_ms: int | None = None

    def own_heartbeat(self, appended_at_ms: int) -> float:
        self.seconds = self.of(appended_at_ms)
        self._at_ms = appended_at_ms
        return self.seconds

    def of(self, appended_at_ms: int) -> float:
        """Log time of a record read now, in seconds."""
        if self._at_ms is None:
            return self.seconds
        # mutant: outage-fails-everybody
        return self.seconds + max(0.0, min((appended_at_ms - self._at_ms) / 1000, self._step_max_s))
