"""Start of an attempt: protocol, sections 4 and 5."""

from __future__ import annotations

import pytest

from penstock.schemas.acks import Failed, Heartbeat, Hello
from penstock.schemas.ids import NO_ATTEMPT, NO_CHECKPOINT
from penstock.schemas.state import OPEN_END, ChannelPosition, Segment
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.drop_reasons import Dropped
from penstock.subtask_client.protocol.effects import Departure
from penstock.subtask_client.protocol.hello import HELLOS_FAILED_MAX
from penstock.subtask_client.protocol.phases import TRANSITIONS, Phase, Transition

from .conftest import CoreDriver, Wire


def test_an_instance_notes_the_end_of_its_partition_before_it_says_hello_and_reads_from_there(d, wire):
    """Section 5.1."""
    d.log = [wire.frame(0, b"old"), wire.frame(1, b"older")]
    d.hello()
    assert d.names() == ["NotePosition", "Seek", "Hello"]
    assert d.of(do.Seek) == [do.Seek(2)]
    (hello,) = d.written(Hello)
    assert (hello.subtask_id, hello.run, hello.nonce) == (("reader", 0), "run-1", "nonce-1")
    assert d.core.phase is Phase.WAITING


def test_the_offset_of_its_hello_is_its_attempt(d):
    """Section 4, attempt."""
    d.hello()
    assert d.core.attempt == 50


def test_a_waiting_instance_notes_the_epoch_of_a_reset_and_does_not_obey_it(d, wire):
    """Section 5.1 ◆."""
    d.hello()
    d.append(wire.reset(epoch=3, generation=7))
    assert d.core.phase is Phase.WAITING
    assert d.core.epoch_seen == 3
    assert d.hellos == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": -1},
        {"event_position": -2},
        {"expected_epoch": -1},
        {"expected_sequence": -1},
        {"next_checkpoint_id": -1},
        {"checkpoint_id": NO_CHECKPOINT - 1},
        {"event_ranges": (Segment(3, 4, 1, 0, 45), Segment(0, 1, 1, 0, 40))},
        {"event_ranges": (Segment(0, OPEN_END, 1, 0, 45),)},
        {"data_positions": ()},
        {"data_positions": (ChannelPosition("up/0", (Segment(0, OPEN_END, 1, 0, NO_ATTEMPT),), -1),)},
        {"data_positions": (ChannelPosition("up/0", (Segment(4, OPEN_END, 1, 0, 0), Segment(0, 2, 1, 0, 0)), 0),)},
    ],
    ids="-".join,
)
def test_a_start_that_no_coordinator_can_have_written_changes_nothing(wire, changes):
    """P-5.2.3."""
    driver, begun = CoreDriver("up/0"), {"data_positions": (Wire.at("up/0", 0),)}
    driver.hello()
    driver.append(wire.start(**{**begun, **changes}))
    assert driver.core.phase is Phase.WAITING and driver.core.dropped == {Dropped.UNREADABLE: 1}
    assert "the Start at offset 0 is not followed" in str(driver.of(do.Report)[0].error)
    driver.append(wire.start(**begun))
    assert driver.core.phase is Phase.RUNNING


def test_a_start_of_a_lower_epoch_than_the_highest_seen_is_ignored(d, wire):
    """Section 4, coordinator: the epoch in the record fences."""
    d.hello()
    d.append(wire.reset(epoch=3), wire.start(epoch=2))
    assert d.core.phase is Phase.WAITING
    assert d.core.dropped["older_epoch"] == 1


def test_a_start_for_its_attempt_is_taken_up(d, wire):
    """Section 5.1."""
    d.hello()
    d.append(wire.start(attempt=50, nonce="lost"))
    assert d.core.phase is Phase.RUNNING


def test_an_instance_whose_hello_had_an_unknown_outcome_adopts_the_start_with_its_nonce(d, wire):
    """Section 4, attempt."""
    d.hello_known = False
    d.hello()
    d.append(wire.start(attempt=77, nonce="nonce-1"))
    assert d.core.phase is Phase.RUNNING
    assert d.core.attempt == 77
    d.feed(on.HeartbeatDue(True, "step", 0))
    assert [beat.sender.attempt for beat in d.written(Heartbeat)] == [77]


def test_a_start_of_somebody_else_is_no_start_for_an_instance_that_does_not_know_its_attempt(d, wire):
    d.hello_known = False
    d.hello()
    d.append(wire.start(attempt=77, nonce="other"))
    assert d.core.phase is Phase.WAITING


