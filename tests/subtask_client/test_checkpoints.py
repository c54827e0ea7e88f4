"""The subtask's part in checkpoints: protocol, sections 5.3, 7 and 9's last sentence."""

from __future__ import annotations

import pytest

from penstock.schemas.acks import (
    CheckpointAck,
    CheckpointDecline,
    Failed,
    Finished,
    OperatorEventFrame,
    SnapshotTaken,
)
from penstock.schemas.state import StateHandle
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.effects import Departure
from penstock.subtask_client.protocol.phases import Phase


def test_the_ack_says_all_that_a_restore_needs(d, wire):
    """Section 7.6."""
    d.started(generation=4)
    d.core.send(b"up")
    d.append(wire.frame(0, b"a", b"b"), wire.marker(1, 2))
    ack = d.ack()
    sender = ack.sender
    assert (sender.subtask_id, sender.attempt, sender.full_generation) == (("reader", 0), 50, (1, 4))
    assert ack.checkpoint_id == 1
    assert ack.state == StateHandle(5, inline=b"state")
    assert ack.event_position == 3  # behind the marker, which stands at offset 2
    assert ack.event_ranges == ()
    assert ack.handled_through == 2
    assert ack.sent_sequence == 1
    assert ack.data_positions == ()
    assert not ack.finished


@pytest.mark.parametrize(("state", "handle"), [(None, None), (b"", StateHandle(0, inline=b""))])
def test_missing_and_empty_state_differ(d, wire, state, handle):
    """Section 5.3."""
    d.started()
    d.state = state
    d.append(wire.marker(1, 0))
    assert d.ack().state == handle


def test_markers_below_next_checkpoint_id_are_dead(d, wire):
    """Section 5.3."""
    d.started(next_checkpoint_id=5)
    d.append(wire.marker(4, 0), wire.marker(5, 0))
    assert [call.checkpoint_id for call in d.of(do.TakeSnapshot)] == [5]
    assert d.core.dropped["dead_marker"] == 1


def test_a_marker_not_above_the_highest_begun_id_is_skipped(d, wire):
    """Section 7.5."""
    d.started()
    d.append(wire.marker(3, 0), wire.marker(3, 0), wire.marker(2, 0), wire.marker(4, 0))
    assert [call.checkpoint_id for call in d.of(do.TakeSnapshot)] == [3, 4]


def test_a_marker_of_an_id_already_aborted_is_ignored(d, wire):
    d.started()
    d.append(wire.aborted(2), wire.marker(2, 0), wire.marker(3, 0))
    assert [call.checkpoint_id for call in d.of(do.TakeSnapshot)] == [3]
    assert not d.of(do.NotifyAborted)


def test_a_marker_of_another_epoch_than_starts_is_no_marker(d, wire):
    d.started()
    d.append(wire.marker(1, 0, epoch=2))
    assert not d.of(do.TakeSnapshot)


def test_events_sent_in_snapshot_state_belong_to_that_checkpoint(d, wire):
    """Section 7.7; the sent-sequence is taken after snapshot_state ran."""
    d.started()

    def snapshot(call):
        d.core.send(b"in")
        return on.SnapshotReturned(call.checkpoint_id, b"")

    d.user[do.TakeSnapshot] = snapshot
    d.core.send(b"before")
    d.fresh().append(wire.marker(7, 0))
    d.core.send(b"after")
    d.turn()
    assert d.names() == ["TakeSnapshot", "OperatorEventFrame", "CheckpointAck", "OperatorEventFrame"]
    first, second = d.written(OperatorEventFrame)
    assert d.ack().sent_sequence == 2
    assert (first.sequence, first.count, first.belongs_to) == (0, 2, 1)
    assert (second.sequence, second.count, second.belongs_to) == (2, 1, 8)


