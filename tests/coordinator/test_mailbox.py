"""One FIFO for sends and checkpoint completions (protocol, section 6; R19, R20)."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from penstock.coordinator import mailbox as mailbox_module
from penstock.coordinator.futures import Ledger
from penstock.coordinator.mailbox import Mailbox
from penstock.coordinator.protocol.inputs import FutureCompleted, Sent, Tick
from penstock.coordinator.protocol.stream import EventStream
from penstock.schemas.ids import SubtaskId

from .jobs import PATIENCE_S, wait_until


def ledger(mailbox: Mailbox, subtask: int = 0) -> Ledger:
    return Ledger(EventStream(SubtaskId("op", subtask), 1), mailbox.load("op"), threading.Condition())


def test_sends_before_a_completion_stay_before_it_and_later_ones_behind() -> None:
    """Section 6: their order is the order in which the coordinator did them."""
    mailbox = Mailbox()
    to = ledger(mailbox)
    mailbox.send(to, b"before")
    mailbox.post(FutureCompleted("op", 1, b""))
    mailbox.send(to, b"after")
    before, cut, after = mailbox.take(None)
    assert isinstance(before, Sent)
    assert isinstance(after, Sent)
    assert (before.events, after.events) == ([b"before"], [b"after"])
    assert isinstance(cut, FutureCompleted)


def test_many_sends_make_one_batch_per_stream() -> None:
    """Section 3: many events travel in one record."""
    mailbox = Mailbox()
    first, second = ledger(mailbox, 0), ledger(mailbox, 1)
    for event in (b"1", b"2", b"3"):
        mailbox.send(first, event)
        mailbox.send(second, event)
    items = mailbox.take(None)
    assert [item.events for item in items if isinstance(item, Sent)] == [[b"1", b"2", b"3"]] * 2


def test_sequences_are_given_at_the_send() -> None:
    """Section 6: futures are views over (gateway, sequence)."""
    mailbox = Mailbox()
    to = ledger(mailbox)
    assert [mailbox.send(to, b"x") for _ in range(3)] == [0, 1, 2]
    mailbox.take(None)
    assert mailbox.send(to, b"x") == 3


def test_bytes_on_their_way_are_counted() -> None:
    """Section 6, bounds: max_unsent_bytes."""
    mailbox = Mailbox()
    mailbox.send(ledger(mailbox), b"12345")
    mailbox.count_unsent("op", 10)
    assert mailbox.load("op").unsent == 15


def test_take_waits_for_the_first_item_and_no_longer_than_told() -> None:
    """One loop: sleeps until the next deadline, wakes for anything."""
    mailbox = Mailbox()
    assert mailbox.take(time.monotonic() + 0.01) == []
    threading.Timer(0.01, mailbox.send, (ledger(mailbox), b"x")).start()
    (item,) = mailbox.take(time.monotonic() + PATIENCE_S)
    assert isinstance(item, Sent)


def test_a_lingering_take_lets_sends_join_and_anything_else_end_it() -> None:
    """Section 6: a frame leaves when full, when its linger ends, and always before any control record."""
    mailbox = Mailbox()
    mailbox.send(ledger(mailbox), b"x")
    threading.Timer(0.01, mailbox.post, (Tick(),)).start()
    begun = time.monotonic()
    sent, tick = mailbox.take(None, linger_s=PATIENCE_S)
    assert time.monotonic() - begun < PATIENCE_S / 2
    assert isinstance(sent, Sent)
    assert isinstance(tick, Tick)


def test_whatever_else_is_posted_ends_the_pause_for_busy_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be what a sender waits for: an acknowledgement, or its wish to be told when there is room."""
    monkeypatch.setattr(mailbox_module, "_BUSY_PAUSE_S", PATIENCE_S)
    mailbox = Mailbox()
    to = ledger(mailbox)
    for _ in range(1_000):
        mailbox.send(to, b"x")
    mailbox.take(None)
    mailbox.send(to, b"y")
    threading.Timer(0.01, mailbox.post, (Tick(),)).start()
    begun = time.monotonic()
    sent, tick = mailbox.take(None)
    assert time.monotonic() - begun < PATIENCE_S / 2
    assert isinstance(sent, Sent)
    assert isinstance(tick, Tick)


def test_what_is_posted_overtakes_what_was_read() -> None:
    """Section 6: a slow coordinator has many records waiting, and none may delay its checkpoint future."""
    mailbox = Mailbox()
    mailbox.post_reads([("first", 1), ("second", 1)])  # type: ignore[list-item]
    assert mailbox.take(None) == [], "it does not wait: there is a read"
    assert mailbox.next_read() == "first"
    mailbox.post(FutureCompleted("op", 1, b""))
    assert mailbox.next_read() is None
    assert [type(item) for item in mailbox.take(None)] == [FutureCompleted]
    mailbox.post(Tick())
    assert mailbox.next_read(overtaken=False) == "second", "one may be taken nevertheless, so that reads go on"
    assert mailbox.next_read(overtaken=False) is None


