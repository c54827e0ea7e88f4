"""What ``send_event`` returns: a view over (stream, sequence), so that a future costs next to nothing."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable

from ..schemas.errors import EventNotHandled
from .in_flight_bytes import Load
from .protocol.stream import EventStream

_log = logging.getLogger(__name__)


class Ledger:
    """The futures of one stream: who waits, and who wants to be called."""

    __slots__ = ("_callbacks", "_changed", "_order", "forbidden_thread", "load", "promised", "queued", "stream")

    def __init__(self, stream: EventStream, load: Load, changed: threading.Condition) -> None:
        self.stream = stream
        self.load = load
        """Of the stream's operator."""
        self.promised = 0
        """Sequence of the next event: the stream's, plus what waits in the mailbox. Changed under its lock alone."""
        self.queued: list[bytes] = []
        """Events that wait in the mailbox; only changed under its lock."""
        self.forbidden_thread: int | None = None
        """The thread that settles futures: waiting there would never end."""
        self._changed = changed
        self._callbacks: list[tuple[int, int, Callable[[EventFuture], object], EventFuture]] = []
        self._order = 0

    def failure(self, sequence: int) -> EventNotHandled | None:
        """Why the event is not handled, None where it is; only meaningful once settled."""
        return None if sequence < self.stream.handled_through else self.stream.failure

    def settled(self, sequence: int) -> bool:
        return sequence < self.stream.handled_through or self.stream.failure is not None

    def wait(self, sequence: int, timeout: float | None) -> bool:
        if not self.settled(sequence) and threading.get_ident() == self.forbidden_thread:
            raise RuntimeError(
                "result() would wait for ever here: futures settle on the coordinator's own thread; use"
                " add_done_callback, or wait in another thread"
            )
        with self._changed:
            return self._changed.wait_for(lambda: self.settled(sequence), timeout)

    def call_when_settled(self, future: EventFuture, callback: Callable[[EventFuture], object]) -> None:
        with self._changed:
            if not self.settled(future.sequence):
                self._order += 1
                heapq.heappush(self._callbacks, (future.sequence, self._order, callback, future))
                return
        _call(callback, future)

    def settle(self) -> None:
        """The stream has moved: wakes waiters and calls the callbacks that are due, on this thread."""
        due = []
        with self._changed:
            while self._callbacks and self.settled(self._callbacks[0][0]):
                due.append(heapq.heappop(self._callbacks))
            self._changed.notify_all()
        for _, _, callback, future in due:
            _call(callback, future)


def _call(callback: Callable[[EventFuture], object], future: EventFuture) -> None:
    try:
        callback(future)
    except KeyboardInterrupt:
        raise
    except BaseException:
        _log.exception("a callback of an event future raised")


class EventFuture:
    """Settles exactly once: when the event is reported handled, or with why it never will be."""

    __slots__ = ("_ledger", "sequence")

    def __init__(self, ledger: Ledger, sequence: int) -> None:
        self._ledger = ledger
        self.sequence = sequence

    def done(self) -> bool:
        """Whether it has settled, either way."""
        return self._ledger.settled(self.sequence)

    def exception(self) -> EventNotHandled | None:
        """Why the event is not handled; None while unsettled, or when it was handled."""
        return self._ledger.failure(self.sequence) if self.done() else None

    def result(self, timeout: float | None = None) -> None:
        """Returns when the event has been handled.

        Waits for at most ``timeout`` seconds, then raises TimeoutError. Raises an :class:`EventNotHandled` where the
        event will not be handled. Must not wait on the coordinator's own thread: that raises RuntimeError.
        """
        if not self._ledger.wait(self.sequence, timeout):
            raise TimeoutError(f"event {self.sequence} to {self._ledger.stream.subtask} not handled in {timeout} s")
        failure = self._ledger.failure(self.sequence)
        if failure is not None:
            raise failure

    def add_done_callback(self, callback: Callable[[EventFuture], object]) -> None:
        """Calls ``callback(self)`` once settled, on the coordinator's thread; at once where it has settled already."""
        self._ledger.call_when_settled(self, callback)