def test_a_start_of_an_earlier_attempt_is_nobodys_business(d, wire):
    d.hello()
    d.append(wire.start(attempt=49, nonce="other"))
    assert d.core.phase is Phase.WAITING


def test_its_own_stop_makes_a_waiting_instance_return_normally(d, wire):
    """Section 4, run."""
    d.hello()
    d.append(wire.stop(attempt=50, nonce="lost"))
    assert d.of(do.Leave) == [do.Leave(Departure.STOPPED, "because")]


def test_its_own_stop_is_known_by_nonce_too(d, wire):
    d.hello_known = False
    d.hello()
    d.append(wire.stop(attempt=77, nonce="nonce-1"))
    assert d.core.phase is Phase.LEFT


def test_anothers_stop_is_ignored(d, wire):
    """Section 3: Start and Stop are addressed."""
    d.started()
    d.append(wire.stop(attempt=40, nonce="other"))
    assert d.core.phase is Phase.RUNNING


@pytest.mark.parametrize("running", [False, True])
def test_a_start_of_a_higher_attempt_supersedes_and_the_instance_leaves_without_another_hello(d, wire, running):
    """Section 4, attempt; section 11, two Spark attempts at once."""
    d.started() if running else d.hello()
    d.fresh().append(wire.start(attempt=60, nonce="other"))
    assert d.of(do.Leave)[0].departure is Departure.SUPERSEDED
    assert "attempt 60" in d.of(do.Leave)[0].reason
    assert not d.written()
    assert d.names()[-1] == "Leave"
    assert ("CloseUser" in d.names()) == running


def test_a_start_that_superseded_it_before_it_knew_its_attempt_counts_once_it_does(d, wire):
    d.hello_known = False
    d.hello()
    d.append(wire.start(attempt=60, nonce="other"))
    d.feed(on.HelloTaken("nonce-1", 55))
    assert d.of(do.Leave)[0].departure is Departure.SUPERSEDED


def test_a_start_of_a_higher_attempt_from_a_fenced_coordinator_supersedes_nobody(d, wire):
    d.started(epoch=4)
    d.append(wire.start(attempt=60, nonce="other", epoch=3))
    assert d.core.phase is Phase.RUNNING


def test_a_second_start_for_its_attempt_with_a_higher_generation_makes_it_start_over(d, wire):
    """Section 5.3 ◆."""
    d.started()
    d.append(wire.frame(0, b"a"))
    d.fresh().append(wire.start(epoch=2, expected_epoch=2, event_position=0))
    assert d.names()[:2] == ["CloseUser", "Seek"]
    assert [call.start.epoch for call in d.of(do.OpenUser)] == [2]
    assert d.core.running.start.epoch == 2
    assert d.hellos == 1
    assert d.handled == []  # epoch 1's frame is void under epoch 2


def test_a_second_start_without_a_higher_generation_is_ignored(d, wire):
    d.started()
    d.fresh().append(wire.start())
    assert d.effects == []


def test_a_start_below_what_it_was_told_is_answered_by_a_hello_that_says_so(d, wire):
    """P-4.5.4 ◆: the Hello that it answers is older than the notice."""
    d.started()
    d.append(wire.marker(5, 0), wire.completed(5))
    d.fresh().append(wire.start(epoch=2, expected_epoch=2, event_position=0, checkpoint_id=4))
    assert d.of(do.OpenUser) == []
    assert d.written(Hello)[-1].completed == 5
    assert d.core.phase is Phase.WAITING
    d.append(wire.start(epoch=2, expected_epoch=2, event_position=0, checkpoint_id=4, attempt=51, nonce="nonce-2"))
    assert d.core.running.start.checkpoint_id == 4  # the coordinator knows, and goes on from there


def test_control_records_below_its_own_start_are_void(d, wire):
    """Section 5.3 ◆: re-reading from the event position meets old Starts, Resets, markers, notices and Stops."""
    d.log = [
        wire.reset(epoch=9, generation=9), wire.start(attempt=999, nonce="other"), wire.stop(),
        wire.marker(5, 0), wire.completed(5), wire.aborted(6), wire.frame(0, b"a"),
    ]  # fmt: skip
    d.hello()
    d.append(wire.start(event_position=0))
    assert d.core.phase is Phase.RUNNING
    assert d.handled == [b"a"]
    assert not d.of(do.TakeSnapshot) + d.of(do.NotifyCompleted) + d.of(do.NotifyAborted)
    assert d.core.dropped["void_control"] == 7  # its own Start, read again, included


