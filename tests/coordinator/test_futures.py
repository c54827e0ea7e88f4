"""Event futures: views over (stream, sequence) that settle exactly once (protocol, section 6)."""

from __future__ import annotations

import threading

import pytest

from penstock.coordinator.futures import EventFuture, Ledger
from penstock.coordinator.in_flight_bytes import Load
from penstock.coordinator.protocol.stream import EventStream
from penstock.schemas.errors import EventNotHandled, RolledBack, TaskNotRunning
from penstock.schemas.ids import SubtaskId

from .jobs import PATIENCE_S


class Futures:
    """A stream with ``count`` events sent and appended."""

    def __init__(self, count: int = 3) -> None:
        self.stream = EventStream(SubtaskId("op", 0), 1)
        self.stream.accept([b"e"] * count, 1, events_max=100, bytes_max=1000)
        self.stream.appended_through = count
        self.ledger = Ledger(self.stream, Load(), threading.Condition())
        self.futures = [EventFuture(self.ledger, sequence) for sequence in range(count)]

    def handled(self, through: int) -> None:
        self.stream.settle(through)
        self.ledger.settle()

    def failed(self, failure: EventNotHandled) -> None:
        self.stream.fail(failure)
        self.ledger.settle()


def test_handled_through_settles_every_future_below_it() -> None:
    """Section 6: settles with *handled*."""
    made = Futures()
    made.handled(2)
    assert [future.done() for future in made.futures] == [True, True, False]
    made.futures[0].result(0)
    assert made.futures[0].exception() is None


def test_a_failure_settles_the_rest_and_leaves_the_handled_ones() -> None:
    """Section 6: exactly once."""
    made = Futures()
    made.handled(1)
    made.failed(TaskNotRunning("gone"))
    made.futures[0].result(0)
    for future in made.futures[1:]:
        assert future.done()
        with pytest.raises(TaskNotRunning, match="gone"):
            future.result(0)
        assert isinstance(future.exception(), TaskNotRunning)


def test_result_raises_timeout_error_when_it_takes_too_long() -> None:
    """Section 6; the future itself stays open."""
    future = Futures().futures[0]
    with pytest.raises(TimeoutError, match="event 0 to op/0"):
        future.result(0.01)
    assert not future.done()


def test_result_waits_in_another_thread() -> None:
    """Section 6: on *handled*."""
    made = Futures()
    waiting, done = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        made.futures[2].result(PATIENCE_S)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(PATIENCE_S)
    made.handled(3)
    assert done.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_waiting_on_the_coordinators_own_thread_raises_at_once() -> None:
    """It would never end: futures settle there."""
    made = Futures()
    made.ledger.forbidden_thread = threading.get_ident()
    with pytest.raises(RuntimeError, match="add_done_callback"):
        made.futures[0].result()
    made.handled(1)
    made.futures[0].result()  # a settled one is no wait


def test_callbacks_are_called_once_in_the_order_of_events() -> None:
    """Section 6: exactly once, always."""
    made = Futures()
    seen: list[int] = []
    for future in reversed(made.futures):
        future.add_done_callback(lambda f: seen.append(f.sequence))
    made.handled(2)
    assert seen == [0, 1]
    made.failed(RolledBack("undone"))
    made.ledger.settle()
    assert seen == [0, 1, 2]


def test_a_callback_on_a_settled_future_is_called_at_once() -> None:
    """As with any future."""
    made = Futures()
    seen: list[EventFuture] = []
    made.handled(1)
    made.futures[0].add_done_callback(seen.append)
    assert seen == [made.futures[0]]


def test_a_callback_that_raises_keeps_nobody_else_from_being_called() -> None:
    """G5: logged, and no further."""
    made = Futures()
    seen: list[EventFuture] = []

    def raising(_: EventFuture) -> None:
        raise ValueError("no")

    made.futures[0].add_done_callback(raising)
    made.futures[0].add_done_callback(seen.append)
    made.handled(1)
    assert len(seen) == 1
