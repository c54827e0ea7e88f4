"""The newest view of a job, kept by a thread that looks at whatever tells it; read from any thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ..coordinator.client import JobClient
from ..coordinator.following import StatusFollower
from ..schemas.errors import PenstockError
from ..schemas.status import JobStatus
from .model import History, View

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
PAUSE_S = 2.0
"""Behind a look that failed."""

Look = Callable[[float], Sequence[JobStatus]]
"""What has been told since the look before, waiting at most so many seconds for it. Raises PenstockError."""


class Feed:
    """Looks until it is closed. ``trouble`` says why the newest look failed, for people; else it is empty."""

    def __init__(self, look: Look, close: Callable[[], object] | None = None) -> None:
        self._look, self._close_look = look, close
        self._lock = threading.Lock()
        self._history = History()
        self._closing = threading.Event()
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="penstock-dashboard-feed", daemon=True)
        self._thread.start()

    def view(self) -> View | None:
        """As of now; None before the first status."""
        with self._lock:
            return self._history.view(round(1000 * time.time()))

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
                self.trouble = str(error)
                self._closing.wait(PAUSE_S)
                continue
            except Exception:
                _log.exception("the dashboard's look at the job failed")
                self.trouble = "the look at the job failed; the log says why"
                self._closing.wait(PAUSE_S)
                continue
            self.trouble = ""
            with self._lock:
                for status in told:
                    self._history.see(status)
        if self._close_look is not None:
            self._close_look()


def of_topic(client: JobClient) -> Feed:
    """Of a job that may run anywhere, or not at all: what stands in its status topic, from some minutes ago on."""
    followers: list[StatusFollower] = []

    def close() -> None:
        while followers:
            followers.pop().close()

    def look(timeout_s: float) -> Sequence[JobStatus]:
        try:
            if not followers:
                followers.append(client.follow())
            return followers[0].poll(timeout_s)
        except PenstockError:
            close()  # the topic may be another one by the next look
            raise

    return Feed(look, close)


def of_coordinator(status: Callable[[], JobStatus | None]) -> Feed:
    """Of the job whose coordinator runs in this process."""
    pause = threading.Event()

    def look(timeout_s: float) -> Sequence[JobStatus]:
        pause.wait(timeout_s)
        told = status()
        return () if told is None or told.at_ms <= 0 else (told,)

    return Feed(look)
