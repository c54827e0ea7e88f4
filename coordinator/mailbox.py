"""Everything that goes to the coordinator's thread, in one order (protocol, section 6).

Sends join the batch of their stream until something else is posted: so the order of sends and checkpoint completions
is the order in which user code did them, while a million sends make few batches.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from .futures import Ledger
from .protocol.inputs import Input, Sent

Item = Input | Callable[[], None]
"""An input for the core, or something to run on the coordinator's thread."""


class Mailbox:
    """One FIFO. Its users bound it: senders by ``unsent_bytes``, the reader of the acks topic by ``backlog_max``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._items: deque[Item] = deque()
        self._batches: dict[Ledger, list[bytes]] = {}
        self._waiting = False
        self._closed = False
        self.unsent_bytes: Counter[str] = Counter()
        """By operator: bytes sent and not yet certainly taken by the broker (nor held by a gateway)."""

    def send(self, ledger: Ledger, event: bytes) -> int:
        """Queues an event and returns its sequence in the ledger's stream."""
        with self._lock:
            sequence = ledger.promised
            ledger.promised = sequence + 1
            if self._closed:
                return sequence
            batch = self._batches.get(ledger)
            if batch is None:
                self._batches[ledger] = [event]
                if self._waiting:
                    self._filled.notify()
            else:
                batch.append(event)
            self.unsent_bytes[ledger.operator] += len(event)
        return sequence

    def post(self, item: Item) -> None:
        with self._lock:
            if self._closed:
                return
            self._seal()
            self._items.append(item)
            if self._waiting:
                self._filled.notify()

    def post_all(self, items: list[Item], backlog_max: int) -> None:
        """Like ``post`` for each; first waits while more than ``backlog_max`` items are queued."""
        with self._lock:
            self._emptied.wait_for(lambda: len(self._items) <= backlog_max or self._closed)
            if self._closed:
                return
            self._seal()
            self._items.extend(items)
            if self._waiting:
                self._filled.notify()

    def count_unsent(self, operator: str, size: int) -> None:
        """Adds to (or takes from) what the operator has on its way to the broker."""
        with self._lock:
            self.unsent_bytes[operator] += size

    def close(self) -> None:
        """Nobody takes any more: what comes is dropped, and whoever waits to post goes on."""
        with self._lock:
            self._closed = True
            self._emptied.notify_all()

    def take(self, until: float | None, linger_s: float = 0.0) -> list[Item]:
        """Everything queued, in order; waits for the first item until monotonic second ``until``.

        With a linger, sends alone wait up to ``linger_s`` for company.
        """
        with self._lock:
            self._waiting = True
            while not self._items and not self._batches:
                timeout = None if until is None else until - time.monotonic()
                if timeout is not None and timeout <= 0:
                    break
                self._filled.wait(timeout)
            if linger_s and not self._items and self._batches:
                self._filled.wait_for(lambda: bool(self._items), linger_s)
            self._waiting = False
            self._seal()
            items, self._items = self._items, deque()
            self._emptied.notify_all()
        return list(items)

    def _seal(self) -> None:
        if self._batches:
            self._items.extend(Sent(ledger.stream, batch) for ledger, batch in self._batches.items())
            self._batches = {}
