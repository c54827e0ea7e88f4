"""When a subtask with inputs takes its snapshot, and what belongs to it: protocol, section 9."""

from __future__ import annotations

from itertools import permutations

import pytest

from penstock.schemas.acks import CheckpointAck, SnapshotTaken
from penstock.schemas.state import OPEN_END
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.effects import Departure
from penstock.subtask_client.protocol.phases import Phase

A, B, SIDE = "up/0", "up/1", "side/0"

# ---- aligned


@pytest.mark.parametrize("order", list(permutations(["marker", A, B, SIDE])))
def test_the_snapshot_is_taken_when_the_last_channel_has_delivered(three, wire, a, b, side, order):
    writers = {A: a, B: b, SIDE: side}
    for delivery in order:
        assert not three.snapshots
        if delivery == "marker":
            three.append(wire.marker(1, 0))
        else:
            three.receive(delivery.partition("/")[0], writers[delivery].barrier(1))
    assert three.snapshots == [1]
    assert len(three.written(CheckpointAck)) == 1
    assert not three.written(SnapshotTaken)
    assert three.core.aligning is None


def test_a_blocked_channel_is_skipped_and_read_again_from_its_lowest_skipped_offset(two, wire, a, b):
    two.append(wire.marker(1, 0))
    two.receive("up", a.frame(b"a1"), a.barrier(1), b.frame(b"b1"), a.frame(b"a2"), b.frame(b"b2"), a.frame(b"a3"))
    assert two.records == [b"a1", b"b1", b"b2"]
    assert two.core.dropped["blocked"] == 2
    two.fresh().receive("up", b.barrier(1))
    assert two.of(do.SeekData) == [do.SeekData("up", 3)]
    assert two.in_state[1] == {b"a1", b"b1", b"b2"}
    assert two.records == [b"a1", b"b1", b"b2", b"a2", b"a3"]


def test_nothing_is_handled_twice_after_the_seek_back(two, wire, a, b):
    """What other channels wrote behind the lowest skipped offset is read again, and dropped by their positions."""
    two.append(wire.marker(1, 0))
    two.receive("up", a.barrier(1), a.frame(b"a1"), b.frame(b"b1"), b.frame(b"b2"), b.barrier(1), b.frame(b"b3"))
    assert sorted(two.records) == [b"a1", b"b1", b"b2", b"b3"]
    assert two.core.dropped["already_read"] == 3  # b1, b2 and the barrier
    assert two.segments(A) == [(1, OPEN_END, -1)]
    assert two.segments(B) == [(5, OPEN_END, -1)]


def test_the_seek_back_starts_at_the_lowest_of_several_skipped_channels(driver, wire, a, b, upstream):
    """The first skipped record is of one channel, the last one of another; a third keeps the partition open."""
    c = upstream("up/2", attempt=32)
    d = driver("up/0 up/1 up/2", "down/0").started()
    d.append(wire.marker(1, 0))
    d.receive("up", a.barrier(1), b.barrier(1), b.frame(b"b1"), c.frame(b"c1"), a.frame(b"a1"), b.frame(b"b2"))
    assert d.records == [b"c1"]
    d.fresh().receive("up", c.barrier(1))
    assert d.of(do.SeekData) == [do.SeekData("up", 2)]
    assert d.records == [b"c1", b"b1", b"a1", b"b2"]


def test_what_does_not_count_is_not_sought_back_to(two, wire, a, b, upstream):
    """A frame of a generation that is over lies below every position, and the log may be truncated above it."""
    zombie = upstream(A, attempt=29, epoch=0)
    two.append(wire.marker(1, 0))
    two.receive("up", a.barrier(1), zombie.frame(b"void"), b.frame(b"b1"), a.frame(b"a1"))
    two.fresh().receive("up", b.barrier(1))
    assert two.of(do.SeekData) == [do.SeekData("up", 3)]
    assert two.records == [b"b1", b"a1"]


def test_the_events_partition_is_one_more_channel_that_is_blocked_and_read_again(two, wire, a, b):
    two.append(wire.frame(0, b"e1"), wire.marker(1, 1), wire.frame(1, b"e2"), wire.frame(2, b"e3"))
    assert two.handled == [b"e1"]
    two.fresh().receive("up", a.frame(b"a1"), a.barrier(1), b.barrier(1))
    assert two.of(do.Seek) == [do.Seek(3)]
    assert two.in_state[1] == {b"e1", b"a1"}
    assert two.handled == [b"e1", b"e2", b"e3"]
    ack = two.ack()
    assert (ack.event_position, ack.event_ranges, ack.handled_through) == (3, (), 1)


