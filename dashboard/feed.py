"""The newest view of a job, kept by a thread that looks at whatever tells it; read from any thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ..client.job_client import JobClient
from ..client.status_follower import Heard, StatusFollower
from ..schemas.errors import PenstockError, WrittenByNewer
from ..schemas.status import JobStatus
from .model import STALE_S, History, View

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
PAUSE_S = 2.0
"""Behind a look that failed."""
FIRST_WAITED_S = 2.0
"""A page is held back for so long, so that it comes with the job's state."""
HEAR_AGAIN_S = STALE_S
"""So long behind it nobody is taken to be silent: what was told meanwhile may still be on its way."""

Look = Callable[[float], Sequence[Heard]]
"""Return the statuses since the last call, waiting at most so many seconds for them. Raises PenstockError."""


class Feed:
    """A thread that looks until it is closed. ``trouble`` says why the newest look failed; else it is empty.

    After a failed look the history begins again: the source may be another one, or repeat statuses.
    """

    def __init__(self, look: Look, close: Callable[[], object] | None = None) -> None:
        self._look, self._close_look = look, close
        self._lock = threading.Lock()
        self._history, self._anew = History(), False
        self._closing, self._first = threading.Event(), threading.Event()
        self._begun = time.monotonic()
        self._failed_at = 0.0
        self.looked_ms = 0
        """When a look last did not fail, milliseconds since 1970."""
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="penstock-dashboard-feed", daemon=True)
        self._thread.start()

    def view(self) -> View | None:
        """As of now, or of the last look that did not fail: what cannot be looked at is not gone. None before the first
        status."""
        with self._lock:
            return self._history.view(self.looked_ms if self.trouble else _now_ms())

    def wait_first(self) -> None:
        """Return once there is something to show, a view or a trouble; at the latest 2 s after the feed began."""
        self._first.wait(max(0.0, self._begun + FIRST_WAITED_S - time.monotonic()))

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                told = self._look(LOOK_EVERY_S)
            except PenstockError as error:
                self._failed(str(error))
            except Exception:
                if not self._closing.is_set():
                    _log.exception("the dashboard's look at the job failed")
                self._failed("the look at the job failed; the log says why")
            else:
                self._see(told)
        if self._close_look is not None:
            self._close_look()

    def _failed(self, trouble: str) -> None:
        self.trouble, self._anew = trouble, True
        self._first.set()
        self._closing.wait(PAUSE_S)
        self._failed_at = time.monotonic()

    def _see(self, told: Sequence[Heard]) -> None:
        if self.trouble and not told and time.monotonic() < self._failed_at + HEAR_AGAIN_S:
            return
        with self._lock:
            self.trouble, self.looked_ms = "", _now_ms()
            if told and self._anew:
                self._history, self._anew = History(), False
            for heard in told:
                self._history.see(*heard)
        if told:
            self._first.set()


def _now_ms() -> int:
    return round(1000 * time.time())


def of_topic(client: JobClient) -> Feed:
    """Of a job that may run anywhere, or not at all: what stands in its status topic, from some minutes ago on."""
    followers: list[StatusFollower] = []

    def close() -> None:
        while followers:
            followers.pop().close()

    def look(timeout_s: float) -> Sequence[Heard]:
        try:
            if not followers:
                followers.append(client.follow())
            return followers[0].poll(timeout_s)
        except WrittenByNewer:
            raise  # it goes on behind it
        except PenstockError:
            close()  # the topic may be another one by the next look
            raise

    return Feed(look, close)


def of_coordinator(status: Callable[[], JobStatus | None]) -> Feed:
    """Of the job whose coordinator runs in this process."""
    pause = threading.Event()

    def look(timeout_s: float) -> Sequence[Heard]:
        pause.wait(timeout_s)
        told = status()
        return () if told is None or told.at_ms <= 0 else (Heard(told, told.at_ms),)

    return Feed(look)