def test_a_large_state_is_stored_first_and_snapshot_taken_goes_ahead(d, wire, driver):
    """Section 7.6."""
    d = driver(inline_state_max=4)
    d.started()
    d.core.send(b"up")
    d.append(wire.frame(0, b"a"))
    d.fresh().append(wire.marker(1, 1), wire.frame(1, b"b"))
    assert d.names() == ["TakeSnapshot", "OperatorEventFrame", "SnapshotTaken", "StoreState", "HandleEvents"]
    (store,) = d.of(do.StoreState)
    assert store.data == b"state"
    for part in ("checkpoint-1/", "reader-0", "epoch-1", "attempt-50"):
        assert part in store.location
    d.core.send(b"after the snapshot")
    d.feed(on.StateStored(1, store.location, 17, checksum=99))
    ack = d.ack()
    assert ack.state == StateHandle(5, location=store.location, checksum=99)
    assert (ack.handled_through, ack.sent_sequence, ack.event_position, ack.duration_ms) == (1, 1, 3, 17)


def test_frames_leave_before_the_ack_of_a_stored_state(d, wire, driver):
    d = driver(inline_state_max=0)
    d.started()
    d.append(wire.marker(1, 0))
    (store,) = d.of(do.StoreState)
    d.core.send(b"up")
    d.fresh().feed(on.StateStored(1, store.location))
    assert d.names() == ["OperatorEventFrame", "CheckpointAck"]


def test_a_state_that_cannot_be_stored_declines_the_checkpoint(d, wire, driver):
    d = driver(inline_state_max=0)
    d.started()
    d.append(wire.marker(1, 0))
    d.feed(on.StateRefused(1, d.of(do.StoreState)[0].location, "disk full"))
    (decline,) = d.written(CheckpointDecline)
    assert (decline.checkpoint_id, decline.reason) == (1, "disk full")
    assert d.core.phase is Phase.RUNNING
    d.append(wire.marker(2, 0))
    assert len(d.of(do.TakeSnapshot)) == 2


@pytest.mark.parametrize("ends", ["reset", "failure", "second start", "aborted", "superseded", "leaving"])
def test_whatever_ends_the_attempt_or_the_checkpoint_drops_its_upload(d, wire, driver, ends):
    """Sections 5.3 and 7.8; a blob that lands later is deleted."""
    d = driver(inline_state_max=0)
    d.started()
    d.append(wire.marker(1, 0))
    location = d.of(do.StoreState)[0].location
    d.fresh()
    match ends:
        case "reset":
            d.append(wire.reset())
        case "failure":
            d.feed(on.UserFailed("boom"))
        case "second start":
            d.append(wire.start(generation=3))
        case "aborted":
            d.append(wire.aborted(1))
        case "superseded":
            d.append(wire.start(attempt=60, nonce="other"))
        case "leaving":
            d.feed(on.LeaveRequested("shutdown"))
    assert do.DropState(location) in d.effects
    d.fresh().feed(on.StateStored(1, location))
    assert not d.written(CheckpointAck)
    if d.core.phase is not Phase.LEFT:
        assert d.effects == [do.DropState(location)]


def test_several_uploads_at_once_are_acked_each_by_its_id(d, wire, driver):
    """Section 7.1: several may await acks."""
    d = driver(inline_state_max=0)
    d.started()
    d.append(wire.marker(1, 0), wire.frame(0, b"a"), wire.marker(2, 1))
    first, second = d.of(do.StoreState)
    d.feed(on.StateStored(2, second.location))
    d.feed(on.StateStored(1, first.location))
    assert [(a.checkpoint_id, a.handled_through) for a in d.written(CheckpointAck)] == [(2, 1), (1, 0)]
    assert [s.checkpoint_id for s in d.written(SnapshotTaken)] == [1, 2]


def test_snapshot_state_that_raises_fails_the_attempt(d, wire):
    """Section 8."""
    d.started()
    d.core.send(b"up")
    d.user[do.TakeSnapshot] = lambda call: on.UserFailed("snapshot_state(1): boom")
    d.fresh().append(wire.marker(1, 0))
    assert d.names() == [
        "TakeSnapshot", "OperatorEventFrame", "Failed", "CloseUser", "NotePosition", "Seek", "Hello",
    ]  # fmt: skip
    assert d.written(Failed)[0].cause == "snapshot_state(1): boom"


