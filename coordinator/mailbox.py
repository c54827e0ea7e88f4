"""What goes to the coordinator's thread: what its process posts, and what that has read (protocol, section 6).

Sends join the batch of their stream until something else is posted: so the order of sends and checkpoint completions
is the order in which user code did them, while a million sends make few batches.

An event that is sent alone has nobody to wait for: while the coordinator's thread waits, it lends its turn to the
sender's thread, which has the event on its way without a change of thread. Whatever comes meanwhile waits for the end
of that turn, as it would for the coordinator's thread. What may not be done on a sender's thread comes back, and first.

Records of the acks topic have a queue of their own. What this process posts overtakes them: a coordinator that is
slower than its subtasks has many of them waiting, and none of them may delay the completion of a checkpoint future.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from .futures import Ledger
from .in_flight_bytes import Load
from .protocol.inputs import Input, Sent

Item = Input | Callable[[], None]
"""An input for the core, or something to run on the coordinator's thread."""

_BUSY_EVENTS, _BUSY_PAUSE_S = 100, 0.001
"""A taker that found so many sends lets more of them gather: waking it for each costs the senders more than they do.
Whatever else is posted ends the pause: it may be what a sender waits for."""
_LEND_PAUSE_S = 0.001
"""So soon after a turn was lent none is: who sends again is at it, and events that join a batch cost far less."""
_LENT_LOOK_S = 0.01
"""So often a taker whose time has come looks whether its turn is back, should nothing tell it."""


READS_MAX, READ_BYTES_MAX = 10_000, 8 * 1024 * 1024
"""Records, and their bytes, that are read ahead of the coordinator's thread; one poll of the reader may come on top."""


