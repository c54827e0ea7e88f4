"""When a standby takes over: what it was elected for, and what it has heard."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.takeover_policy import STOPPED_S, Verdict, Watch
from penstock.schemas.status import JobStatus

AFTER = 6.0


def status(state: str = "running", epoch: int = 7) -> JobStatus:
    return JobStatus("job", f"instance-{epoch}", state, "", 0, "", epoch, -1, 0, 0, -1.0, 0, 0, "", {}, (), ())


def looked(watch: Watch, begin: float, end: float, *, complete: bool = True) -> float:
    """Looks twice a second; returns ``end``."""
    now = begin
    while now <= end:
        watch.look(now, complete=complete)
        now += 0.5
    return end


def test_where_nobody_was_ever_at_work_the_elected_one_begins_at_once() -> None:
    watch = Watch(AFTER)
    assert watch.verdict(0.0, elected=True) is Verdict.WAIT, "it has not looked yet"
    watch.look(0.1, complete=True)
    assert watch.verdict(0.1, elected=False) is Verdict.WAIT
    assert watch.verdict(0.1, elected=True) is Verdict.TAKE_OVER
    assert not watch.seen_at_work


@pytest.mark.parametrize("state", ["left", "stopped", "failed"])
def test_a_job_that_nobody_was_at_work_on_when_the_watch_began_is_taken_up_at_once(state: str) -> None:
    watch = Watch(AFTER)
    watch.recall(status("running"))
    watch.recall(status(state))
    watch.look(0.0, complete=True)
    assert watch.verdict(0.0, elected=True) is Verdict.TAKE_OVER
    assert not watch.seen_at_work


def test_one_that_says_nothing_any_more_is_followed_after_the_time_and_not_before() -> None:
    watch = Watch(AFTER)
    watch.recall(status())
    looked(watch, 100.0, 102.0)
    watch.hear(status(), 102.0)
    looked(watch, 102.0, 107.5)
    assert watch.verdict(107.9, elected=True) is Verdict.WAIT
    assert watch.verdict(108.0, elected=True) is Verdict.TAKE_OVER
    assert watch.seen_at_work


def test_silence_alone_is_no_reason_a_member_that_lives_is_left_at_work_however_long_its_callback_takes() -> None:
    watch = Watch(AFTER)
    watch.recall(status())
    now = looked(watch, 0.0, 3_600.0)
    assert watch.verdict(now, elected=False) is Verdict.WAIT


def test_being_elected_alone_is_no_reason_where_the_one_at_work_is_heard() -> None:
    watch = Watch(AFTER)
    for second in range(60):
        watch.hear(status(), float(second))
        watch.look(second + 0.5, complete=True)
        assert watch.verdict(second + 0.9, elected=True) is Verdict.WAIT


def test_one_that_leaves_is_followed_at_once() -> None:
    watch = Watch(AFTER)
    watch.hear(status(), 1.0)
    watch.hear(status("left"), 1.5)
    assert watch.verdict(1.5, elected=False) is Verdict.WAIT
    assert watch.verdict(1.6, elected=True) is Verdict.TAKE_OVER
    assert watch.seen_at_work


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_job_that_ends_under_its_eyes_ends_the_watch(state: str) -> None:
    watch = Watch(AFTER)
    watch.recall(status())
    watch.hear(status(state), 1.0)
    for elected in (False, True):
        assert watch.verdict(1.0, elected=elected) is Verdict.LEAVE


def test_a_job_that_has_ended_while_a_coordinator_was_frozen_is_not_started_again_by_it() -> None:
    watch = Watch(AFTER, followed=True)
    watch.recall(status("stopped", epoch=8))
    watch.look(0.0, complete=True)
    assert watch.verdict(0.0, elected=True) is Verdict.LEAVE


def test_what_the_broker_could_not_tell_is_no_silence() -> None:
    watch = Watch(AFTER)
    watch.hear(status(), 0.0)
    now = looked(watch, 0.0, 60.0, complete=False)
    assert watch.verdict(now, elected=True) is Verdict.WAIT
    looked(watch, 61.0, 66.5)
    assert watch.verdict(66.9, elected=True) is Verdict.WAIT
    assert watch.verdict(67.0, elected=True) is Verdict.TAKE_OVER


def test_what_was_not_heard_while_the_standby_itself_was_stopped_is_no_silence() -> None:
    watch = Watch(AFTER)
    watch.hear(status(), 0.0)
    looked(watch, 0.0, 1.0)
    thawed = looked(watch, 1.0 + STOPPED_S + 60.0, 68.0)
    assert watch.verdict(thawed, elected=True) is Verdict.WAIT
    assert watch.silent_s(thawed) < AFTER


def test_what_a_thawed_coordinator_of_an_older_epoch_says_is_no_sign_of_life() -> None:
    watch = Watch(AFTER)
    watch.hear(status(epoch=8), 0.0)
    looked(watch, 0.0, 5.0)
    watch.hear(status(epoch=7), 5.0)
    watch.hear(status("left", epoch=7), 5.0)
    assert watch.newest is not None and watch.newest.epoch == 8
    looked(watch, 5.0, 6.0)
    assert watch.verdict(6.0, elected=True) is Verdict.TAKE_OVER


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_job_whose_coordinator_had_ended_before_it_could_tell_more_has_ended_under_its_eyes(state: str) -> None:
    watch = Watch(AFTER)
    watch.look(0.0, complete=True)
    watch.hear(status(state), 1.0)
    assert watch.verdict(1.0, elected=True) is Verdict.LEAVE


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_job_that_had_ended_before_its_host_began_is_taken_up_at_once_whatever_was_told_last(state: str) -> None:
    watch = Watch(AFTER, ended_through=7)
    watch.recall(status("running"))
    watch.look(0.0, complete=True)
    watch.hear(status(state), 0.5)
    assert watch.verdict(0.5, elected=True) is Verdict.TAKE_OVER
    assert not watch.seen_at_work


def test_the_end_of_the_next_epoch_counts_for_one_that_was_to_resume_a_job_that_had_ended() -> None:
    watch = Watch(AFTER, ended_through=7)
    watch.hear(status("running", epoch=8), 0.0)
    watch.look(0.0, complete=True)
    assert watch.verdict(0.0, elected=True) is Verdict.WAIT
    watch.hear(status("stopped", epoch=8), 1.0)
    assert watch.verdict(1.0, elected=True) is Verdict.LEAVE


def test_where_no_status_was_found_among_many_replies_nobody_knows_that_nobody_is_at_work() -> None:
    watch = Watch(AFTER)
    watch.reads_all = False
    watch.look(0.0, complete=True)
    assert watch.verdict(0.0, elected=True) is Verdict.WAIT
    now = looked(watch, 0.0, AFTER)
    assert watch.verdict(now, elected=True) is Verdict.TAKE_OVER
