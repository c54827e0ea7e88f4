"""A stream and its futures against a plain list of what became of each event (protocol, section 6)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordinator.futures import EventFuture, Ledger
from penstock.coordinator.in_flight_bytes import Load
from penstock.coordinator.protocol.stream import EventStream
from penstock.schemas.errors import EventNotHandled, RolledBack, TaskNotRunning
from penstock.schemas.frames import unpack
from tests.machines import explore
from tests.rounds import rounds

from .driver import S0

EPOCH = 3


@dataclass
class Event:
    """One event and its future; ``outcome`` is None until it has one, then handled (True) or why not."""

    payload: bytes
    future: EventFuture
    appended: bool = False
    outcome: bool | EventNotHandled | None = None
    calls: list[EventNotHandled | None] = field(default_factory=list)

    def called(self, future: EventFuture) -> None:
        self.calls.append(future.exception())


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stream = EventStream(S0, EPOCH)
        self.ledger = Ledger(self.stream, Load(), threading.Condition())
        self.events: list[Event] = []
        self.failure: EventNotHandled | None = None
        self.fails_at = 0
        """How many events there are before the stream may fail: a failed one has little left to show."""
        self.unappended: list[int] = []
        """Counts of the frames that have not been appended."""

    @initialize(fails_at=st.integers(0, 20))
    def begin(self, fails_at: int) -> None:
        self.fails_at = fails_at

    @precondition(lambda self: self.failure is None)
    @rule(
        payloads=st.lists(st.binary(max_size=6), max_size=6),
        attempt=st.integers(0, 9),
        events_max=st.integers(1, 4),
        bytes_max=st.integers(1, 12),
    )
    def send(self, payloads: list[bytes], attempt: int, events_max: int, bytes_max: int) -> None:
        first = len(self.events)
        frames = self.stream.accept(payloads, attempt, events_max=events_max, bytes_max=bytes_max)
        assert [e for f in frames for e in unpack(f.count, f.lengths, f.payload)] == payloads
        for frame in frames:
            assert (frame.epoch, frame.attempt, frame.sequence) == (EPOCH, attempt, first)
            assert frame.count <= events_max
            assert len(frame.payload) <= bytes_max or frame.count == 1
            first += frame.count
            self.unappended.append(frame.count)
        for payload in payloads:
            event = Event(payload, EventFuture(self.ledger, len(self.events)))
            event.future.add_done_callback(event.called)
            self.events.append(event)

    @precondition(lambda self: self.unappended and self.failure is None)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """Whole frames leave, oldest first."""
        frames = data.draw(st.integers(1, len(self.unappended)))
        count, self.unappended = sum(self.unappended[:frames]), self.unappended[frames:]
        for event in [event for event in self.events if not event.appended][:count]:
            event.appended = True
        self.stream.appended_through += count

    @rule(data=st.data())
    def hear_handled_through(self, data: st.DataObject) -> None:
        """Cumulative; repeated, lower, or beyond what was appended it settles nothing."""
        through = data.draw(st.integers(-1, len(self.events) + 1))
        covered = self.events[: max(through, 0)]
        believed = self.failure is None and through <= len(self.events) and all(event.appended for event in covered)
        news = [event for event in covered if event.outcome is None] if believed else []
        assert self.stream.settle(through) == bool(news)
        for event in news:
            event.outcome = True
        self.ledger.settle()

    @precondition(lambda self: len(self.events) >= self.fails_at)
    @rule(failure=st.sampled_from([RolledBack("rolled back"), TaskNotRunning("not running")]))
    def fail(self, failure: EventNotHandled) -> None:
        assert self.stream.fail(failure) == (self.failure is None)
        if self.failure is None:
            self.failure = failure
            for event in self.events:
                event.outcome = event.outcome or failure
        self.ledger.settle()

    @precondition(lambda self: self.events)
    @rule(data=st.data())
    def ask_later(self, data: st.DataObject) -> None:
        """A callback that comes when the future has settled is called at once."""
        event = data.draw(st.sampled_from(self.events))
        if event.outcome is not None:
            late: list[EventNotHandled | None] = []
            event.future.add_done_callback(lambda future: late.append(future.exception()))
            assert late == [None if event.outcome is True else event.outcome]

    @invariant()
    def agree(self) -> None:
        assert self.stream.next_sequence == len(self.events)
        for event in self.events:
            settled = [] if event.outcome is None else [None if event.outcome is True else event.outcome]
            assert event.calls == settled, "a future settles exactly once"
            assert event.future.done() == bool(settled), "tracked until settled"
            assert event.future.exception() == (settled or [None])[0]


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_futures_settle_as_a_list_of_outcomes_does(round_: int) -> None:
    explore(StreamMachine, round_, examples=40, steps=25)
