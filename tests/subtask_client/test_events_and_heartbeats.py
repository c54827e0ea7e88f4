"""What goes to the coordinator: frames of events (sections 3, 7.6 and 8) and handled-through (section 6)."""

from __future__ import annotations

import pytest

from penstock.schemas.acks import Failed, Heartbeat, OperatorEventFrame
from penstock.schemas.errors import EventTooLarge, SubtaskError
from penstock.schemas.frames import unpack
from penstock.schemas.state import Segment
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on


def payloads(frames):
    return [event for f in frames for event in unpack(f.count, f.lengths, f.payload)]


def send(d, *events):
    for event in events:
        d.effects += d.core.send(event)


def test_events_wait_for_the_end_of_the_turn_and_leave_as_one_frame(d):
    d.started()
    d.fresh()
    send(d, b"a", b"b", b"c")
    assert d.effects == []
    d.turn(dry=False)
    (frame,) = d.written(OperatorEventFrame)
    assert (frame.sequence, frame.count, frame.belongs_to) == (0, 3, 1)
    assert payloads([frame]) == [b"a", b"b", b"c"]


def test_a_full_frame_leaves_at_once(driver):
    d = driver(frame_events_max=2, frame_bytes_max=100)
    d.started()
    send(d, b"a", b"b", b"c")
    assert payloads(d.written(OperatorEventFrame)) == [b"a", b"b"]
    send(d, b"x" * 97)
    assert [f.count for f in d.written(OperatorEventFrame)] == [2, 1, 1]
    send(d, b"y" * 50, b"z" * 50)
    d.turn()
    assert [(f.sequence, f.count) for f in d.written(OperatorEventFrame)] == [(0, 2), (2, 1), (3, 1), (4, 1), (5, 1)]


def test_the_sequence_begins_at_0_under_each_start(d, wire):
    """Section 8, inbox range: of exactly the attempt and generation."""
    d.started()
    send(d, b"a", b"b")
    d.turn()
    d.append(wire.start(epoch=2, event_position=1))
    send(d, b"c")
    d.turn()
    assert [(f.sender.epoch, f.sequence) for f in d.written(OperatorEventFrame)] == [(1, 0), (2, 0)]


def test_what_was_not_yet_in_a_frame_at_a_reset_is_never_sent(d, wire):
    d.started()
    send(d, b"void")
    d.append(wire.reset())
    d.turn()
    assert not d.written(OperatorEventFrame)


def test_belongs_to_is_the_lowest_checkpoint_whose_snapshot_can_contain_the_events(d, wire):
    d.started(next_checkpoint_id=5)
    send(d, b"a")
    d.turn()
    d.append(wire.marker(7, 0))
    send(d, b"b")
    d.turn()
    assert [f.belongs_to for f in d.written(OperatorEventFrame)] == [5, 8]


def test_an_event_that_no_record_can_hold_is_refused_at_once_and_leaves_no_hole(driver):
    d = driver(event_bytes_max=10)
    d.started()
    with pytest.raises(EventTooLarge, match=r"11 bytes.*at most 10"):
        d.core.send(b"x" * 11)
    send(d, b"x" * 10)
    d.turn()
    assert [(f.sequence, f.count) for f in d.written(OperatorEventFrame)] == [(0, 1)]


def test_nothing_can_be_sent_outside_an_attempt(d):
    d.hello()
    with pytest.raises(SubtaskError, match="no attempt runs"):
        d.core.send(b"a")


def test_frames_leave_before_failed(d):
    """Whatever user code had sent before it raised stands before Failed."""
    d.started()
    d.fresh()
    send(d, b"a")
    d.feed(on.UserFailed("boom"))
    assert d.names()[:2] == ["OperatorEventFrame", "Failed"]


def test_user_code_that_raises_writes_failed_closes_and_says_hello_in_place(d, wire):
    """Section 8: no Spark task restarts."""
    d.started()
    d.user[do.HandleEvents] = lambda call: on.UserFailed("boom at line 3")
    d.fresh().append(wire.frame(0, b"a"))
    assert d.names() == ["HandleEvents", "Failed", "CloseUser", "NotePosition", "Seek", "Hello"]
    failed = d.written(Failed)[0]
    assert (failed.cause, failed.sender.attempt) == ("boom at line 3", 50)


def test_handled_through_is_written_when_the_input_runs_dry_and_only_if_it_has_advanced(d, wire):
    """Section 6."""
    d.started()
    d.append(wire.frame(0, b"a", b"b"))
    d.turn(dry=False)
    assert not d.written(Heartbeat)
    d.turn(dry=True)
    d.turn(dry=True)
    (beat,) = d.written(Heartbeat)
    assert (beat.handled_through, beat.metrics, beat.aligning) == (2, {}, False)


