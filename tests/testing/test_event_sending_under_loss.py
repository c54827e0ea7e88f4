"""Event sending under loss: what the protocol does about each fault of a record. The lists are exact in the end."""

from __future__ import annotations

import pytest

from penstock.schemas.status import JobStatus
from penstock.testing import Fault, Faults
from penstock.testing.records import (
    AbortedNotice,
    CheckpointAck,
    CompletedNotice,
    EventFrame,
    Finished,
    Heartbeat,
    Hello,
    OperatorEventFrame,
    Reset,
    Start,
    TriggerCheckpoint,
)
from penstock.transport import Transport

from .jobs import (
    EVENTS,
    PATIENCE_S,
    Course,
    counting_job,
    ends_exactly,
    failed_with,
    failures,
    run,
    status_of,
    wait_checkpoint,
    wait_until,
)

POLICIES = ["replay", "global"]


@pytest.fixture
def course() -> Course:
    return Course()


# ---- event frames


def test_a_frame_that_is_late_makes_its_own_subtask_wait_and_fails_nobody(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """G1, section 5.4."""
    late = faults.hold(EventFrame, operator="reader", subtask=1, skip=2)
    with run(counting_job(course), plain, faults) as running:
        late.wait_until_caught()
        wait_until(lambda: course.handled[0] >= 39, "subtask 0 to go on")
        assert course.handled[1] < 39
        late.release()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


def test_a_frame_that_its_reader_sees_late_makes_nobody_else_wait(
    plain: Transport, faults: Faults, course: Course
) -> None:
    lag = faults.lag(EventFrame, operator="reader", subtask=1, skip=2)
    with run(counting_job(course), plain, faults) as running:
        lag.wait_until_caught()
        wait_until(lambda: course.handled[0] >= 39, "subtask 0 to go on")
        lag.release()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_frame_that_a_reader_misses_fails_the_attempt_loudly_and_is_read_again(
    plain: Transport, faults: Faults, course: Course, policy: str
) -> None:
    """Section 5.4: a gap fails the attempt with the offsets; the log still has the event."""
    course.limit = 5
    with run(counting_job(course, on_failover=policy), plain, faults) as running:
        wait_until(lambda: course.handled[1] >= 5, "subtask 1 to have read its Start, and all that is sent")
        missed = faults.miss(EventFrame, operator="reader", subtask=1)
        course.limit = 6
        missed.wait_until_caught()
        course.limit = EVENTS  # the next one shows that one is missing
        status = failed_with(running, "events are missing")
        assert failures(status) == [0, 1]
        ends_exactly(running, course)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [EventFrame, TriggerCheckpoint, CompletedNotice, Start])
def test_what_stands_twice_counts_once_and_fails_nobody(
    plain: Transport, faults: Faults, course: Course, policy: str, kind: type
) -> None:
    """Section 4.1 ◆: a client may append again what it has appended already."""
    twice = faults.duplicate(kind, operator="reader", subtask=0)
    with run(counting_job(course, on_failover=policy), plain, faults) as running:
        twice.wait_until_caught()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


@pytest.mark.damages_logs("events lost")
@pytest.mark.parametrize("what", ["drop", "corrupt"])
def test_a_hole_in_the_log_is_healed_by_a_global_failover(
    plain: Transport, faults: Faults, course: Course, what: str
) -> None:
    """Section 5.4: it means lost log. The coordinator that is rolled back sends again, in a new epoch."""
    fault: Fault = getattr(faults, what)(EventFrame, operator="reader", subtask=0, skip=2)
    with run(counting_job(course, on_failover="global"), plain, faults) as running:
        fault.wait_until_caught()
        assert failed_with(running, "events are missing").failovers_region == 0
        ends_exactly(running, course, check=False)  # the damage still stands in the epoch that is over


@pytest.mark.damages_logs("events lost")
@pytest.mark.parametrize("what", ["drop", "corrupt"])
def test_a_hole_in_the_log_under_replay_is_voided_when_it_fails_two_attempts(
    plain: Transport, faults: Faults, course: Course, what: str
) -> None:
    """Section 5.4 ◆: the log would give every attempt of the epoch the same gap."""
    fault: Fault = getattr(faults, what)(EventFrame, operator="reader", subtask=1, skip=2)
    with run(counting_job(course), plain, faults) as running:
        fault.wait_until_caught()
        failed_with(running, "two attempts of reader/1 missed event")
        ends_exactly(running, course, check=False)  # the damage still stands in the epoch that is over
        assert status_of(running).failovers_global == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", ["refused", "stands", "does not stand"])
