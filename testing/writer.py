"""A writer between a process and a real one: in order, without a hole, and with whatever faults a test asked for."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial

from ..schemas.errors import AppendFailed
from ..transport.ports import OnOutcome, Partition, Writer
from .faults import WRITING, Faults, Hold, Kind
from .matching import Subject
from .processes import Process

_log = logging.getLogger("penstock.testing")

LOST_KEY = b"penstock-testing-lost:"
"""A dropped record stands under a key that begins so, and every reader of a FaultyTransport passes over it: its offset
is real, its writer hears the truth about that, and to the job there is a hole."""
GARBAGE = b"corrupted by penstock.testing"


class _Entry:
    """One append: waiting, sent, settled."""

    __slots__ = ("error", "hold", "key", "kind", "offset", "on_outcome", "partition", "settled", "value")

    def __init__(self, partition: Partition, value: bytes, key: bytes | None, on_outcome: OnOutcome | None) -> None:
        self.partition, self.value, self.key, self.on_outcome = partition, value, key, on_outcome
        self.kind: Kind | None = None
        self.hold: Hold | None = None
        self.settled = False
        self.offset: int | None = None
        self.error: Exception | None = None


class FaultyWriter:
    """See :class:`penstock.transport.ports.Writer`.

    A record that is held holds what comes behind it in its partition, and every outcome behind its own.
    """

    def __init__(self, faults: Faults, process: Process, inner: Writer, record_bytes_max: int) -> None:
        self._faults, self._process, self._inner = faults, process, inner
        self._record_bytes_max = record_bytes_max
        self._sending = threading.RLock()
        """Held while records go to the inner writer, so that they go in order."""
        self._sender: int | None = None
        self._state = threading.Condition()
        """Guards what follows; never held while calling out."""
        self._unsent: deque[_Entry] = deque()
        self._unsettled: deque[_Entry] = deque()
        self._calling = False
        self._appended = self._told = 0
        self._failure: AppendFailed | None = None
        self._error_told: Exception | None = None
        self._closed = False
        faults.wakes(self)

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        if not self._process.pass_gate():
            raise AppendFailed(f"{self._process.name} has crashed: nothing is appended any more")
        if len(value) > self._record_bytes_max:
            self._inner.append(partition, value, key, on_outcome)  # refuses it, and goes on
            return
        entries = self._entries(partition, value, key, on_outcome)
        with self._state:
            if self._closed:
                raise AppendFailed("this writer is closed")
            if self._failure is not None:
                raise AppendFailed(f"an earlier append failed, so nothing may follow: {self._failure}")
            for before in self._unsent:
                if before.hold is not None and before.partition == partition and before.hold.behind_left is not None:
                    before.hold.behind_left -= 1
                    before.hold.released = before.hold.behind_left <= 0
            self._unsent.extend(entries)
            self._unsettled.extend(entries)
            self._appended += len(entries)
        self.wake()

    def _entries(
        self, partition: Partition, value: bytes, key: bytes | None, on_outcome: OnOutcome | None
    ) -> list[_Entry]:
        entry = _Entry(partition, value, key, on_outcome)
        met = None if self._faults.idle else self._faults.meet(self._process, Subject.of(partition, value), WRITING)
        if met is None:
            return [entry]
        entry.kind, hold = met
        match entry.kind:
            case Kind.HOLD | Kind.DELAY:
                entry.hold = hold
            case Kind.DROP:
                entry.key = LOST_KEY + (key or b"")
            case Kind.CORRUPT:
                entry.value = GARBAGE
            case Kind.DUPLICATE:
                return [entry, _Entry(partition, value, key, None)]
        return [entry]

    def wake(self) -> None:
        """Sends whatever may go now, and tells outcomes that have come."""
        with self._sending:
            outermost, self._sender = self._sender is None, threading.get_ident()
            try:
                while (entry := self._next()) is not None:
                    self._send(entry)
            finally:
                if outermost:
                    self._sender = None
        if outermost:
            self._tell()

    def _next(self) -> _Entry | None:
        with self._state:
            if self._process.dead and self._failure is None:
                self._fail(AppendFailed(f"{self._process.name} has crashed"))
            if self._failure is not None or self._faults.is_away(self._process):
                return None
            held: set[Partition] = set()
            for entry in self._unsent:
                if entry.hold is not None and not entry.hold.over and not self._process.spared:
                    held.add(entry.partition)
                elif entry.partition not in held:
                    self._unsent.remove(entry)
                    return entry
            return None

    def _send(self, entry: _Entry) -> None:
        if entry.kind in (Kind.REFUSE, Kind.OUTCOME_LOST):
            self._settle(entry, None, self._error(entry))
            return
        try:
            self._inner.append(entry.partition, entry.value, entry.key, partial(self._settle, entry))
        except AppendFailed as error:
            self._settle(entry, None, error)

    def _error(self, entry: _Entry) -> AppendFailed:
        what = f"an append to {entry.partition}"
        if entry.kind is Kind.REFUSE:
            return AppendFailed(f"{what} was refused (an injected fault): it was not written")
        return AppendFailed(f"{what} was not answered (an injected fault): whether it was written is unknown")

    def _settle(self, entry: _Entry, offset: int | None, error: Exception | None) -> None:
        """An outcome has come; whoever is sending tells it later, else it is told now."""
        if error is None and entry.kind is Kind.OUTCOME_STANDS:
            offset, error = None, self._error(entry)
        with self._state:
            entry.settled, entry.offset, entry.error = True, offset, error
            if error is not None and self._failure is None:
                self._fail(error if isinstance(error, AppendFailed) else AppendFailed(str(error)))
        if self._sender != threading.get_ident():
            self._tell()

    def _fail(self, failure: AppendFailed) -> None:
        """With the state lock held: what has not been sent never will be."""
        self._failure = failure
        for entry in self._unsent:
            entry.settled, entry.error = True, failure
        self._unsent.clear()

    def _tell(self) -> None:
        """Calls outcomes in the order of the appends; behind the first error all are errors."""
        told = 0
        while True:
            with self._state:
                if told == 0 and self._calling:
                    return
                self._told += told
                self._state.notify_all()
                self._calling = bool(self._unsettled) and self._unsettled[0].settled
                if not self._calling:
                    return
                entry = self._unsettled.popleft()
                told = 1
                if entry.error is None and self._error_told is not None:
                    entry.offset, entry.error = None, self._error_told
                self._error_told = entry.error
            if entry.on_outcome is not None:
                try:
                    entry.on_outcome(entry.offset, entry.error)
                except Exception:
                    _log.exception("on_outcome raised; the outcome of an append to %s is lost", entry.partition)

    def flush(self, timeout_s: float) -> bool:
        self._process.pass_gate()
        with self._state:
            wanted = self._appended
            return self._state.wait_for(lambda: self._told >= wanted or self._process.dead, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        self.flush(timeout_s)
        with self._state:
            self._closed = True
            if self._unsent:
                self._fail(AppendFailed("the writer was closed before the broker had answered"))
        self._inner.close(0.0 if self._process.dead else max(0.0, deadline - time.monotonic()))
        self._tell()