@pytest.mark.parametrize(("epoch", "generation"), [(2, 1), (1, 9)])
def test_a_reset_not_above_its_own_generation_is_void(d, wire, epoch, generation):
    """Section 5.3 ◆."""
    d.started(epoch=2, generation=1)
    d.fresh().append(wire.reset(epoch, generation))
    assert d.effects == []
    assert d.core.phase is Phase.RUNNING


@pytest.mark.parametrize(("epoch", "generation"), [(2, 2), (3, 0)])
def test_a_live_instance_obeys_reset_by_dropping_its_state_and_saying_hello_in_place(d, wire, epoch, generation):
    """Section 8, region failover."""
    d.started(epoch=2, generation=1)
    d.fresh().append(wire.reset(epoch, generation))
    assert d.names() == ["CloseUser", "NotePosition", "Seek", "Hello"]
    assert d.written(Hello)[0].nonce == "nonce-2"
    assert not d.written(Failed)


def test_an_instance_that_obeys_a_reset_late_leaves_where_its_successor_has_been_started(d, wire):
    """Sections 4 and 11: frozen, superseded, thawed: the Reset of its own failover stands before the newer Start."""
    d.started()
    d.append(wire.reset(), wire.start(attempt=60, nonce="another", generation=1), wire.frame(0, b"for the successor"))
    assert d.of(do.Leave)[0].departure is Departure.SUPERSEDED
    assert d.hellos == 2 and len(d.of(do.WriteHello)) == 1
    assert d.handled == []


def test_an_instance_that_fails_late_leaves_where_its_successor_has_been_started(d, wire):
    """Sections 4 and 11: what it was doing when it was frozen may raise when it thaws."""
    d.started()
    d.user[do.HandleEvents] = lambda call: on.UserFailed("thawed")
    d.append(wire.frame(0, b"x"), wire.start(attempt=60, nonce="another", generation=1))
    assert d.of(do.Leave)[0].departure is Departure.SUPERSEDED
    assert len(d.of(do.WriteHello)) == 1


def test_before_it_says_hello_again_it_obeys_a_stop_that_knows_no_more_than_its_attempt(d, wire):
    """Section 4: of those whose job has ended the last checkpoint names nothing else, and nobody answers a Hello."""
    d.started()
    d.append(wire.reset(), wire.stop(nonce=""))
    assert d.of(do.Leave)[0].departure is Departure.STOPPED


def test_before_it_says_hello_again_an_instance_obeys_a_stop(d, wire):
    """Section 4: a run that has been replaced."""
    d.started()
    d.append(wire.reset(), wire.stop())
    assert d.of(do.Leave)[0].departure is Departure.STOPPED


def test_a_start_answering_an_earlier_hello_of_its_own_is_no_answer(d, wire):
    d.started()
    d.append(wire.reset(), wire.start(generation=1))
    assert d.core.phase is Phase.WAITING
    d.append(wire.start(attempt=60, nonce="nonce-2", generation=1))
    assert d.core.phase is Phase.RUNNING


def test_hello_that_nobody_answers_makes_it_leave_without_another_hello(d):
    d.hello()
    assert d.core.deadline() == d.now + 120.0
    assert d.pass_time(119.9) == []
    d.fresh().pass_time(0.1)
    assert d.of(do.Leave)[0].departure is Departure.NO_START
    assert "120 s" in d.of(do.Leave)[0].reason
    assert d.names() == ["AskBroker", "Leave"]


def test_time_in_which_the_broker_is_away_is_no_time_to_answer_in(d):
    d.hello()
    d.reachable = False
    d.fresh().pass_time(120.0)
    assert d.names() == ["AskBroker"] and d.core.phase is Phase.WAITING
    d.reachable = True
    assert d.pass_time(119.9) == []
    d.pass_time(0.1)
    assert d.of(do.Leave)[0].departure is Departure.NO_START


def test_an_overdue_start_that_came_after_all_is_not_overdue(d):
    d.started()
    assert d.core.deadline() is None
    assert d.pass_time(1e6) == []


def test_nothing_is_written_between_hello_and_start(d, wire):
    d.hello()
    d.fresh()
    d.turn()
    d.feed(on.HeartbeatDue(True, "waiting", 0))
    d.feed(on.WriterFailed("the broker timed out"))
    d.append(wire.frame(0, b"a"), wire.marker(1, 0))
    assert d.written() == []
    assert d.core.phase is Phase.WAITING


