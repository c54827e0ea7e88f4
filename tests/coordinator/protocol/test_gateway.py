"""The gateway by itself (protocol, section 6). Flink's SubtaskGatewayImplTest (C2), and what it leaves out."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.coordinator.protocol.gateway import GatewayState, merged
from penstock.schemas.events import EventFrame
from penstock.schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX, pack, unpack


def frame(*events: bytes, sequence: int = 0) -> EventFrame:
    return EventFrame(1, 7, sequence, *pack(events))


def events(frames: list[EventFrame]) -> list[bytes]:
    return [event for f in frames for event in unpack(f.count, f.lengths, f.payload)]


def closed_for(*ids: int) -> GatewayState:
    """Closed for each id in turn, with one event held under it, named after it."""
    gateway = GatewayState()
    for n in ids:
        gateway.mark(n)
        assert gateway.close(n)
        assert gateway.hold(frame(str(n).encode()))
    return gateway


def test_an_open_gateway_holds_nothing() -> None:
    """C2.1."""
    gateway = GatewayState()
    assert not gateway.hold(frame(b"a"))
    assert gateway.held_events == 0


def test_a_marked_gateway_closes() -> None:
    """C2.2; R6."""
    gateway = GatewayState()
    gateway.mark(200)
    assert gateway.close(200)
    assert gateway.closed == (200,)


def test_an_unmarked_gateway_does_not_close() -> None:
    """C2.3; section 6: closing an unmarked id returns false and changes nothing."""
    gateway = GatewayState()
    assert not gateway.close(123)
    assert gateway.closed == ()


def test_a_gateway_marked_for_another_checkpoint_does_not_close() -> None:
    """C2.4."""
    gateway = GatewayState()
    gateway.mark(100)
    assert not gateway.close(123)
    assert not gateway.hold(frame(b"a"))


def test_a_mark_alone_holds_nothing() -> None:
    """R6: the gateway closes at the cut, not at the trigger."""
    gateway = GatewayState()
    gateway.mark(1)
    assert not gateway.hold(frame(b"a"))


def test_a_closed_gateway_holds_events() -> None:
    """C2.5."""
    gateway = closed_for(1)
    assert gateway.held_events == 1


def test_opening_releases_what_was_held_in_order() -> None:
    """C2.6."""
    gateway = closed_for(17)
    gateway.hold(frame(b"second", sequence=1))
    assert events(gateway.open(17)) == [b"17", b"second"]
    assert gateway.closed == ()
    assert not gateway.hold(frame(b"c"))


def test_closing_twice_is_harmless() -> None:
    """R8."""
    gateway = closed_for(1)
    assert gateway.close(1)
    assert events(gateway.open(1)) == [b"1"]


def test_events_are_held_under_the_highest_closed_id() -> None:
    """Section 6; R9."""
    gateway = closed_for(1, 2)
    gateway.hold(frame(b"late"))
    assert events(gateway.open(1)) == [b"1"]
    assert events(gateway.open(2)) == [b"2", b"late"]


def test_opening_the_lowest_of_three_releases_its_own_queue_while_the_others_stay_closed() -> None:
    """Section 6; R10."""
    gateway = closed_for(1, 2, 3)
    assert events(gateway.open(1)) == [b"1"]
    assert gateway.closed == (2, 3)


def test_opening_the_middle_of_three_moves_its_queue_down_one() -> None:
    """Section 6; R10."""
    gateway = closed_for(1, 2, 3)
    assert gateway.open(2) == []
    assert events(gateway.open(1)) == [b"1", b"2"]
    assert events(gateway.open(3)) == [b"3"]


def test_opening_the_highest_of_three_moves_its_queue_down_one() -> None:
    """Section 6; R10."""
    gateway = closed_for(1, 2, 3)
    assert gateway.open(3) == []
    assert events(gateway.open(1)) == [b"1"]
    assert events(gateway.open(2)) == [b"2", b"3"]


def test_opening_an_id_that_is_no_longer_marked_is_a_no_op() -> None:
    """Section 6; R11: a late or repeated ack."""
    gateway = closed_for(1, 2)
    gateway.open(1)
    assert gateway.open(1) == []
    assert gateway.closed == (2,)


def test_a_mark_that_was_opened_before_the_cut_cannot_be_closed() -> None:
    """R46: a future completed after its checkpoint was aborted closes nothing."""
    gateway = GatewayState()
    gateway.mark(1)
    gateway.open(1)
    assert not gateway.close(1)


def test_opening_an_id_never_marked_is_an_error() -> None:
    """Section 6; R12."""
    gateway = closed_for(1)
    with pytest.raises(AssertionError, match="never marked"):
        gateway.open(2)


@pytest.mark.parametrize("again", [5, 4, -1])
def test_marks_only_rise(again: int) -> None:
    """R7: a repeated or lower id is an illegal state; there is no batch id -1 here."""
    gateway = GatewayState()
    gateway.mark(5)
    with pytest.raises(AssertionError, match="only rise"):
        gateway.mark(again)


def test_closing_out_of_order_keeps_the_order_of_ids() -> None:
    """R8: several checkpoints may be closed at once; the cut of an older one may come later."""
    gateway = GatewayState()
    gateway.mark(1)
    gateway.mark(2)
    gateway.close(2)
    gateway.hold(frame(b"a"))
    gateway.close(1)
    assert gateway.closed == (1, 2)
    assert gateway.open(2) == []
    assert events(gateway.open(1)) == [b"a"]


def test_what_lower_ids_hold_can_be_released_without_opening_them() -> None:
    """Section 7.4 ◆: before marker n goes, whatever is held under lower ids is appended."""
    gateway = closed_for(1, 2, 3)
    assert events(gateway.release_below(3)) == [b"1", b"2"]
    assert gateway.closed == (1, 2, 3)
    assert gateway.open(1) == []
    assert gateway.held_events == 1


def test_single_sends_leave_a_gateway_as_full_frames() -> None:
    """Section 6: held events are kept packed, and leave in as few frames as fit."""
    singles = [frame(b"x", sequence=i) for i in range(FRAME_EVENTS_MAX + 1)]
    joined = merged(singles)
    assert [(f.sequence, f.count) for f in joined] == [(0, FRAME_EVENTS_MAX), (FRAME_EVENTS_MAX, 1)]
    assert len(events(joined)) == FRAME_EVENTS_MAX + 1


def test_joined_frames_stay_within_the_bytes_of_a_frame() -> None:
    """Section 6: a frame leaves when full."""
    half = bytes(FRAME_BYTES_MAX // 2)
    joined = merged([frame(half, sequence=0), frame(half, sequence=1), frame(b"x", sequence=2)])
    assert [f.count for f in joined] == [2, 1]


def one_by_one(count: int, size: int = 100) -> tuple[GatewayState, list[bytes]]:
    """A closed gateway that was given so many events, each in a frame of its own."""
    gateway, sent = GatewayState(), [n.to_bytes(4, "little") * (size // 4) for n in range(count)]
    gateway.mark(1)
    gateway.close(1)
    for n, event in enumerate(sent):
        gateway.hold(frame(event, sequence=n))
        gateway.join(FRAME_EVENTS_MAX, FRAME_BYTES_MAX)
    return gateway, sent


def test_events_held_one_by_one_take_little_more_than_themselves() -> None:
    """G7: what is held is bounded by the bytes of its events, so memory must not be a multiple of them."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        gateway = GatewayState()
        gateway.mark(1)
        gateway.close(1)
        for n in range(50_000):
            gateway.hold(frame(n.to_bytes(4, "little") * 25, sequence=n))
            gateway.join(FRAME_EVENTS_MAX, FRAME_BYTES_MAX)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert gateway.held_events == 50_000
    assert grown < 1.2 * 50_000 * 100


def test_what_was_joined_while_it_waited_is_released_in_order() -> None:
    gateway, sent = one_by_one(3_000)
    released = gateway.open(1)
    assert len(released) < 500
    assert events(released) == sent
    assert [f.sequence for f in released] == [sum(f.count for f in released[:n]) for n in range(len(released))]
    assert all(f.count <= FRAME_EVENTS_MAX and len(f.payload) <= FRAME_BYTES_MAX for f in released)


def test_what_is_joined_stays_under_the_checkpoint_that_it_is_held_for() -> None:
    gateway, sent = one_by_one(1_000)
    gateway.mark(2)
    gateway.close(2)
    for n in range(1_000, 2_000):
        gateway.hold(frame(b"%d" % n, sequence=n))
        gateway.join(FRAME_EVENTS_MAX, FRAME_BYTES_MAX)
    assert events(gateway.open(1)) == sent
    assert events(gateway.open(2)) == [b"%d" % n for n in range(1_000, 2_000)]