def test_a_taker_that_wants_no_reads_does_not_wake_for_one() -> None:
    """Section 7.2: while too much is withheld nothing is read, and nothing turns in vain."""
    mailbox = Mailbox()
    mailbox.post_reads([(Tick(), 1)])
    threading.Timer(0.01, mailbox.post_reads, ([(Tick(), 1)],)).start()
    threading.Timer(0.05, mailbox.post, (FutureCompleted("op", 1, b""),)).start()
    assert [type(item) for item in mailbox.take(time.monotonic() + PATIENCE_S, reads=False)] == [FutureCompleted]


@pytest.mark.parametrize(("bounds", "size"), [((2, 1_000), 0), ((1_000, 2), 1)])
def test_a_reader_that_is_too_far_ahead_waits_for_room(bounds: tuple[int, int], size: int) -> None:
    """G7: no buffer grows without a bound, in records and in bytes."""
    mailbox = Mailbox(*bounds)
    mailbox.post_reads([(Tick(), size)] * 2)
    posted = threading.Event()

    def post() -> None:
        mailbox.post_reads([(Tick(), size)])
        posted.set()

    thread = threading.Thread(target=post)
    thread.start()
    assert not posted.wait(0.02)
    mailbox.next_read()
    assert posted.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_closing_lets_a_waiting_reader_go() -> None:
    """The end of an instance hangs on nobody."""
    mailbox = Mailbox(reads_max=2)
    mailbox.post_reads([(Tick(), 0)] * 3)
    thread = threading.Thread(target=mailbox.post_reads, args=([(Tick(), 0)],))
    thread.start()
    mailbox.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_once_closed_it_keeps_nothing() -> None:
    """G7: threads of the user's may outlive their coordinator and go on sending."""
    mailbox = Mailbox()
    to = ledger(mailbox)
    mailbox.close()
    assert [mailbox.send(to, b"x"), mailbox.send(to, b"y")] == [0, 1]
    mailbox.post(lambda: None)
    mailbox.post_reads([(lambda: None, 0)])
    assert mailbox.next_read() is None
    assert mailbox.load("op").unsent == 0
    assert mailbox.take(0.0) == []


def send_until_interrupted(mailbox: Mailbox, to: Ledger, after_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, after_s)
    while True:
        mailbox.send(to, b"x")


def test_an_interrupted_send_leaves_nothing_locked_and_counts_each_event() -> None:
    """Ctrl-C in a driver whose main thread sends. The moments are many: it comes a hundred times."""
    mailbox = Mailbox()
    to, taken = ledger(mailbox), 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for n in range(100):
            with pytest.raises(KeyboardInterrupt):
                send_until_interrupted(mailbox, to, 0.001 + n * 1e-5)
            assert not mailbox._lock.locked()
            taken += sum(len(item.events) for item in mailbox.take(0.0) if isinstance(item, Sent))
            assert taken == to.promised
            assert mailbox.load("op").queued == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Lending:
    """A mailbox whose taker waits on a thread of its own, and lends its turn; what happens is logged in order."""

    def __init__(self, left: Callable[[], None] | None = None, raises: type[BaseException] | None = None) -> None:
        self.log: list[object] = []
        self.sequences: list[int] = []
        self.handling, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self._left, self._raises = left, raises
        self.mailbox = Mailbox(handle_alone=self._handle)
        self.to = ledger(self.mailbox)
        self.thread = threading.Thread(target=self._take)
        self.thread.start()
        wait_until(lambda: self.mailbox._lends, "the taker waits")

    def _handle(self, sent: Sent) -> Callable[[], None] | None:
        self.handling.set()
        if self._raises is not None:
            raise self._raises
        assert self.go_on.wait(PATIENCE_S)
        self.log.append((sent.events, threading.get_ident()))
        return self._left

    def _take(self) -> None:
        self.log += self.mailbox.take(time.monotonic() + PATIENCE_S)

    def send(self, event: bytes) -> threading.Thread:
        thread = threading.Thread(target=self._send, args=(event,))
        thread.start()
        return thread

    def _send(self, event: bytes) -> None:
        with contextlib.suppress(SystemExit):
            self.sequences.append(self.mailbox.send(self.to, event))

    def end(self) -> list[object]:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.log


def test_an_event_sent_alone_is_handled_on_its_senders_thread() -> None:
    """One change of thread less; the taker sleeps on."""
    lending = Lending()
    sender = lending.send(b"x")
    sender.join(PATIENCE_S)
    assert lending.log == [([b"x"], sender.ident)]
    assert lending.thread.is_alive()
    lending.mailbox.post(Tick())
    assert lending.end()[1:] == [Tick()]


