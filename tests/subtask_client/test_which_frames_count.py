"""Policies, ranges and sequences: protocol, section 5.3 and 5.4."""

from __future__ import annotations

import pytest

from penstock.schemas.acks import Failed
from penstock.schemas.errors import SequenceGap
from penstock.schemas.events import EventFrame, FailoverPolicy
from penstock.schemas.state import Segment
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.drop_reasons import Dropped
from penstock.subtask_client.protocol.phases import Phase

RESET = FailoverPolicy.RESET


@pytest.mark.parametrize("policy", [FailoverPolicy.REPLAY, FailoverPolicy.GLOBAL])
def test_under_replay_every_frame_of_starts_epoch_from_the_event_position_is_handled(d, wire, policy):
    """Section 5.3: also those sent through a dead attempt's gateway."""
    d.log = [
        wire.frame(0, b"in the state"), wire.frame(1, b"b", attempt=40), wire.frame(0, b"void", epoch=0),
        wire.frame(2, b"c", b"d", attempt=45),
    ]  # fmt: skip
    d.hello()
    d.append(wire.start(event_position=1, expected_sequence=1, policy=policy), wire.frame(4, b"e"))
    assert d.handled == [b"b", b"c", b"d", b"e"]
    assert d.of(do.Seek)[-1] == do.Seek(1)


def test_under_replay_older_epochs_there_are_void(d, wire):
    """Section 5.3: they were sent by coordinators that have been rolled back."""
    d.log = [wire.frame(0, b"x", epoch=1), wire.frame(1, b"y", epoch=1)]
    d.hello()
    d.append(wire.start(epoch=2, expected_epoch=1, expected_sequence=0), wire.frame(0, b"a", epoch=2))
    assert d.handled == [b"a"]
    assert d.core.dropped["other_epoch"] == 2


def test_under_reset_it_goes_on_behind_its_start(d, wire):
    """Section 5.3."""
    d.log = [wire.frame(0, b"x"), wire.frame(1, b"y")]
    d.hello()
    d.append(wire.start(policy=RESET, expected_sequence=0), wire.frame(0, b"a"))
    assert d.handled == [b"a"]
    assert [seek.offset for seek in d.of(do.Seek)] == [2]  # that of Hello alone


def test_under_reset_only_frames_addressed_to_its_own_attempt_are_handled(d, wire):
    """Section 5.3."""
    d.started(policy=RESET)
    d.append(wire.frame(0, b"x", attempt=40), wire.frame(0, b"a"), wire.frame(1, b"y", attempt=40), wire.frame(1, b"b"))
    assert d.handled == [b"a", b"b"]
    assert d.core.dropped["other_attempt"] == 2


@pytest.mark.parametrize("policy", [FailoverPolicy.REPLAY, RESET])
def test_ranges_are_handled_first_in_their_own_epoch_and_attempt_under_either_policy(d, wire, policy):
    """Section 5.3 ◆."""
    d.log = [
        wire.frame(0, b"before", epoch=1, attempt=30),
        wire.frame(7, b"a", epoch=1, attempt=30),
        wire.marker(3, 8),
        wire.frame(8, b"b", b"c", epoch=1, attempt=30),
        wire.frame(0, b"foreign epoch", epoch=2, attempt=30),
        wire.frame(99, b"behind the range", epoch=1, attempt=30),
    ]
    d.hello()
    segment = Segment(begin=1, end=5, epoch=1, generation=0, attempt=30)
    d.append(
        wire.start(
            epoch=3, checkpoint_id=3, next_checkpoint_id=4, expected_epoch=1, expected_sequence=7,
            event_position=1, event_ranges=(segment,), policy=policy,
        ),
        wire.frame(0, b"d", epoch=3),
    )  # fmt: skip
    assert d.handled == [b"a", b"b", b"c", b"d"]
    assert not d.of(do.TakeSnapshot)
    assert d.core.running.reading.handled_through == 1


