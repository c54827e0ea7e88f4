"""Snapshots at the first barrier or marker, or once an alignment has taken too long: protocol, section 9."""

from __future__ import annotations

from itertools import permutations

import pytest

from penstock.schemas.acks import CheckpointAck, CheckpointDecline, SnapshotTaken
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.state import OPEN_END, Segment
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.phases import Phase

from .conftest import OVERDUE_S

A, B = "up/0", "up/1"


def test_an_unaligned_snapshot_is_taken_at_the_first_barrier_and_blocks_nothing(eager, a, b):
    eager.receive("up", a.frame(b"a1"), b.frame(b"b1"))
    eager.fresh().receive("up", a.barrier(1), a.frame(b"a2"), b.frame(b"b2"))
    assert eager.names() == ["TakeSnapshot", "Barrier", "SnapshotTaken", "HandleRecords", "HandleRecords"]
    assert eager.in_state[1] == {b"a1", b"b1"}
    assert eager.records == [b"a1", b"b1", b"a2", b"b2"]


def test_an_unaligned_snapshot_is_taken_at_the_marker_where_that_comes_first(eager, wire, a, b):
    eager.append(wire.frame(0, b"e1"), wire.marker(1, 1), wire.frame(1, b"e2"))
    assert eager.snapshots == [1]
    assert eager.in_state[1] == {b"e1"}
    assert eager.handled == [b"e1", b"e2"]
    eager.receive("up", a.frame(b"a1"), a.barrier(1), b.barrier(1))
    ack = eager.ack()
    assert (ack.event_position, ack.event_ranges, ack.handled_through) == (3, (), 1)
    assert eager.segments(A) == [(0, 1, 30), (2, OPEN_END, -1)]
    assert eager.segments(B) == [(0, 2, 31), (3, OPEN_END, -1)]


def test_what_stands_before_each_slower_barrier_belongs_to_the_checkpoint_as_a_range(eager, wire, a, b):
    eager.append(wire.frame(0, b"e1"))
    eager.receive("up", b.frame(b"b1"), a.barrier(1), b.frame(b"b2"), a.frame(b"a2"), b.barrier(1))
    eager.append(wire.frame(1, b"e2", b"e3"))
    assert not eager.written(CheckpointAck)
    eager.append(wire.marker(1, 3), wire.frame(3, b"e4"))
    ack = eager.ack()
    assert eager.in_state[1] == {b"e1", b"b1"}
    assert eager.segments(A) == [(2, OPEN_END, -1)]
    assert eager.segments(B) == [(1, 4, 31), (5, OPEN_END, -1)]
    assert [p.sequence for p in ack.data_positions] == [1, 1]
    assert (ack.event_ranges, ack.event_position) == ((Segment(2, 3, 1, 0, 50),), 4)
    assert ack.handled_through == 1  # at the snapshot


@pytest.mark.parametrize("order", list(permutations([A, B, "marker"])))
def test_the_unaligned_ack_follows_when_all_have_delivered_and_never_before(eager, wire, a, b, order):
    for delivery in order:
        assert not eager.written(CheckpointAck)
        if delivery == "marker":
            eager.append(wire.marker(1, 0))
        else:
            eager.receive("up", {A: a, B: b}[delivery].barrier(1))
    assert eager.snapshots == [1]
    assert len(eager.written(CheckpointAck)) == 1
    assert [s.checkpoint_id for s in eager.written(SnapshotTaken)] == [1]


def test_nothing_in_flight_is_copied(eager, wire, a, b):
    """The state is the user's, and ranges are offsets."""
    eager.receive("up", a.barrier(1), b.frame(b"x" * 100_000), b.barrier(1))
    eager.append(wire.frame(0, b"x" * 100_000), wire.marker(1, 1))
    ack = eager.ack()
    assert ack.state.inline == b"state"
    assert len(repr(ack)) < 2_000


def test_a_restore_of_an_unaligned_checkpoint_handles_its_ranges_and_nothing_else_of_that_generation(
    eager, wire, a, b, upstream
):
    eager.receive("up", b.frame(b"b1"), a.barrier(1), b.frame(b"b2"), a.frame(b"void"), b.barrier(1), b.frame(b"void"))
    eager.append(wire.frame(0, b"e1"), wire.marker(1, 1), wire.frame(1, b"e2"))
    eager.restarted()
    assert eager.records == [b"b2"]
    assert eager.handled == [b"e1", b"e2"]
    a, b = upstream(A, attempt=40, generation=1), upstream(B, attempt=41, generation=1)
    eager.receive("up", a.frame(b"a3"), b.frame(b"b3"))
    assert eager.records == [b"b2", b"a3", b"b3"]


