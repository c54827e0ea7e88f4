"""The futures' ledger: one numbered sequence of events per stream (protocol, section 6)."""

from __future__ import annotations

from penstock.coordinator.protocol.stream import EventStream
from penstock.schemas.errors import RolledBack, TaskNotRunning

from .driver import S0


def stream(appended: int = 0) -> EventStream:
    made = EventStream(S0, 3)
    made.accept([b"e"] * appended, 7, events_max=100, bytes_max=1000)
    made.appended_through = appended
    return made


def test_sequences_begin_at_0_and_never_skip() -> None:
    """Section 5.4."""
    frames = stream().accept([b"a", b"b", b"c"], 7, events_max=2, bytes_max=100)
    assert [(f.epoch, f.attempt, f.sequence, f.count) for f in frames] == [(3, 7, 0, 2), (3, 7, 2, 1)]


def test_the_sequence_goes_on_from_one_send_to_the_next() -> None:
    """Section 5.4."""
    made = stream(appended=5)
    (frame,) = made.accept([b"a"], 9, events_max=2, bytes_max=100)
    assert (frame.sequence, frame.attempt) == (5, 9)


def test_handled_through_settles_everything_below_it() -> None:
    """Section 6: the subtask's cumulative handled-through covers it."""
    made = stream(appended=5)
    assert made.settle(3)
    assert made.handled_through == 3


def test_a_repeated_or_lower_handled_through_is_no_news() -> None:
    """Section 6: a future settles exactly once."""
    made = stream(appended=5)
    made.settle(3)
    assert not made.settle(3)
    assert not made.settle(2)
    assert made.handled_through == 3


def test_a_claim_beyond_what_was_appended_is_not_believed() -> None:
    """G5: nothing read from a topic is trusted."""
    made = stream(appended=5)
    assert not made.settle(6)
    assert made.handled_through == 0


def test_a_stream_fails_once_and_never_moves_again() -> None:
    """Section 6: the future settles exactly once."""
    made = stream(appended=5)
    first = RolledBack("first")
    assert made.fail(first)
    assert not made.fail(TaskNotRunning("second"))
    assert made.failure is first
    assert not made.settle(3)