def test_under_reset_a_range_keeps_to_its_own_attempt(d, wire):
    d.log = [wire.frame(0, b"a", attempt=30), wire.frame(0, b"x", attempt=31), wire.frame(1, b"b", attempt=30)]
    d.hello()
    d.append(wire.start(policy=RESET, event_ranges=(Segment(0, 3, 1, 0, 30),)), wire.frame(0, b"c"))
    assert d.handled == [b"a", b"b", b"c"]


def test_several_ranges_are_read_one_after_the_other_and_what_lies_between_is_not(d, wire):
    """Section 9: a position is a list of segments; the same holds here."""
    d.log = [
        wire.frame(5, b"a", epoch=1), wire.frame(6, b"no", epoch=1), wire.frame(6, b"no", epoch=2),
        wire.frame(0, b"b", epoch=2), wire.frame(6, b"no", epoch=1),
    ]  # fmt: skip
    d.hello()
    ranges = (Segment(0, 1, 1, 0, 40), Segment(2, 2, 1, 0, 40), Segment(3, 4, 2, 0, 45))
    d.append(wire.start(epoch=3, expected_epoch=1, expected_sequence=5, event_ranges=ranges, event_position=0))
    assert d.handled == [b"a", b"b"]
    assert [seek.offset for seek in d.of(do.Seek)] == [5, 0, 3]


def test_own_work_waits_until_the_ranges_have_been_handled(d, wire):
    d.log = [wire.frame(0, b"a"), wire.frame(1, b"b")]
    d.hello()
    d.log.append(wire.start(event_ranges=(Segment(0, 2, 1, 0, 50),)))
    d.feed(on.RecordRead(2, d.log[2]))
    assert not d.core.may_poll
    d.append()
    assert d.core.may_poll


def test_a_record_of_a_lower_epoch_than_the_highest_seen_is_ignored(d, wire):
    """Section 4, coordinator: frames of a frozen coordinator, thawed."""
    d.started(epoch=2, expected_epoch=2)
    d.append(wire.start(attempt=40, nonce="other", epoch=3), wire.frame(0, b"a", epoch=2), wire.marker(1, 0, epoch=2))
    assert d.handled == []
    assert not d.of(do.TakeSnapshot)
    assert d.core.dropped["older_epoch"] == 2


def test_a_frame_of_a_higher_epoch_than_starts_is_not_handled_before_its_start(d, wire):
    d.started(epoch=2, expected_epoch=2)
    d.append(wire.frame(0, b"a", epoch=3))
    assert d.handled == []
    d.append(wire.start(epoch=3, expected_epoch=2, event_position=1))
    assert d.handled == [b"a"]


def test_a_repeat_has_no_effect(d, wire):
    """Section 4.1 ◆: a client may append again what it has appended already."""
    d.started()
    tail = [wire.frame(1, b"b"), wire.marker(1, 2), wire.frame(2, b"c", b"d")]
    d.append(wire.frame(0, b"a"), *tail, *tail, wire.frame(4, b"e"))
    assert d.handled == [b"a", b"b", b"c", b"d", b"e"]
    assert [snapshot.checkpoint_id for snapshot in d.of(do.TakeSnapshot)] == [1]
    assert d.core.dropped[Dropped.REPEATED] == 2


def test_a_repeat_below_the_own_start_or_behind_the_end_has_no_effect(d, wire):
    first = wire.frame(7, b"a")
    d.log = [first, wire.frame(8, b"b"), first, wire.frame(8, b"b"), wire.frame(9, b"c")]
    d.hello()
    d.append(wire.start(expected_sequence=7))
    assert d.handled == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("found", "events"), [(3, [b"x"]), (1, [b"b", b"x"])])
