"""States on their way into state storage, while processing goes on (protocol, section 7.6)."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from ..schemas.sanitize import told
from ..schemas.state import checksum_of
from .protocol.inputs import StateRefused, StateStored

logger = logging.getLogger("penstock.subtask")


class Storage(Protocol):
    """What is needed of :class:`penstock.transport.state_storage.StateStorage`. Errors are :class:`StateError`."""

    def put(self, location: str, data: bytes) -> None: ...

    def get(self, location: str, size: int = 0) -> bytes: ...

    def delete(self, locations: Iterable[str]) -> None: ...


class _Upload(NamedTuple):
    checkpoint_id: int
    location: str
    data: bytes
    since: float


class _Deletion(NamedTuple):
    location: str


class Uploads:
    """Stores states one after the other in a thread of its own, which begins with the first of them.

    ``done`` is called from that thread. A state that is dropped while it is stored is deleted when it has landed.
    """

    def __init__(self, storage: Storage, done: Callable[[StateStored | StateRefused], None]) -> None:
        self._storage, self._done = storage, done
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        """Locations asked for, not dropped, without an end."""
        self._tasks: queue.SimpleQueue[_Upload | _Deletion | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def store(self, checkpoint_id: int, location: str, data: bytes, since: float) -> None:
        """``since``: monotonic seconds at which the marker was read."""
        with self._lock:
            self._wanted.add(location)
        self._put(_Upload(checkpoint_id, location, data, since))

    def drop(self, location: str) -> None:
        with self._lock:
            if location in self._wanted:
                self._wanted.discard(location)
                return  # the thread skips it, or deletes it when it has landed
        self._put(_Deletion(location))

    def close(self, timeout_s: float = 1.0) -> None:
        """Drops what is under way. A put that hangs is left to its daemon thread."""
        with self._lock:
            self._wanted.clear()
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(timeout_s)

    def _put(self, task: _Upload | _Deletion) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-uploads", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if isinstance(task, _Deletion):
                self._delete(task.location)
            else:
                self._upload(task)

    def _upload(self, task: _Upload) -> None:
        with self._lock:
            if task.location not in self._wanted:
                return
        try:
            self._storage.put(task.location, task.data)
        except Exception as error:  # file systems raise what their libraries raise
            with self._lock:
                self._wanted.discard(task.location)
            self._done(StateRefused(task.checkpoint_id, task.location, told(error)))
            return
        with self._lock:
            wanted = task.location in self._wanted
            self._wanted.discard(task.location)
        if wanted:
            elapsed_ms = int((time.monotonic() - task.since) * 1000)
            self._done(StateStored(task.checkpoint_id, task.location, elapsed_ms, checksum_of(task.data)))
        else:
            self._delete(task.location)

    def _delete(self, location: str) -> None:
        try:
            self._storage.delete([location])
        except Exception as error:  # the coordinator collects what no checkpoint names
            logger.warning("state %s, which no checkpoint will name, could not be deleted: %s", location, error)
