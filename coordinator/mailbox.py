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
from .load import Load
from .protocol.inputs import Input, Sent

Item = Input | Callable[[], None]
"""An input for the core, or something to run on the coordinator's thread."""

_BUSY_EVENTS, _BUSY_PAUSE_S = 100, 0.001
"""A taker that found so many sends lets more of them gather: waking it for each costs the senders more than they do.
Whatever else is posted ends the pause: it may be what a sender waits for."""


class Mailbox:
    """One FIFO. Its users bound it: senders by their operators' ``load``, the acks reader by ``backlog_max``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._items: deque[Item] = deque()
        self._sending: dict[Ledger, None] = {}
        """Whose streams have events here, in the order of their first ones."""
        self._waiting = False
        """The taker waits for an item."""
        self._idle = False
        """It would go on for a send, too."""
        self._closed = False
        self._busy = False
        """The last take found many sends: senders are at it, and need not wake the taker for each."""
        self._loads: dict[str, Load] = {}
        self._counting = threading.Lock()  # of its own: whoever counts must not get in the way of who sends

    def load(self, operator: str) -> Load:
        """The operator's, to be given to its ledgers."""
        return self._loads.setdefault(operator, Load())

    def send(self, ledger: Ledger, event: bytes) -> int:
        """Queues an event and returns its sequence in the ledger's stream."""
        size = len(event)
        with self._lock:
            # An interrupt of the sender may come behind any call in here, and what stands then must be whole: so the
            # event is queued by the last one.
            queued = ledger.queued
            if not queued and not self._closed:
                self._sending[ledger] = None
                if self._idle:
                    self._filled.notify()
            sequence = ledger.promised
            ledger.promised = sequence + 1
            if not self._closed:
                ledger.load.queued += size
                queued.append(event)
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
        """Adds to (or takes from) what the operator has on its way from here to the broker."""
        with self._counting:
            self._loads[operator].appended += size

    def note_held(self, by_operator: Counter[str]) -> None:
        """What closed gateways hold, where nothing but their senders can bound it: while a query's batch runs."""
        for operator, load in self._loads.items():
            load.held = by_operator[operator]

    def close(self) -> None:
        """Nobody takes any more: what comes is dropped, and whoever waits to post goes on."""
        with self._lock:
            self._closed = True
            self._emptied.notify_all()

    def take(self, until: float | None, linger_s: float = 0.0) -> list[Item]:
        """Everything queued, in order; waits for the first item until monotonic second ``until``.

        With a linger, sends alone wait up to ``linger_s`` for company; while senders are busy, at least a millisecond.
        What is taken counts as unsent no more: its taker counts what it appends of it.
        """
        with self._lock:
            self._waiting = self._idle = True
            while not self._items and not self._sending:
                timeout = None if until is None else until - time.monotonic()
                if timeout is not None and timeout <= 0:
                    break
                self._filled.wait(timeout)
            self._idle = False
            linger_s = max(linger_s, _BUSY_PAUSE_S) if self._busy else linger_s
            if linger_s and not self._items and self._sending:
                self._filled.wait_for(lambda: bool(self._items), linger_s)
            self._waiting = False
            self._busy = sum(len(ledger.queued) for ledger in self._sending) >= _BUSY_EVENTS
            self._seal()
            for load in self._loads.values():
                load.queued = 0
            items, self._items = self._items, deque()
            self._emptied.notify_all()
        return list(items)

    def _seal(self) -> None:
        for ledger in self._sending:
            if ledger.queued:
                self._items.append(Sent(ledger.stream, ledger.queued))
                ledger.queued = []
        self._sending.clear()