def test_behind_a_stopping_marker_nothing_more_is_handled(d, wire):
    """Section 9: after the marker of a stopping savepoint a subtask handles nothing more."""
    d.started()
    d.append(wire.marker(1, 0, stop=True), wire.frame(0, b"a"), wire.marker(2, 1))
    assert d.handled == []
    assert not d.core.may_poll
    assert d.ack().checkpoint_id == 1
    d.append(wire.completed(1))
    assert d.of(do.NotifyCompleted) == [do.NotifyCompleted(1)]
    d.append(wire.stop())
    assert d.of(do.Leave) == [do.Leave(Departure.STOPPED, "because")]


def test_when_the_stopping_checkpoint_is_aborted_the_work_behind_it_goes_on(d, wire):
    """Section 1, G2 and G6: what was skipped behind the marker was sent, so it is handled."""
    d.started()
    d.append(wire.marker(1, 0, stop=True), wire.frame(0, b"a"), wire.marker(2, 1))
    d.append(wire.aborted(1), wire.frame(1, b"b"))
    assert d.handled == [b"a", b"b"]
    assert [call.checkpoint_id for call in d.of(do.TakeSnapshot)] == [1, 2]
    assert d.of(do.NotifyAborted) == [do.NotifyAborted(1, "declined")]
    assert d.core.may_poll


def test_a_reset_behind_a_stopping_marker_is_obeyed(d, wire):
    d.started()
    d.append(wire.marker(1, 0, stop=True), wire.reset())
    assert d.core.phase is Phase.WAITING


def test_completion_is_told_once_and_only_for_what_this_attempt_has_begun(d, wire):
    """Section 7.7: notices may repeat and may be missed."""
    d.started(next_checkpoint_id=5)
    d.append(wire.marker(5, 0), wire.marker(6, 0), wire.completed(4), wire.completed(7), wire.completed(6))
    d.append(wire.completed(6), wire.completed(5), wire.completed(6, epoch=2))
    assert d.of(do.NotifyCompleted) == [do.NotifyCompleted(6)]
    assert d.core.dropped["stale_notice"] == 5


def test_an_abort_is_told_once_and_only_for_what_this_attempt_has_begun(d, wire):
    d.started(next_checkpoint_id=5)
    d.append(wire.marker(5, 0), wire.marker(6, 0), wire.completed(6), wire.aborted(5), wire.aborted(5), wire.aborted(4))
    assert d.of(do.NotifyAborted) == [do.NotifyAborted(5, "declined")]


def test_a_notice_of_another_epoch_is_none(d, wire):
    d.started(epoch=2)
    d.append(wire.marker(1, 0, epoch=2), wire.completed(1, epoch=1), wire.completed(1, epoch=3))
    assert not d.of(do.NotifyCompleted)


def test_finished_is_written_and_own_work_ends(d, wire):
    """Section 8, a finished instance."""
    d.started()
    d.core.send(b"last")
    d.fresh().feed(on.WorkEnded())
    assert d.names() == ["OperatorEventFrame", "Finished"]
    assert d.written(Finished)[0].sender.attempt == 50
    assert d.core.phase is Phase.FINISHED
    assert not d.core.may_poll


def test_an_attempt_whose_work_is_over_ends_behind_its_own_start(d, wire):
    """Section 8: what its predecessors were sent, some of it settled as handled, is in the state that it ends with."""
    d.log.append(wire.frame(0, b"a"))
    d.hello()
    d.log.append(wire.start())
    d.feed(on.RecordRead(1, d.log[1]))
    d.feed(on.WorkEnded())
    d.feed(on.TurnEnded(dry=False))
    assert (d.core.phase, d.core.may_poll) == (Phase.RUNNING, False)
    d.fresh().append()
    assert (d.names(), d.handled, d.core.phase) == (["HandleEvents", "Finished"], [b"a"], Phase.FINISHED)