def test_an_ack_says_handled_through_so_that_no_heartbeat_need_repeat_it(d, wire):
    d.started()
    d.append(wire.frame(0, b"a"), wire.marker(1, 1))
    d.turn()
    assert not d.written(Heartbeat)


def test_while_events_are_handled_a_heartbeat_counts_exactly_those_that_returned(d, wire):
    """Section 6: at latest every 50 ms; the runtime measures them."""
    d.started()
    seen = []

    def handle(call):
        for done in (0, 1, 1, 2):
            mark = len(d.effects)
            d.effects += d.core.handle(on.HeartbeatDue(False, "handling", 0, events_done=done), d.now)
            seen.append([b.record.handled_through for b in d.effects[mark:]])
        return on.EventsHandled()

    d.append(wire.frame(0, b"x"))
    d.user[do.HandleEvents] = handle
    d.append(wire.frame(1, b"a", b"b", b"c"))
    assert seen == [[1], [2], [], [3]]
    d.turn()
    assert d.written(Heartbeat)[-1].handled_through == 4


def test_a_periodic_heartbeat_names_the_step_its_age_and_the_metrics(d):
    """Section 8; section 1, G6."""
    d.started(generation=2)
    d.feed(on.HeartbeatDue(True, "snapshotting checkpoint 3", 1500, metrics={"rows": 2.0}))
    (beat,) = d.written(Heartbeat)
    assert (beat.step, beat.step_age_ms, beat.metrics) == ("snapshotting checkpoint 3", 1500, {"rows": 2.0})
    assert (beat.sender.epoch, beat.sender.generation) == (1, 2)


def test_at_most_one_periodic_heartbeat_is_in_flight(d):
    """Section 8: so that an outage does not end in a burst."""
    d.started()
    for _ in range(5):
        d.feed(on.HeartbeatDue(True, "step", 0))
    assert len(d.written(Heartbeat)) == 1
    d.feed(on.HeartbeatSettled())
    d.feed(on.HeartbeatDue(True, "step", 0))
    assert len(d.written(Heartbeat)) == 2


def test_what_was_handled_under_a_ranges_numbering_is_not_reported_as_this_epochs(d, wire):
    d.log = [wire.frame(4, b"a", epoch=1), wire.frame(5, b"b", epoch=1)]
    d.hello()
    ranges = (Segment(0, 2, 1, 0, 40),)
    d.append(wire.start(epoch=2, expected_epoch=1, expected_sequence=4, event_ranges=ranges))
    d.turn()
    assert d.handled == [b"a", b"b"]
    assert not d.written(Heartbeat)


def test_a_restored_numbering_is_not_reported_before_it_advances(d, wire):
    d.started(expected_sequence=40)
    d.turn()
    assert not d.written(Heartbeat)
    d.feed(on.HeartbeatDue(True, "step", 0))
    assert d.written(Heartbeat)[0].handled_through == 40


# ---- between two attempts


BEAT = on.HeartbeatDue(True, "closing", 1_000)


def test_signs_of_life_go_on_in_the_name_of_the_attempt_that_is_over_until_the_next_hello_stands(d, wire):
    """Section 8: a user's object that takes its time to close is no frozen process."""
    d.started()
    sender = d.core.running.sender
    d.user[do.NotePosition] = lambda call: d.feed(BEAT) and on.PositionNoted(len(d.log), "nonce-2")
    d.hello_known = False
    d.append(wire.reset())
    (beat,) = d.written(Heartbeat)
    assert (beat.sender, beat.step, beat.handled_through) == (sender, "closing", 0)
    d.feed(on.HeartbeatSettled())
    assert len(d.feed(BEAT)) == 1
    d.feed(on.HeartbeatSettled())
    d.feed(on.HelloTaken("nonce-2", 60))
    assert d.feed(BEAT) == []


def test_between_attempts_too_at_most_one_heartbeat_is_in_flight_and_none_says_what_was_handled(d, wire):
    d.started()
    d.hello_known = False
    d.append(wire.reset())
    assert len(d.feed(BEAT)) == 1
    assert d.feed(BEAT) == []
    assert d.feed(on.HeartbeatDue(False, "closing", 0)) == []


def test_an_instance_that_was_no_attempt_yet_or_has_left_says_nothing(d, wire):
    d.hello()
    assert d.feed(BEAT) == []
    d.append(wire.start(event_position=0))
    d.feed(on.LeaveRequested("shutdown"))
    assert d.feed(BEAT) == []