class Mailbox:
    """Two FIFOs. The bounds: of sends, their operators' ``load``; of reads, their number and their bytes."""

    def __init__(
        self,
        reads_max: int = READS_MAX,
        read_bytes_max: int = READ_BYTES_MAX,
        handle_alone: Callable[[Sent], Item | None] | None = None,
    ) -> None:
        """``handle_alone`` does what the taker would do about an event, on its sender's thread; it returns what is left
        for the taker to do first. None: no turn is ever lent."""
        self._reads_max, self._read_bytes_max = reads_max, read_bytes_max
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._items: deque[Item] = deque()
        self._reads: deque[tuple[Item, int]] = deque()
        """Each with its size in bytes."""
        self._read_bytes = 0
        self._reads_wake = False
        """The taker goes on for a read, too."""
        self._sending: dict[Ledger, None] = {}
        """Whose streams have events here, in the order of their first ones."""
        self._waiting = False
        """The taker waits for an item."""
        self._idle = False
        """It would go on for a send, too."""
        self._handle_alone = handle_alone
        self._lends = False
        """The taker waits, and would not linger for company: a sender may have its turn."""
        self._lent = False
        """A sender has it."""
        self._lends_at = 0.0
        """Monotonic second before which no turn is lent."""
        self._closed = False
        self._busy = False
        """The last take found many sends: senders are at it, and need not wake the taker for each."""
        self._loads: dict[str, Load] = {}
        self._counting = threading.Lock()  # of its own: whoever counts must not get in the way of who sends

    def load(self, operator: str) -> Load:
        """The operator's, to be given to its ledgers."""
        return self._loads.setdefault(operator, Load())

    def send(self, ledger: Ledger, event: bytes) -> int:
        """Queues an event, or has it handled here and now; returns its sequence in the ledger's stream."""
        if self._lends and (alone := self._send_alone(ledger, event)) is not None:
            return alone
        size = len(event)
        with self._lock:
            # An interrupt of the sender may come behind any call in here, and what stands then must be whole: so the
            # event is queued by the last one.
            queued = ledger.queued
            if not queued and not self._closed:
                self._sending[ledger] = None
                self._lends = False  # until the taker has been here: who sends many is not to ask each time
                if self._idle and not self._lent:
                    self._filled.notify()
            sequence = ledger.promised
            ledger.promised = sequence + 1
            if not self._closed:
                ledger.load.queued += size
                queued.append(event)
        return sequence

    def _send_alone(self, ledger: Ledger, event: bytes) -> int | None:
        """Handles the event on this thread, if the taker's turn can be had; None where it must be queued.

        Never on the main thread: an interrupt (Ctrl-C) may come behind any call there, and half a turn is none.
        """
        handle = self._handle_alone
        if handle is None or threading.get_ident() == threading.main_thread().ident:
            return None
        lent = False
        left: Item | None = _interrupted
        try:
            with self._lock:
                if (
                    not self._lends
                    or self._lent
                    or self._closed
                    or self._items  # the taker has been woken, and has not run yet
                    or self._sending
                    or ledger.load.unsent  # an append may wait for room in the client's queue; the taker may wait
                    or time.monotonic() < self._lends_at
                ):
                    return None
                sent = Sent(ledger.stream, [event])
                lent = True
                self._lent = True
                sequence = ledger.promised
                ledger.promised = sequence + 1
            left = handle(sent)
        except RecursionError:
            if not lent:
                raise
            left = sent  # the sender's stack has no room for a turn: the event is the taker's, like any other
        finally:
            if lent:
                self._take_back(left)
        return sequence

    def _take_back(self, left: Item | None) -> None:
        """The turn that was lent is over; ``left`` is for the taker to do first."""
        with self._lock:
            self._lent = False
            self._lends_at = time.monotonic() + _LEND_PAUSE_S
            if left is not None:
                self._items.appendleft(left)
            if self._items or self._sending or self._reads:
                try:  # noqa: SIM105  (suppress would itself need room on the stack)
                    self._filled.notify()
                except RecursionError:
                    pass  # what was left stands, and the taker finds it when its time has come

    def send_all(self, ledger: Ledger, events: Sequence[bytes], size: int) -> int:
        """Queue a batch of ``size`` bytes as one; return the sequence behind its last event. No cut comes into it."""
        count = len(events)
        with self._lock:
            queued = ledger.queued
            if count and not queued and not self._closed:
                self._sending[ledger] = None
                self._lends = False
                if self._idle and not self._lent:
                    self._filled.notify()
            ledger.promised = end = ledger.promised + count  # from here as in ``send``: no call but the last
            if not self._closed:
                ledger.load.queued += size
                queued.extend(events)
        return end

    def post(self, item: Item) -> None:
        with self._lock:
            if self._closed:
                return
            self._seal()
            self._items.append(item)
            if self._waiting:
                self._filled.notify()

    def wake(self) -> None:
        """Has the taker go round once."""
        self.post(_nothing)

    def post_reads(self, reads: list[tuple[Item, int]]) -> None:
        """Queues records that were read, each with its size in bytes; first waits for room."""
        with self._lock:
            self._emptied.wait_for(lambda: self.has_room or self._closed)
            if self._closed:
                return
            self._reads.extend(reads)
            self._read_bytes += sum(size for _, size in reads)
            if self._reads_wake:
                self._filled.notify()

    @property
    def has_room(self) -> bool:
        """Whether more may be read ahead."""
        return len(self._reads) < self._reads_max and self._read_bytes < self._read_bytes_max

    def count_unsent(self, operator: str, size: int) -> None:
        """Adds to (or takes from) what the operator has on its way from here to the broker."""
        with self._counting:
            self._loads[operator].appended += size

    def note_held(self, by_operator: Counter[str]) -> None:
        """What closed gateways hold, where nothing but their senders can bound it: while a query's batch runs."""
        for operator, load in self._loads.items():
            load.held = by_operator[operator]

    def close(self) -> None:
        """Take no more: drop what is posted from now on, and release the threads that wait to post."""
        with self._lock:
            self._closed = True
            self._emptied.notify_all()

    def take(self, until: float | None, linger_s: float = 0.0, *, reads: bool = True) -> list[Item]:
        """Return everything posted, in order. Wait for it, or for a read, until monotonic second ``until``.

        With a linger, sends alone wait up to ``linger_s`` for company; while senders are busy, at least a millisecond.
        What is taken counts as unsent no more: its taker counts what it appends of it. Without ``reads`` the taker will
        not ask for a read either, and does not wake for one.
        """
        with self._lock:
            self._waiting = self._idle = True
            self._reads_wake, self._lends = reads, not linger_s and not self._busy
            while self._lent or (not self._items and not self._sending and not (reads and self._reads)):
                timeout = None if until is None else until - time.monotonic()
                if self._lent:
                    timeout = _LENT_LOOK_S if timeout is None else max(timeout, _LENT_LOOK_S)
                elif timeout is not None and timeout <= 0:
                    break
                self._filled.wait(timeout)
            self._idle = self._lends = False
            linger_s = max(linger_s, _BUSY_PAUSE_S) if self._busy else linger_s
            if linger_s and not self._items and self._sending:
                self._filled.wait_for(lambda: bool(self._items or (reads and self._reads)), linger_s)
            self._waiting = self._reads_wake = False
            self._busy = sum(len(ledger.queued) for ledger in self._sending) >= _BUSY_EVENTS
            self._seal()
            for load in self._loads.values():
                load.queued = 0
            items, self._items = self._items, deque()
        return list(items)

    def drain(self, take: Callable[[Item], None], goes_on: Callable[[], bool], timeout_s: float) -> None:
        """Hand everything posted to ``take``, and what is posted while ``goes_on``, up to ``timeout_s``. No reads."""
        until, deadline = 0.0, time.monotonic() + timeout_s
        while True:
            for item in self.take(until, reads=False):
                take(item)
            until = time.monotonic() + 0.01
            if not goes_on() or until > deadline:
                return

    def next_read(self, *, overtaken: bool = True) -> Item | None:
        """Returns the oldest read; None where there is none, or where it is ``overtaken`` by what has been posted."""
        with self._lock:
            if not self._reads or (overtaken and self._items):
                return None
            item, size = self._reads.popleft()
            self._read_bytes -= size
            self._emptied.notify_all()
        return item

    def _seal(self) -> None:
        for ledger in self._sending:
            if ledger.queued:
                self._items.append(Sent(ledger.stream, ledger.queued))
                ledger.queued = []
        self._sending.clear()


def _nothing() -> None:
    """Posted to wake the taker."""


def _interrupted() -> None:
    """Left by a turn that another thread has ended in its midst: nobody knows how far it has come."""
    raise RuntimeError("a thread was interrupted while it decided on an event in the coordinator's place")