def test_a_finished_instance_stays_until_a_completed_checkpoint_contains_its_end(d, wire):
    """Section 8: an earlier checkpoint's completion is not enough."""
    d.started()
    d.append(wire.marker(1, 0))
    d.feed(on.WorkEnded())
    d.append(wire.marker(2, 0), wire.completed(1))
    assert d.core.phase is Phase.FINISHED
    d.append(wire.completed(2))
    assert d.core.phase is Phase.FINISHED
    d.append(wire.marker(3, 0))
    assert [ack.finished for ack in d.written(CheckpointAck)] == [False, False, True]
    d.fresh().append(wire.completed(3))
    assert d.names() == ["NotifyCompleted", "CloseUser", "Leave"]
    assert d.of(do.Leave)[0].departure is Departure.FINISHED


def test_a_finished_instance_whose_notice_raises_has_not_left(d, wire):
    d.started()
    d.feed(on.WorkEnded())
    d.append(wire.marker(1, 0))
    d.user[do.NotifyCompleted] = lambda call: on.UserFailed("boom")
    d.fresh().append(wire.completed(1))
    assert d.names() == ["NotifyCompleted", "Failed", "CloseUser", "NotePosition", "Seek", "Hello"]


def test_a_finished_instance_obeys_reset_and_stop(d, wire):
    """Section 8."""
    d.started()
    d.feed(on.WorkEnded())
    d.append(wire.reset())
    assert d.core.phase is Phase.WAITING
    d.append(wire.start(attempt=60, nonce="nonce-2", generation=1, event_position=2))
    assert d.core.phase is Phase.RUNNING
    d.feed(on.WorkEnded())
    d.append(wire.stop(attempt=60))
    assert d.of(do.Leave)[0].departure is Departure.STOPPED


def test_a_finished_instance_handles_no_event_and_its_ack_stands_before_the_first_it_skipped(d, wire):
    """Section 8: what is sent behind a subtask's end fails with TaskFinished, so nobody may have handled it."""
    d.started()
    d.append(wire.frame(0, b"a"))
    d.feed(on.WorkEnded())
    skipped_at = len(d.log)
    d.append(wire.frame(1, b"late", b"later"), wire.marker(1, 3))
    assert d.handled == [b"a"]
    ack = d.ack()
    (skipped,) = ack.event_ranges
    assert (ack.finished, ack.handled_through, ack.event_position) == (False, 1, skipped_at + 2)
    assert (skipped.begin, skipped.end, skipped.attempt) == (skipped_at, skipped_at + 2, 50)
    d.fresh().append(wire.completed(1), wire.marker(2, 3))
    ack = d.ack()
    assert (ack.finished, ack.handled_through, ack.event_position, ack.event_ranges) == (True, 1, skipped_at, ())


def test_a_gap_behind_the_end_fails_the_attempt_all_the_same(d, wire):
    """Section 5.4."""
    d.started()
    d.feed(on.WorkEnded())
    d.append(wire.frame(0, b"late"), wire.frame(2, b"too late"))
    assert "Failed" in d.names()


def test_a_restore_is_asked_for_with_what_start_names(d, wire):
    """Section 5.3."""
    handle = StateHandle(3, inline=b"abc")
    d.started(checkpoint_id=8, state=handle, next_checkpoint_id=9)
    (call,) = d.of(do.OpenUser)
    assert (call.start.checkpoint_id, call.start.state) == (8, handle)


def test_a_failed_restore_fails_the_attempt_and_says_hello_in_place(d, wire):
    d.user[do.OpenUser] = lambda call: on.UserFailed("restore_state: boom")
    d.started()
    assert d.names()[-5:] == ["Failed", "CloseUser", "NotePosition", "Seek", "Hello"]


def test_an_abort_of_another_epoch_is_none(d, wire):
    d.started()
    d.append(wire.marker(1, 0), wire.aborted(1, epoch=2))
    assert not d.of(do.NotifyAborted)