def test_events_are_handled_until_the_marker_while_channels_are_blocked(two, wire, a):
    two.receive("up", a.barrier(1))
    two.append(wire.frame(0, b"e1"))
    assert two.handled == [b"e1"]


def test_a_restore_of_an_aligned_checkpoint_handles_what_it_had_skipped(two, wire, a, b, upstream):
    two.append(wire.marker(1, 0))
    two.receive("up", a.barrier(1), b.frame(b"b1"), b.barrier(1))
    two.restarted()
    a, b = upstream(A, attempt=40, generation=1), upstream(B, attempt=41, generation=1)
    two.receive("up", b.frame(b"b2"), a.frame(b"a2"))
    assert two.records == [b"b2", b"a2"]


def test_notices_that_stand_behind_the_marker_are_read_again_and_told_then(two, wire, a, b):
    two.append(wire.marker(1, 0))
    two.receive("up", a.barrier(1), b.barrier(1))
    two.append(wire.marker(2, 0), wire.completed(1))
    assert not two.of(do.NotifyCompleted)
    two.receive("up", a.barrier(2), b.barrier(2))
    assert two.of(do.NotifyCompleted) == [do.NotifyCompleted(1)]


def test_a_marker_behind_a_marker_counts_once_the_first_ones_snapshot_is_taken(two, wire, a, b):
    two.append(wire.marker(1, 0), wire.marker(2, 0))
    two.receive("up", a.barrier(1), a.barrier(2), b.barrier(1), b.barrier(2))
    assert two.snapshots == [1, 2]
    assert not two.declined


@pytest.mark.parametrize("record", ["start", "reset", "aborted", "stop"])
def test_start_reset_abort_and_stop_are_obeyed_while_the_events_partition_is_blocked(two, wire, a, record):
    """Section 9 ◆."""
    two.append(wire.marker(1, 0), wire.frame(0, b"e1"))
    two.receive("up", a.barrier(1), a.frame(b"a1"))
    two.fresh()
    match record:
        case "start":
            two.append(wire.start(generation=2, event_position=2, data_positions=(wire.at(A), wire.at(B))))
            assert two.core.running.start.generation == 2
            assert two.handled == [b"e1"]  # by the second Start's position
        case "reset":
            two.append(wire.reset())
            assert two.core.phase is Phase.WAITING
            assert two.data_at["up"] is None
        case "aborted":
            two.append(wire.aborted(1))
            assert (two.handled, two.records) == ([b"e1"], [b"a1"])
            assert two.core.aligning is None
        case "stop":
            two.append(wire.stop())
            assert two.of(do.Leave) == [do.Leave(Departure.STOPPED, "because")]
            assert two.data_at["up"] is None


def test_a_superseding_start_is_obeyed_while_the_events_partition_is_blocked(two, wire):
    two.append(wire.marker(1, 0), wire.start(attempt=99, nonce="another"))
    assert two.of(do.Leave)[0].departure is Departure.SUPERSEDED


def test_an_abort_obeyed_while_blocked_and_read_again_behind_the_seek_is_harmless(two, wire, a, b):
    two.append(wire.marker(1, 0), wire.frame(0, b"e1"), wire.aborted(1), wire.frame(1, b"e2"))
    assert two.of(do.Seek)[-1] == do.Seek(2)
    assert two.handled == [b"e1", b"e2"]
    assert two.core.dropped["stale_notice"] == 2
    assert not two.of(do.NotifyAborted)  # no snapshot was asked for
    two.append(wire.marker(2, 2))
    two.receive("up", a.barrier(2), b.barrier(2))
    assert two.snapshots == [2]


def test_an_abort_of_another_checkpoint_told_while_blocked_is_told_once(two, wire, a, b):
    two.append(wire.marker(1, 0))
    two.receive("up", a.barrier(1), b.barrier(1))
    two.append(wire.marker(2, 0), wire.frame(0, b"e1"), wire.aborted(1))
    assert two.of(do.NotifyAborted) == [do.NotifyAborted(1, "declined")]
    assert two.core.aligning == 2
    two.receive("up", a.barrier(2), b.barrier(2))
    assert two.of(do.NotifyAborted) == [do.NotifyAborted(1, "declined")]
    assert two.handled == [b"e1"]