def test_a_gap_fails_the_attempt_loudly_with_the_offsets(d, wire, found, events):
    """Section 5.4: it means lost log. A frame that begins below what is due and ends behind it is nobody's repeat."""
    d.started()
    d.append(wire.frame(0, b"a", b"b"))
    d.fresh().append(wire.frame(found, *events))
    assert d.names() == ["Report", "Failed", "CloseUser", "NotePosition", "Seek", "Hello"]
    (gap,) = (report.error for report in d.of(do.Report))
    assert isinstance(gap, SequenceGap)
    for part in ("reader/0", "attempt 50", "expected sequence 2", f"at offset 2 has {found}", "offset 0"):
        assert part in str(gap)
    assert d.written(Failed)[0].cause == str(gap)
    assert d.written(Failed)[0].missing == 2
    assert d.handled == [b"a", b"b"]


def test_under_replay_sequences_begin_where_start_says_if_the_epoch_is_the_same(d, wire):
    """Section 5.4."""
    d.started(expected_sequence=40)
    d.append(wire.frame(40, b"a"))
    assert d.handled == [b"a"]
    assert d.core.running.reading.handled_through == 41


def test_in_a_new_epoch_sequences_begin_at_0(d, wire):
    """Section 5.4."""
    d.started(epoch=2, expected_epoch=1, expected_sequence=40)
    assert d.core.running.reading.handled_through == 0
    d.append(wire.frame(0, b"a", epoch=2))
    assert d.handled == [b"a"]


def test_under_reset_sequences_begin_at_0_for_each_attempt(d, wire):
    """Section 5.4."""
    d.started(policy=RESET, expected_sequence=40)
    d.append(wire.frame(0, b"a"), wire.frame(1, b"b"))
    assert d.handled == [b"a", b"b"]


def test_a_marker_that_names_another_next_sequence_is_a_gap(d, wire):
    """Section 5.4: TriggerCheckpoint carries the next one, so a lost last frame shows."""
    d.started()
    d.fresh().append(wire.frame(0, b"a"), wire.marker(1, 2))
    assert isinstance(d.of(do.Report)[0].error, SequenceGap)
    assert "marker of checkpoint 1" in d.written(Failed)[0].cause
    assert not d.of(do.TakeSnapshot)


def test_a_marker_below_what_is_due_is_a_repeat(d, wire):
    """Section 4.1 ◆: its checkpoint has been given up, and the abort stands behind it."""
    d.started()
    d.append(wire.frame(0, b"a"), wire.marker(1, 0), wire.frame(1, b"b"))
    assert d.handled == [b"a", b"b"]
    assert not d.of(do.TakeSnapshot)
    assert d.core.dropped[Dropped.REPEATED] == 1


def test_an_unreadable_record_is_counted_and_kept_out(d, wire):
    """Section 11: garbage or foreign records."""
    d.started()
    d.append(wire.frame(0, b"a"), ValueError(), wire.frame(1, b"b"))
    assert d.handled == [b"a", b"b"]
    assert d.core.dropped["unreadable"] == 1


def test_an_unreadable_frame_shows_as_a_gap_at_the_next_one(d, wire):
    """Section 11: never a skipped event."""
    d.started()
    d.append(EventFrame(1, 50, 0, 3, b"\1\0\0\0", b"a"))
    assert d.core.dropped["unreadable"] == 1
    d.append(wire.frame(3, b"d"))
    assert d.core.phase is Phase.WAITING
    assert d.handled == []


def test_a_record_read_before_is_not_read_again(d, wire):
    d.started()
    d.append(wire.frame(0, b"a"))
    d.feed(on.RecordRead(1, d.log[1]))
    assert d.handled == [b"a"]


def test_an_empty_frame_is_nothing_to_handle(d, wire):
    d.started()
    d.fresh().append(wire.frame(0))
    assert d.effects == []


def test_what_stands_in_a_range_is_not_handled_a_second_time_from_the_event_position(d, wire):
    """Section 5.3: the ack's position lies before the ranges, and a range may be of Start's own epoch."""
    d.log = [wire.frame(0, b"a"), wire.frame(1, b"b"), wire.frame(2, b"c")]
    d.hello()
    d.append(wire.start(event_position=0, event_ranges=(Segment(0, 2, 1, 0, 50),)))
    assert d.handled == [b"a", b"b", b"c"]
    assert d.core.phase is Phase.RUNNING