def test_a_range_of_events_under_policy_reset_is_restored_as_its_attempt_was_sent_them(driver, wire, a):
    reset = FailoverPolicy.RESET
    d = driver(A, unaligned=True).started(policy=reset)
    d.append(wire.frame(0, b"e1"))
    d.receive("up", a.barrier(1))
    d.append(wire.frame(0, b"another's", attempt=40), wire.frame(1, b"e2"), wire.marker(1, 2))
    d.append(wire.frame(2, b"void"))
    d.restarted(policy=reset)
    d.append(wire.frame(0, b"e3", attempt=60))
    assert d.handled == [b"e2", b"e3"]
    assert not d.failed


def test_a_range_of_events_may_begin_below_the_own_start(driver, wire, a):
    """Section 5.3: under replay an attempt first reads what the attempts before it were sent."""
    d = driver(A, unaligned=True)
    d.log = [wire.frame(0, b"e1"), wire.frame(1, b"e2")]
    d.hello()
    d.slow = {"events"}
    d.log.append(wire.start(data_positions=(wire.at(A),)))
    d.feed(on.RecordRead(2, d.log[2]))
    d.feed(on.RecordRead(0, d.log[0]))
    d.receive("up", a.barrier(1))
    assert d.in_state[1] == {b"e1"}
    d.catch_up()
    d.append(wire.marker(1, 2))
    assert d.ack().event_ranges == (Segment(1, 3, 1, 0, 50),)
    d.restarted()
    assert d.handled == [b"e2"]
    assert not d.failed


@pytest.mark.parametrize("order", ["upload barrier", "barrier upload"])
def test_an_unaligned_ack_waits_for_the_upload_and_for_every_barrier(driver, wire, a, order):
    d = driver(A, unaligned=True, inline_state_max=0).started()
    d.append(wire.marker(1, 0))
    (store,) = d.of(do.StoreState)
    for what in order.split():
        assert not d.written(CheckpointAck)
        if what == "upload":
            d.feed(on.StateStored(1, store.location))
        else:
            d.receive("up", a.barrier(1))
    assert len(d.written(CheckpointAck)) == 1


def test_an_unaligned_checkpoint_aborted_while_channels_are_behind_is_never_acked(driver, wire, a, b):
    d = driver(f"{A} {B}", unaligned=True, inline_state_max=0).started()
    d.receive("up", a.barrier(1))
    (store,) = d.of(do.StoreState)
    d.append(wire.marker(1, 0), wire.aborted(1))
    assert do.DropState(store.location) in d.effects
    assert d.of(do.NotifyAborted) == [do.NotifyAborted(1, "declined")]
    d.receive("up", b.barrier(1))
    d.feed(on.StateStored(1, store.location))
    assert d.snapshots == [1]
    assert not d.written(CheckpointAck, CheckpointDecline)


def test_an_aborted_checkpoint_with_an_inline_state_deletes_nothing(eager, wire, a):
    eager.append(wire.marker(1, 0))
    eager.receive("up", a.barrier(1))
    eager.fresh().append(wire.aborted(1))
    assert eager.of(do.NotifyAborted) == [do.NotifyAborted(1, "declined")]
    assert eager.of(do.DropState) == []


def test_a_newer_barrier_gives_up_an_unaligned_checkpoint_that_this_channel_still_owes(driver, wire, a, b):
    d = driver(f"{A} {B}", unaligned=True, inline_state_max=0).started()
    d.append(wire.marker(1, 0))
    d.receive("up", a.barrier(1))
    (store,) = d.of(do.StoreState)
    d.fresh().receive("up", b.barrier(2))
    assert d.declined == [1]
    assert do.DropState(store.location) in d.effects
    assert d.snapshots == [2]


def test_a_newer_barrier_that_is_not_the_first_of_its_checkpoint_gives_the_older_one_up_too(eager, wire, a, b):
    """Section 9: a newer id on a channel that has not delivered n cancels n's alignment."""
    eager.receive("up", b.barrier(1))
    eager.append(wire.marker(1, 0))
    eager.receive("up", b.barrier(2))  # begins 2; only a still owes 1
    assert eager.declined == []
    eager.receive("up", a.barrier(2))  # so 1 never comes
    assert eager.declined == [1]