def test_a_hello_that_failed_is_written_again_under_its_nonce(d):
    """Section 4: whether it stands is unknown; nobody else would ever answer this instance."""
    d.hello_known = False
    d.hello()
    nonce = d.written()[-1].nonce
    d.fresh()
    d.feed(on.WriterFailed("the broker timed out"))
    d.feed(on.TurnEnded(dry=False))
    assert d.written() == []  # there may be a successor's Start to be read
    d.feed(on.TurnEnded(dry=True))
    assert [hello.nonce for hello in d.written()] == [nonce]
    d.fresh().feed(on.TurnEnded(dry=True))
    assert d.written() == []


def test_an_instance_whose_hello_fails_too_often_leaves(d):
    d.hello_known = False
    d.hello()
    for _ in range(HELLOS_FAILED_MAX):
        d.fresh().feed(on.WriterFailed("the broker timed out"))
        d.feed(on.TurnEnded(dry=True))
        assert d.names() == ["Hello"]
    d.fresh().feed(on.WriterFailed("the broker timed out"))
    assert [leave.departure for leave in d.of(do.Leave)] == [Departure.HELLO_FAILED]
    assert "Hello failed 6 times in a row; the last time: the broker timed out" in d.of(do.Leave)[0].reason


def test_a_hello_that_stands_ends_the_row_of_those_that_failed(d, wire):
    d.hello_known = False
    d.hello()
    for _ in range(HELLOS_FAILED_MAX):
        d.feed(on.WriterFailed("the broker timed out"))
    d.feed(on.HelloTaken("nonce-1", 7))
    for _ in range(HELLOS_FAILED_MAX + 1):
        d.feed(on.WriterFailed("a heartbeat failed"))
    assert d.core.phase is Phase.WAITING


def test_a_hello_that_stands_is_not_written_again(d):
    d.hello()
    d.fresh().feed(on.WriterFailed("the broker timed out"))
    d.feed(on.TurnEnded(dry=True))
    assert d.written() == []


def test_both_of_a_repeated_hello_may_be_answered(d, wire):
    """Section 5.3 ◆: the later Start has the higher generation, and is started over from."""
    d.hello_known = False
    d.hello()
    d.feed(on.WriterFailed("the broker timed out"))
    d.turn()
    d.append(wire.start(attempt=77, nonce="nonce-1"), wire.start(attempt=78, nonce="nonce-1", generation=1))
    assert (d.core.phase, d.core.attempt, d.names().count("OpenUser")) == (Phase.RUNNING, 78, 2)


@pytest.mark.parametrize("attempt", [0, 99])
def test_a_hello_is_not_repeated_where_somebody_else_was_started(d, wire, attempt):
    """Section 4, attempt: an instance that was frozen must not take over from its successor."""
    d.hello_known = False
    d.hello()
    d.fresh().feed(on.WriterFailed("the broker timed out"))
    d.append(wire.start(attempt=attempt, nonce="somebody"))
    d.turn()
    assert d.written() == []


def test_an_instance_whose_partition_was_truncated_leaves_where_somebody_else_was_started(d, wire):
    """P-4.4.4: its Hello may stand, and the attempt that it finds may be its successor."""
    d.hello_known = False
    d.hello()
    d.fresh().feed(on.PositionLost(begin=4, end=5, cause="offset 0 is gone"))
    d.feed(on.RecordRead(4, wire.start(attempt=99, nonce="somebody")))
    assert d.names() == ["Seek", "Leave"] and d.of(do.Leave)[0].departure is Departure.SUPERSEDED


def test_a_failed_append_fails_the_attempt_that_runs(d):
    """Section 6: nothing may follow a hole."""
    d.started()
    d.fresh().feed(on.WriterFailed("timed out"))
    assert d.names() == ["Failed", "CloseUser", "NotePosition", "Seek", "Hello"]


def test_asked_to_leave_it_flushes_reports_closes_and_leaves(d, wire):
    d.started()
    d.core.send(b"up")
    d.append(wire.frame(0, b"a"))
    d.fresh().feed(on.LeaveRequested("shutdown"))
    assert d.names() == ["OperatorEventFrame", "Heartbeat", "CloseUser", "Leave"]
    assert d.feed(on.TurnEnded(True)) == []


def test_a_truncated_position_with_a_newer_start_behind_it_means_superseded(d, wire):
    """Section 11: a thawed instance leaves, and says no Hello that would take its successor over."""
    d.started()
    d.log += [wire.frame(0, b"gone"), wire.start(attempt=60, nonce="other")]
    d.fresh().feed(on.PositionLost(2, 3, "offset 1 is wanted, 2 is there"))
    d.append()
    assert d.names() == ["Seek", "CloseUser", "Leave"]
    assert d.of(do.Leave)[0].departure is Departure.SUPERSEDED


