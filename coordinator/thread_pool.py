"""Threads for what may block: state storage, truncation, user code's ``call_async``."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from ..schemas.errors import PenstockError

_log = logging.getLogger(__name__)


class Workers:
    """At most ``count`` daemon threads, begun as they are needed.

    Not a ThreadPoolExecutor: that makes the process wait, at its end, for a call that hangs.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads = 0
        self._open = 0
        """Tasks submitted that have not ended."""
        self._closed = False

    def submit(self, fn: Callable[..., object], *args: object) -> None:
        """Calls ``fn`` soon; not at all once closed."""
        with self._lock:
            if self._closed:
                return
            self._open += 1
            more = self._threads < min(self._open, self._count)
            self._threads += more
            self._tasks.put(lambda: fn(*args))
            name = f"{self._name}-{self._threads}"
        if more:
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Drops what has not begun. What has goes on: nobody waits for it."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                if not self._closed:
                    task()
            except BaseException:  # whatever it is, it is no reason for this thread to end
                _log.exception("work in the background raised")
            finally:
                with self._lock:
                    self._open -= 1


def logged(work: Callable[..., object], *args: object) -> None:
    """Does work whose failure concerns nothing else, but is not silent."""
    try:
        work(*args)
    except Exception as error:
        level = logging.WARNING if isinstance(error, PenstockError) else logging.ERROR
        _log.log(level, "%s failed: %s", getattr(work, "__name__", work), error)