def ends_between_snapshot_and_marker(d, wire, a, b) -> None:
    d.receive("up", a.barrier(1), b.barrier(1))
    assert d.in_state[1] == set()
    d.append(wire.frame(0, b"e1"))
    d.receive("up", a.end(), b.end())
    assert d.core.phase is Phase.FINISHED
    d.append(wire.frame(1, b"behind the end"), wire.marker(1, 2))
    assert not d.ack().finished  # the snapshot was taken before


def test_a_subtask_that_ends_between_its_snapshot_and_the_marker_acks_all_events_before_the_marker(eager, wire, a, b):
    """G3: sent before the cut, so in the snapshot, as state or as a range; the end itself is not in it."""
    ends_between_snapshot_and_marker(eager, wire, a, b)
    ack = eager.ack()
    assert ack.event_ranges == (Segment(1, 3, 1, 0, 50),)
    assert ack.event_position == 4


def test_a_restore_of_a_snapshot_taken_before_the_end_handles_the_events_sent_before_its_marker(eager, wire, a, b):
    ends_between_snapshot_and_marker(eager, wire, a, b)
    eager.restarted()
    assert eager.handled == [b"e1", b"behind the end"]


# ---- alignment timeout


def test_an_overdue_alignment_turns_unaligned(two, wire, a, b):
    two.append(wire.frame(0, b"e1"), wire.marker(1, 1), wire.frame(1, b"e2"))
    two.receive("up", a.frame(b"a1"), a.barrier(1), a.frame(b"a2"), b.frame(b"b1"))
    assert not two.snapshots
    two.pass_time(OVERDUE_S)
    two.catch_up()
    assert two.in_state[1] == {b"e1", b"a1", b"b1"}
    assert (two.records, two.handled) == ([b"a1", b"b1", b"a2"], [b"e1", b"e2"])
    assert two.written(SnapshotTaken)
    two.receive("up", b.frame(b"b2"))
    assert not two.written(CheckpointAck)
    two.receive("up", b.barrier(1))
    ack = two.ack()
    assert two.segments(A) == [(2, OPEN_END, -1)]
    assert two.segments(B) == [(4, 5, 31), (6, OPEN_END, -1)]
    assert (ack.event_position, ack.event_ranges, ack.handled_through) == (3, (), 1)


def test_an_overdue_alignment_whose_marker_is_missing_takes_events_up_to_it_as_a_range(two, wire, a, b):
    two.append(wire.frame(0, b"e1"))
    two.receive("up", a.barrier(1), b.barrier(1), b.frame(b"b1"))
    two.pass_time(OVERDUE_S)
    two.catch_up()
    assert two.in_state[1] == {b"e1"}
    two.append(wire.frame(1, b"e2"), wire.marker(1, 2))
    ack = two.ack()
    assert (ack.event_position, ack.event_ranges, ack.handled_through) == (4, (Segment(2, 3, 1, 0, 50),), 1)
    assert two.records == [b"b1"]


def test_an_overdue_alignment_unpauses_what_was_blocked(three, wire, a, b, side):
    three.receive("up", a.barrier(1), b.barrier(1), a.frame(b"a1"))
    assert three.data_at["up"] is None
    three.pass_time(OVERDUE_S)
    three.catch_up()
    assert three.records == [b"a1"]


@pytest.mark.parametrize("late", ["snapshot taken", "aborted", "after a reset"])
def test_an_alignment_that_is_over_is_not_overdue(two, wire, a, b, late):
    two.append(wire.marker(1, 0))
    assert two.core.deadline() == two.now + OVERDUE_S
    match late:
        case "snapshot taken":
            two.receive("up", a.barrier(1), b.barrier(1))
        case "aborted":
            two.append(wire.aborted(1))
        case "after a reset":
            two.append(wire.reset())
    taken = two.snapshots
    assert two.pass_time(OVERDUE_S) == []
    assert two.snapshots == taken and two.core.aligning is None


def test_each_alignment_has_its_own_time(two, wire):
    two.append(wire.marker(1, 0))
    assert two.pass_time(OVERDUE_S - 1) == []
    two.append(wire.aborted(1), wire.marker(2, 0))
    assert two.pass_time(1) == []
    assert two.core.aligning == 2
    two.pass_time(OVERDUE_S - 1)
    assert two.core.aligning is None and two.snapshots == [2]


def test_a_savepoint_is_never_overdue(two, wire, a, b):
    two.receive("up", a.barrier(1, savepoint=True))
    assert two.core.deadline() is None
    assert two.pass_time(OVERDUE_S) == []
    assert two.core.aligning == 1
