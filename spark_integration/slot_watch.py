"""Says that a cluster has too few task slots for a run: Spark itself waits for executors for ever, and in silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .session_checks import SessionFacts

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0
MISSING_S = 30.0
"""Slots that are missing for less are those of an executor that is being replaced."""
SAY_EVERY_S = 60.0
_FORGOTTEN = (
    " A standalone master that was restarted without spark.deploy.recoveryMode has forgotten the application: then stop"
    " the driver and start the job again, it goes on at its last completed checkpoint"
)


class SlotWatch:
    """Counts the slots of the executors, now and then. Does nothing on a local master, which has no executors."""

    def __init__(self, job: str, needed: int, facts: SessionFacts, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._needed, self._facts, self._clock = job, needed, facts, clock
        self._enough_at = self._looked_at = clock()
        self._said_at: float | None = None

    def look(self) -> None:
        """Log a warning if slots have been missing for a while, and again from time to time until they are back."""
        now = self._clock()
        if self._facts.is_local or now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            cores = self._facts.executor_cores()
        except Exception as error:  # the context may be gone: then the Spark job ends, and says why
            _log.debug("job=%s: its executors cannot be counted: %s", self._job, error)
            return
        slots = sum(self._facts.slots(count) for count in cores)
        if slots >= self._needed:
            if self._said_at is not None:
                _log.warning("job=%s: there are %d task slots again", self._job, slots)
            self._enough_at, self._said_at = now, None
        elif now >= self._enough_at + MISSING_S and (self._said_at is None or now >= self._said_at + SAY_EVERY_S):
            self._said_at = now
            _log.warning(
                "job=%s: for %.0f s there have been too few task slots: %d on %d executors, and its subtasks need %d."
                " Look at the application's executors on the page of %s.%s",
                self._job, now - self._enough_at, slots, len(cores), self._needed, self._facts.master,
                _FORGOTTEN if self._facts.master.startswith("spark:") else "",
            )  # fmt: skip