def test_heartbeats_say_so_while_the_events_partition_is_blocked_and_only_then(two, wire, a, b):
    """Section 6: the event-ack timeout stands still meanwhile."""

    def aligning():
        (beat,) = two.core.handle(on.HeartbeatDue(True, "step", 0), two.now)
        two.core.handle(on.HeartbeatSettled(), two.now)
        return beat.record.aligning

    two.receive("up", a.barrier(1))
    assert not aligning()  # its events are handled
    two.append(wire.marker(1, 0))
    assert aligning()
    two.receive("up", b.barrier(1))
    assert not aligning()


def test_a_partition_all_of_whose_channels_are_blocked_is_paused_and_read_on_behind(three, wire, a, b, side):
    three.receive("up", a.barrier(1), a.frame(b"a1"), b.frame(b"b1"))
    assert not three.of(do.PauseData)
    three.receive("up", b.barrier(1), b.frame(b"b2"))
    assert three.of(do.PauseData) == [do.PauseData("up")]
    three.receive("side", side.frame(b"s1"))
    assert three.records == [b"b1", b"s1"]
    three.append(wire.marker(1, 0))
    three.fresh().receive("side", side.barrier(1))
    assert three.of(do.SeekData) == [do.SeekData("up", 1)]
    assert three.records == [b"b1", b"s1", b"a1", b"b2"]


def test_a_paused_partition_that_skipped_nothing_goes_on_behind_its_last_barrier(three, wire, a, b, side):
    three.receive("up", a.barrier(1), b.barrier(1), a.frame(b"a1"))
    assert three.data_at["up"] is None
    three.append(wire.marker(1, 0))
    three.fresh().receive("side", side.barrier(1))
    assert three.of(do.SeekData) == [do.SeekData("up", 2)]
    assert three.records == [b"a1"]


def test_a_record_fetched_before_its_partition_was_paused_is_handled_once(three, wire, a, b, side):
    three.receive("up", a.barrier(1), b.barrier(1), late := a.frame(b"a1"))
    three.feed(on.DataRead("up", 2, late))
    assert three.records == []
    three.append(wire.marker(1, 0))
    three.receive("side", side.barrier(1))
    assert three.records == [b"a1"]


def test_an_ended_channel_does_not_keep_its_partition_from_being_paused(three, a, b):
    three.receive("up", b.end(), a.barrier(1))
    assert three.of(do.PauseData) == [do.PauseData("up")]


def test_a_partition_whose_last_open_channel_ends_is_paused_too(three, a, b):
    three.receive("up", a.barrier(1), b.end())
    assert three.of(do.PauseData) == [do.PauseData("up")]


def test_savepoints_are_aligned_also_where_checkpoints_are_not(eager, wire, a, b):
    eager.receive("up", a.barrier(1, savepoint=True), a.frame(b"a1"), b.frame(b"b1"))
    eager.append(wire.marker(1, 0, savepoint=True))
    assert (eager.records, eager.snapshots) == ([b"b1"], [])
    eager.receive("up", b.barrier(1, savepoint=True))
    assert eager.snapshots == [1]
    assert eager.segments(A) == [(1, OPEN_END, -1)]
    assert eager.records == [b"b1", b"a1"]


# ---- ids: newer ones, aborted ones


@pytest.mark.parametrize("newer", ["barrier", "marker"])
def test_a_newer_checkpoint_on_a_channel_that_has_not_delivered_the_older_gives_that_up(two, wire, a, b, newer):
    two.append(*([] if newer == "marker" else [wire.marker(1, 0), wire.frame(0, b"e1")]))
    two.receive("up", a.barrier(1), a.frame(b"a1"), b.frame(b"b1"))
    assert two.records == [b"b1"]
    if newer == "marker":
        two.append(wire.marker(2, 0))
    else:
        two.receive("up", b.barrier(2))
        assert two.handled == [b"e1"]  # the events partition is free again
    assert two.declined == [1]
    assert two.records == [b"b1", b"a1"]
    assert two.core.aligning == 2
    two.receive("up", a.barrier(2))
    if newer == "marker":
        two.receive("up", b.barrier(2))
    else:
        two.append(wire.marker(2, 1))
    assert two.snapshots == [2]
    assert two.declined == [1]


def test_a_barrier_below_the_one_aligned_for_is_ignored(two, wire, a, b):
    two.receive("up", a.barrier(2), b.barrier(1), b.frame(b"b1"))
    two.append(wire.marker(1, 0), wire.frame(0, b"e1"), wire.marker(2, 1))
    assert (two.records, two.handled) == ([b"b1"], [b"e1"])
    assert two.core.dropped["dead_marker"] == 2
    two.receive("up", b.barrier(2))
    assert two.snapshots == [2]