def test_what_comes_while_a_turn_is_lent_waits_for_its_end_and_keeps_its_order() -> None:
    """Section 6: an event, then a cut, then an event; and one thread at a time decides."""
    lending = Lending()
    lending.go_on.clear()
    sender = lending.send(b"first")
    assert lending.handling.wait(PATIENCE_S)
    lending.mailbox.send(lending.to, b"second")
    lending.mailbox.post(FutureCompleted("op", 1, b""))
    lending.mailbox.post_reads([(Tick(), 1)])
    lending.thread.join(0.05)  # awake by now, if anything has woken it
    assert lending.log == []
    lending.go_on.set()
    sender.join(PATIENCE_S)
    (first, _), second, cut = lending.end()  # type: ignore[misc]
    assert isinstance(second, Sent)
    assert (first, second.events) == ([b"first"], [b"second"])
    assert isinstance(cut, FutureCompleted)
    assert lending.to.promised == 2


def test_what_a_sender_may_not_do_is_done_by_the_taker_and_first() -> None:
    """Effects that a send has along with its frame call user code, or commit, say."""

    def left() -> None:
        pass

    lending = Lending(left)
    lending.go_on.clear()
    sender = lending.send(b"first")
    assert lending.handling.wait(PATIENCE_S)
    lending.mailbox.post(Tick())
    lending.go_on.set()
    sender.join(PATIENCE_S)
    assert lending.end()[1:] == [left, Tick()]


def test_an_event_whose_sender_has_no_stack_left_is_the_takers() -> None:
    """It was promised, so it is not lost; and its sender, whose call ends like any other, does not send it again."""
    lending = Lending(raises=RecursionError)
    lending.send(b"x").join(PATIENCE_S)
    (sent,) = lending.end()
    assert isinstance(sent, Sent)
    assert sent.events == [b"x"]
    assert (lending.sequences, lending.to.promised) == ([0], 1)


def test_a_sender_at_any_depth_of_its_stack_sends_or_is_told_that_it_did_not() -> None:
    """So near to its end that a turn, or the waking of the taker, finds no room: no event is promised and forgotten."""
    limit = sys.getrecursionlimit()
    outcomes = Counter(_send_at(depth) for depth in range(limit - 100, limit))
    assert outcomes.keys() == {"handled alone", "queued", "refused"}


def _send_at(depth: int) -> str:
    """Send from so many frames below a thread's first ones."""
    lending = Lending()
    thread = threading.Thread(target=_down, args=(depth, lending))
    thread.start()
    thread.join(PATIENCE_S)
    lending.mailbox.wake()
    events = [item for item in lending.end() if isinstance(item, Sent | tuple)]
    assert lending.sequences == [0] * lending.to.promised
    assert len(events) == lending.to.promised
    if not events:
        return "refused"
    return "queued" if isinstance(events[0], Sent) else "handled alone"


def _down(depth: int, lending: Lending) -> None:
    try:
        if depth:
            _down(depth - 1, lending)
        else:
            lending.sequences.append(lending.mailbox.send(lending.to, b"x"))
    except RecursionError:
        pass


def test_a_turn_that_is_ended_in_its_midst_fails_the_taker_and_keeps_nobody_waiting() -> None:
    """A thread can be made to raise anywhere; how far the turn has come is then unknown."""
    lending = Lending(raises=SystemExit)
    lending.send(b"x").join(PATIENCE_S)
    (left,) = lending.end()
    with pytest.raises(RuntimeError, match="interrupted while it decided"):
        left()  # type: ignore[operator]


def test_an_event_behind_one_that_is_on_its_way_joins_a_batch() -> None:
    """An append may wait for room in the client's queue: a sender does not."""
    lending = Lending()
    lending.mailbox.count_unsent("op", 1)
    lending.send(b"x").join(PATIENCE_S)
    (sent,) = lending.end()
    assert isinstance(sent, Sent)
    assert sent.events == [b"x"]


def test_an_event_right_behind_another_one_joins_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that is at it would make a frame of each event."""
    monkeypatch.setattr(mailbox_module, "_LEND_PAUSE_S", PATIENCE_S)
    lending = Lending()
    lending.send(b"first").join(PATIENCE_S)
    lending.send(b"second").join(PATIENCE_S)
    (second,) = lending.end()[1:]
    assert isinstance(second, Sent)
    assert second.events == [b"second"]


def test_the_main_thread_is_lent_no_turn() -> None:
    """Ctrl-C may come behind any call there: half a decision would stand."""
    lending = Lending()
    lending.mailbox.send(lending.to, b"x")
    (sent,) = lending.end()
    assert isinstance(sent, Sent)


def test_a_lingering_taker_lends_no_turn() -> None:
    """Section 6: with a linger events wait for company."""
    mailbox = Mailbox(handle_alone=lambda *_: pytest.fail("handled alone"))
    thread = threading.Timer(0.01, mailbox.send, (ledger(mailbox), b"x"))
    thread.start()
    (sent,) = mailbox.take(time.monotonic() + PATIENCE_S, linger_s=0.001)
    assert isinstance(sent, Sent)
    thread.join(PATIENCE_S)