def test_a_frame_that_the_broker_did_not_certainly_take_is_a_global_failover(
    plain: Transport, faults: Faults, course: Course, policy: str, fault: str
) -> None:
    """Section 6 ◆: nothing may follow a hole; a new epoch with a new writer."""
    if fault == "refused":
        made = faults.refuse(EventFrame, skip=3)
    else:
        made = faults.unknown_outcome(EventFrame, stands=fault == "stands", skip=3)
    with run(counting_job(course, on_failover=policy), plain, faults) as running:
        made.wait_until_caught()
        failed_with(running, "did not take a record")
        ends_exactly(running, course)
        assert status_of(running).epoch >= 2


# ---- markers and acks


def test_a_late_marker_makes_its_checkpoint_late_and_what_is_sent_behind_the_cut_waits_for_it(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """G3, section 7: the checkpoint waits for exactly that subtask, and says so."""
    marker = faults.hold(TriggerCheckpoint, operator="reader", subtask=1, skip=1)
    with run(counting_job(course), plain, faults) as running:
        caught = marker.wait_until_caught().record
        assert isinstance(caught, TriggerCheckpoint)
        n = caught.checkpoint_id
        waiting = running.wait_for(
            lambda s: any(p.checkpoint_id == n and p.waits_for.startswith("reader/1") for p in s.pending), PATIENCE_S
        )
        assert "reader/0" not in waiting.pending[0].waits_for
        assert n not in course.completed
        marker.release()
        wait_until(lambda: n in course.completed, "the checkpoint")
        ends_exactly(running, course)
        assert course.aborted == []


def test_a_marker_that_is_too_late_aborts_its_checkpoint_and_the_next_one_completes(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 7.8."""
    marker = faults.hold(TriggerCheckpoint, operator="reader", subtask=1, skip=1)
    job = counting_job(course, checkpoint={"timeout": 0.5, "tolerable_failures": 1000})
    with run(job, plain, faults) as running:
        caught = marker.wait_until_caught().record
        assert isinstance(caught, TriggerCheckpoint)
        wait_until(lambda: caught.checkpoint_id in course.aborted, "the abort")
        marker.release()
        wait_checkpoint(running, course)
        ends_exactly(running, course)
        assert caught.checkpoint_id not in course.completed
        assert failures(status_of(running)) == [0, 0]


def test_a_lost_marker_is_noticed_by_the_timeout_and_the_next_checkpoint_completes(
    plain: Transport, faults: Faults, course: Course
) -> None:
    marker = faults.drop(TriggerCheckpoint, operator="reader", subtask=0, skip=1)
    job = counting_job(course, checkpoint={"timeout": 0.5, "tolerable_failures": 1000})
    with run(job, plain, faults) as running:
        caught = marker.wait_until_caught().record
        assert isinstance(caught, TriggerCheckpoint)
        wait_until(lambda: caught.checkpoint_id in course.aborted, "the abort")
        wait_checkpoint(running, course)
        ends_exactly(running, course)
        assert status_of(running).failovers_region == 0


def test_a_lost_ack_times_its_checkpoint_out_and_the_next_one_completes(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 11: ack lost. Nobody is failed over, events go on."""
    ack = faults.drop(CheckpointAck, operator="reader", subtask=1, skip=1)
    job = counting_job(course, checkpoint={"timeout": 0.5, "tolerable_failures": 1000})
    with run(job, plain, faults) as running:
        lost = ack.wait_until_caught().record
        assert isinstance(lost, CheckpointAck)
        wait_until(lambda: lost.checkpoint_id in course.aborted, "the abort")
        wait_checkpoint(running, course)
        ends_exactly(running, course)
        assert lost.checkpoint_id not in course.completed
        assert failures(status_of(running)) == [0, 0]


def test_an_ack_that_comes_after_its_checkpoint_was_aborted_is_ignored(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 11: ack late."""
    ack = faults.hold(CheckpointAck, operator="reader", subtask=1, skip=1)
    job = counting_job(course, checkpoint={"timeout": 0.5, "tolerable_failures": 1000})
    with run(job, plain, faults) as running:
        late = ack.wait_until_caught().record
        assert isinstance(late, CheckpointAck)
        wait_until(lambda: late.checkpoint_id in course.aborted, "the abort")
        ack.release()
        wait_checkpoint(running, course)
        ends_exactly(running, course)
        assert late.checkpoint_id not in course.completed
        assert failures(status_of(running)) == [0, 0]


def test_an_ack_that_stands_twice_counts_once(plain: Transport, faults: Faults, course: Course) -> None:
    """Section 11: ack duplicated; by identity, not by count. With one of two subtasks' acks held none completes."""
    twice = faults.duplicate(CheckpointAck, operator="reader", subtask=0)
    other = faults.hold(CheckpointAck, operator="reader", subtask=1)
    with run(counting_job(course), plain, faults) as running:
        doubled = twice.wait_until_caught().record
        assert isinstance(doubled, CheckpointAck)
        other.wait_until_caught()
        running.client.request("reader", b"null")  # behind both acks in the log: so they have been read
        assert course.completed == []
        other.release()
        wait_until(lambda: doubled.checkpoint_id in course.completed, "the checkpoint")
        ends_exactly(running, course)
        assert course.completed.count(doubled.checkpoint_id) == 1


def test_an_ack_that_the_broker_refuses_fails_the_attempt_which_says_hello_again(
    plain: Transport, faults: Faults, course: Course
) -> None:
    refused = faults.refuse(CheckpointAck, operator="reader", subtask=1, skip=1)
    with run(counting_job(course), plain, faults) as running:
        refused.wait_until_caught()
        status = running.wait_for(lambda s: s.operators[0].subtasks[1].failures > 0, PATIENCE_S)
        assert failures(status) == [0, 1]
        ends_exactly(running, course)


@pytest.mark.parametrize("notice", [CompletedNotice, AbortedNotice])
def test_a_lost_notice_harms_nobody(plain: Transport, faults: Faults, course: Course, notice: type) -> None:
    """Section 7.7: they may be missed."""
    lost = faults.drop(notice, operator="reader", times=None)
    aborting = faults.drop(CheckpointAck, operator="reader", subtask=1) if notice is AbortedNotice else None
    job = counting_job(course, checkpoint={"timeout": 0.5, "tolerable_failures": 1000})
    with run(job, plain, faults) as running:
        if aborting is not None:
            aborting.wait_until_caught()
        lost.wait_until_caught(PATIENCE_S, times=2)
        wait_checkpoint(running, course)
        lost.release()  # a finished subtask leaves by the notice that its end is in a checkpoint
        ends_exactly(running, course)


# ---- what tells that events were handled


def test_futures_settle_later_when_heartbeats_are_lost(plain: Transport, faults: Faults, course: Course) -> None:
    """Section 6: handled-through is cumulative, so a later record says what a lost one had said."""
    lost = faults.drop(Heartbeat, times=None)
    acks = faults.drop(CheckpointAck, times=None)
    job = counting_job(course, checkpoint={"timeout": 0.5, "tolerable_failures": 1000})
    with run(job, plain, faults) as running:
        wait_until(lambda: course.handled[0] == course.handled[1] == 39, "all to be handled")
        lost.wait_until_caught(PATIENCE_S, times=3)
        assert course.settled == {}
        lost.release()
        acks.release()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


def test_without_a_word_of_progress_exactly_that_attempt_is_failed(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 6: event_ack_timeout; never its sibling, never its successor."""
    fault = faults.drop(Heartbeat | CheckpointAck, operator="reader", subtask=1, times=None)
    job = counting_job(course, event_ack_timeout=1.0, checkpoint={"interval": 0.3, "timeout": 60.0})
    with run(job, plain, faults) as running:
        status = failed_with(running, "no event handled for")
        fault.release()
        assert failures(status) == [0, 1]
        ends_exactly(running, course)
        assert failures(status_of(running))[0] == 0


@pytest.mark.parametrize("kills", [True, False])
def test_a_subtask_whose_heartbeats_are_lost_is_failed_as_silent_and_comes_back(
    plain: Transport, faults: Faults, course: Course, kills: bool
) -> None:
    """Section 8: killed and started again; or, where nobody kills it, it obeys the Reset and says Hello in place."""
    silence = faults.drop(
        Heartbeat | CheckpointAck | OperatorEventFrame, operator="reader", subtask=0, process="reader/0", times=None
    )
    job = counting_job(course, heartbeat_timeout=1.0, checkpoint={"timeout": 0.5, "tolerable_failures": 1000})
    with run(job, plain, faults, kills_silent=kills) as running:
        status = failed_with(running, "silent for")
        silence.release()
        assert failures(status)[0] >= 1
        ends_exactly(running, course)
        assert any(i.fault == "crash" for i in faults.injected) is kills


# ---- Hello, Start, Reset


@pytest.mark.parametrize("fault", ["refused", "stands", "does not stand"])
def test_a_hello_without_a_certain_outcome_is_said_again_under_the_same_nonce(
    plain: Transport, faults: Faults, course: Course, fault: str
) -> None:
    """Section 4."""
    if fault == "refused":
        hello = faults.refuse(Hello, operator="reader", subtask=1)
    else:
        hello = faults.unknown_outcome(Hello, stands=fault == "stands", operator="reader", subtask=1)
    said = faults.watch(Hello, operator="reader", subtask=1)
    with run(counting_job(course), plain, faults) as running:
        hello.wait_until_caught()
        if fault != "stands":  # its Start may come before it is said again
            said.wait_until_caught(times=2)
            nonces = {hello.record.nonce for hello in said.caught if isinstance(hello.record, Hello)}
            assert len(nonces) == 1
        ends_exactly(running, course)


def test_a_late_hello_is_answered_late(plain: Transport, faults: Faults, course: Course) -> None:
    hello = faults.hold(Hello, operator="reader", subtask=1)
    with run(counting_job(course), plain, faults) as running:
        hello.wait_until_caught()
        wait_until(lambda: course.handled[0] == 39, "subtask 0 to work")
        assert course.completed == []  # section 7.1: every subtask must have an attempt
        hello.release()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


def test_a_lost_hello_is_said_again_after_the_start_timeout(plain: Transport, faults: Faults, course: Course) -> None:
    """Section 5: the instance leaves with StartTimeout, and its task is tried again."""
    with run(counting_job(course, start_timeout=2.0), plain, faults) as running:
        wait_checkpoint(running, course)
        lost = faults.drop(Hello, operator="reader", subtask=0)
        running.crash_subtask("reader", 0)
        lost.wait_until_caught()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [1, 0]


def test_a_late_start_changes_nothing(plain: Transport, faults: Faults, course: Course) -> None:
    """Section 5.2: what is sent meanwhile stands behind it."""
    start = faults.hold(Start, operator="reader", subtask=1)
    with run(counting_job(course), plain, faults) as running:
        start.wait_until_caught()
        wait_until(lambda: course.handled[0] >= 39, "subtask 0 to go on")
        assert course.handled[1] == 0
        start.release()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


def test_a_lost_start_makes_the_attempt_silent_and_its_successor_gets_another(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 8: an instance that waits for its Start has no heart that beats."""
    start = faults.drop(Start, operator="reader", subtask=1)
    job = counting_job(course, heartbeat_timeout=1.0)
    with run(job, plain, faults) as running:
        start.wait_until_caught()
        assert "reader/1" in failed_with(running, "silent for").last_failure
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 1]


@pytest.mark.parametrize("fault", ["refused", "does not stand"])
def test_an_instance_whose_start_was_not_taken_gets_another_in_the_new_epoch_without_a_new_hello(
    plain: Transport, faults: Faults, course: Course, fault: str
) -> None:
    """Section 8 ◆: a Start with a higher generation needs no Reset beside it."""
    if fault == "refused":
        start = faults.refuse(Start, operator="reader", subtask=1)
    else:
        start = faults.unknown_outcome(Start, stands=False, operator="reader", subtask=1)
    said = faults.watch(Hello, operator="reader", subtask=1)
    with run(counting_job(course, start_timeout=4.0), plain, faults) as running:
        start.wait_until_caught()
        ends_exactly(running, course)
        assert len(said.caught) == 1


def heard(status: JobStatus, subtask: int) -> bool:
    """Whether the subtask has said something under its newest Start."""
    seen = status.operators[0].subtasks[subtask]
    return seen.phase == "running" and seen.step != "starting"


def test_a_late_reset_is_obeyed_late(plain: Transport, faults: Faults, course: Course) -> None:
    """Section 8: until then what the instance says counts for nothing."""
    with run(counting_job(course), plain, faults) as running:
        wait_checkpoint(running, course)
        epoch = running.wait_for(lambda s: s.epoch > 0, PATIENCE_S).epoch
        reset = faults.hold(Reset, operator="reader", subtask=1)
        running.crash_coordinator()
        running.replace_coordinator()
        reset.wait_until_caught()
        known = max(course.completed)
        running.wait_for(lambda s: s.epoch > epoch and heard(s, 0), PATIENCE_S)
        assert max(course.completed) == known, "the restored one may be notified again, and no other completes"
        reset.release()
        ends_exactly(running, course)


# ---- events to the coordinator


@pytest.mark.parametrize("fault", ["refused", "stands", "does not stand"])
def test_events_to_the_coordinator_that_do_not_certainly_stand_fail_the_attempt(
    plain: Transport, faults: Faults, course: Course, fault: str
) -> None:
    """G2 under ``global``: in both directions exact."""
    if fault == "refused":
        made = faults.refuse(OperatorEventFrame, operator="reader", subtask=0, skip=2)
    else:
        made = faults.unknown_outcome(
            OperatorEventFrame, stands=fault == "stands", operator="reader", subtask=0, skip=2
        )
    with run(counting_job(course, on_failover="global"), plain, faults) as running:
        made.wait_until_caught()
        running.wait_for(lambda s: s.epoch >= 2, PATIENCE_S)
        ends_exactly(running, course)


def test_a_late_end_of_a_subtask_makes_the_job_end_late(plain: Transport, faults: Faults, course: Course) -> None:
    end = faults.hold(Finished, operator="reader", subtask=1)
    with run(counting_job(course), plain, faults) as running:
        course.may_end.set()
        end.wait_until_caught()
        end.release()
        ends_exactly(running, course)