def test_barriers_below_the_starts_next_checkpoint_are_dead(driver, wire, a, b):
    d = driver(f"{A} {B}").started(next_checkpoint_id=5)
    d.receive("up", a.barrier(4), a.frame(b"a1"), b.barrier(4))
    d.append(wire.marker(4, 0))
    assert (d.records, d.snapshots, d.core.aligning) == ([b"a1"], [], None)


@pytest.mark.parametrize("aborted", ["before any barrier", "amid the alignment"])
def test_later_barriers_of_an_aborted_checkpoint_are_ignored(two, wire, a, b, aborted):
    if aborted == "before any barrier":
        two.append(wire.marker(1, 0), wire.aborted(1))
        two.receive("up", a.barrier(1))
    else:
        two.receive("up", a.barrier(1))
        two.append(wire.marker(1, 0), wire.aborted(1))
    two.receive("up", a.frame(b"a1"), b.barrier(1), b.frame(b"b1"))
    assert (two.records, two.snapshots, two.core.aligning) == ([b"a1", b"b1"], [], None)
    assert not two.declined
    two.append(wire.marker(2, 0))
    two.receive("up", a.barrier(2), b.barrier(2))
    assert two.snapshots == [2]


# ---- senders that finish


@pytest.mark.parametrize("when", ["before", "amid", "last"])
@pytest.mark.parametrize("kind", ["two", "eager"])
def test_a_finished_sender_counts_as_having_delivered(request, wire, a, b, when, kind):
    d = request.getfixturevalue(kind)
    ended = [b.frame(b"b1"), b.end()]
    if when == "before":
        d.receive("up", *ended)
    d.receive("up", a.barrier(1), a.frame(b"a1"))
    if when == "amid":
        d.receive("up", *ended)
    d.append(wire.marker(1, 0))
    if when == "last":
        assert not d.written(CheckpointAck)
        d.receive("up", *ended)
    assert d.snapshots == [1]
    assert sorted(d.records) == [b"a1", b"b1"]
    late = kind == "eager" and when != "before"
    assert d.segments(B) == ([(0, 4, 31)] if late else [])
    d.receive("up", a.barrier(2))
    d.append(wire.marker(2, 0))
    assert d.snapshots == [1, 2]
    assert d.segments(B) == []


def test_an_end_behind_a_barrier_is_skipped_with_everything_else_and_read_after_the_snapshot(two, wire, a, b):
    two.receive("up", a.barrier(1), a.frame(b"a1"), a.end(), b.frame(b"b1"))
    assert two.core.running.channels.open == {("up", 0), ("up", 1)}
    two.append(wire.marker(1, 0))
    two.receive("up", b.barrier(1))
    assert two.segments(A) == [(1, OPEN_END, -1)]
    assert two.records == [b"b1", b"a1"]
    assert two.core.running.channels.open == {("up", 1)}


def test_a_snapshot_that_the_last_end_completes_is_taken_before_the_user_is_told_and_says_so(two, wire, a, b):
    """Section 9: what is emitted then stands behind the barrier, and again behind a restore."""
    two.append(wire.marker(1, 0))
    two.receive("up", a.end())
    two.user[do.EndInputs] = lambda call: two.emit("down/0", b"total") or on.EndInputsReturned()
    two.fresh().receive("up", b.end())
    assert two.names() == [
        "TakeSnapshot", "Barrier", "CheckpointAck", "EndInputs", "RecordFrame", "ChannelEnded", "Finished",
    ]  # fmt: skip
    assert (two.ack().finished, two.ack().inputs_ended) == (False, False)
    two.restarted()
    assert len(two.of(do.EndInputs)) == 2


def test_user_code_that_raises_at_the_last_end_leaves_the_checkpoint_before_it_alone(two, wire, a, b):
    two.append(wire.marker(1, 0))
    two.user[do.EndInputs] = lambda call: on.UserFailed("boom")
    two.receive("up", a.end(), b.end())
    assert (two.failed, two.ack().checkpoint_id) == (["boom"], 1)


def test_a_finished_subtask_with_inputs_needs_the_marker_alone(two, wire, a, b):
    two.receive("up", a.end(), b.end())
    assert two.core.phase is Phase.FINISHED
    two.append(wire.marker(1, 0))
    assert two.ack().finished
    assert two.segments(A) == two.segments(B) == []