def test_what_a_truncation_left_is_looked_through_before_the_next_hello(d, wire):
    """Section 4: the Start of a successor may stand behind what is gone."""
    d.started()
    d.log += [wire.frame(0, b"gone"), wire.frame(1, b"b"), wire.start(attempt=60, nonce="other")]
    d.feed(on.WriterFailed("timed out"))
    d.fresh().feed(on.PositionLost(2, 4, "offset 1 is wanted, 2 is there"))
    assert d.names() == ["Seek"]
    d.append()
    assert d.names() == ["Seek", "Leave"]
    assert d.of(do.Leave)[0].departure is Departure.SUPERSEDED


def test_where_a_truncation_left_nothing_to_look_through_the_next_hello_is_said(d, wire):
    d.started()
    d.log += [wire.frame(0, b"gone"), wire.frame(1, b"gone")]
    d.feed(on.WriterFailed("timed out"))
    d.fresh().feed(on.PositionLost(3, 3, "offset 1 is wanted, 3 is there"))
    assert d.names() == ["Seek", "Hello"]


def test_a_truncated_position_without_a_successor_fails_the_attempt(d, wire):
    d.started()
    d.log += [wire.frame(0, b"gone"), wire.frame(1, b"b"), wire.marker(1, 2)]
    d.fresh().feed(on.PositionLost(2, 4, "offset 1 is wanted, 2 is there"))
    d.feed(on.RecordRead(2, d.log[2]))
    assert not d.core.may_poll
    assert d.names() == ["Seek"]
    d.append()
    assert d.names() == ["Seek", "Report", "Failed", "CloseUser", "NotePosition", "Seek", "Hello"]
    (failed,) = d.written(Failed)
    assert "offset 1 is wanted" in failed.cause
    assert "--from-checkpoint" in failed.cause
    assert "--fresh" in failed.cause
    assert d.handled == []


def test_a_truncated_position_is_judged_though_events_never_run_dry(d, wire):
    """What stands behind the end that was there when it was found says nothing of who truncated it."""
    d.started()
    d.log += [wire.frame(0, b"gone"), wire.frame(1, b"b")]
    d.fresh().feed(on.PositionLost(2, 3, "gone"))
    d.feed(on.RecordRead(2, d.log[2]))
    d.log.append(wire.frame(2, b"c"))
    d.turn(dry=False)
    assert len(d.failed) == 1


def test_a_truncated_position_while_waiting_makes_it_say_hello_again(d, wire):
    d.hello()
    d.fresh().feed(on.PositionLost(0, 0, "gone"))
    assert d.names() == ["Seek", "Report", "NotePosition", "Seek", "Hello"]


def test_every_phase_but_left_can_be_left():
    for phase in Phase:
        assert ((phase, Transition.LEAVE) in TRANSITIONS) == (phase is not Phase.LEFT)


def test_a_start_adopted_by_nonce_does_not_count_once_a_higher_attempt_was_started(d, wire):
    d.hello_known = False
    d.hello()
    d.append(wire.start(attempt=60, nonce="other"), wire.start(attempt=55, nonce="nonce-1"))
    assert d.of(do.Leave)[0].departure is Departure.SUPERSEDED


def test_a_start_of_what_it_was_itself_keeps_no_failed_hello_from_being_written_again(d, wire):
    """Section 4: a new epoch has answered the Hello of before once more; nobody else was started there."""
    d.started()
    d.hello_known = False
    d.feed(on.UserFailed("boom"))
    d.feed(on.WriterFailed("refused"))
    d.fresh()
    d.append(wire.start(attempt=50, nonce="nonce-1", epoch=2))
    d.turn(dry=True)
    assert [hello.nonce for hello in d.written(Hello)] == ["nonce-2"]


def test_where_somebody_else_was_started_it_leaves_instead_of_writing_a_failed_hello_again(d, wire):
    """Section 4: that would take the subtask from whoever that is; its runner tries again if that one is dead."""
    d.hello_known = False
    d.hello()
    d.feed(on.WriterFailed("refused"))
    d.fresh()
    d.append(wire.start(attempt=40, nonce="of-another"))
    d.turn(dry=True)
    assert d.core.phase is Phase.LEFT
    assert not d.written(Hello)
