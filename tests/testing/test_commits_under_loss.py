"""Commits and the broker under loss: what is committed counts, and what is not never happened."""

from __future__ import annotations

import threading

import pytest

from penstock.testing import Faults
from penstock.testing.records import CheckpointCommit, EpochClaimed
from penstock.transport import Transport

from .jobs import (
    PATIENCE_S,
    Course,
    counting_job,
    ends_exactly,
    failed_with,
    failures,
    run,
    status_of,
    wait_checkpoint,
)

POLICIES = ["replay", "global"]


@pytest.fixture
def course() -> Course:
    return Course()


# ---- commits


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stands", [True, False])
def test_a_checkpoint_whose_commit_has_no_outcome_is_what_its_successor_finds(
    plain: Transport, faults: Faults, course: Course, policy: str, stands: bool
) -> None:
    """Section 7.7 ◆: the instance ends, deletes nothing, and the next one looks."""
    commit, claims = faults.unknown_outcome(CheckpointCommit, stands=stands, skip=1), faults.watch(EpochClaimed)
    with run(counting_job(course, on_failover=policy), plain, faults) as running:
        unsure = commit.wait_until_caught().record
        assert isinstance(unsure, CheckpointCommit)
        claim = claims.wait_until_caught(times=2).record
        assert isinstance(claim, EpochClaimed)
        running.wait_for(lambda s: s.epoch == claim.epoch and s.state == "running", PATIENCE_S)
        assert (claim.restored_checkpoint_id == unsure.checkpoint_id) is stands
        ends_exactly(running, course)
        assert (unsure.checkpoint_id in course.completed) is stands, "a restore notifies of what stands"


def test_a_slow_commit_holds_up_the_coordinator_and_nobody_is_failed_for_it(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 7.7 ◆: from the start of a commit until its outcome is known nothing else is handled."""
    commit = faults.hold(CheckpointCommit, skip=1)
    with run(counting_job(course, heartbeat_timeout=0.5), plain, faults) as running:
        commit.wait_until_caught()
        known = len(course.completed)
        threading.Event().wait(1.5)  # longer than heartbeat_timeout: the fault is that it takes so long
        assert len(course.completed) == known
        commit.release()
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


def test_a_commit_that_the_broker_refuses_is_followed_by_another_instance(
    plain: Transport, faults: Faults, course: Course
) -> None:
    commit = faults.refuse(CheckpointCommit, skip=1)
    with run(counting_job(course), plain, faults) as running:
        epoch = running.wait_for(lambda s: s.epoch > 0, PATIENCE_S).epoch
        commit.wait_until_caught()
        running.wait_for(lambda s: s.epoch > epoch, PATIENCE_S)
        ends_exactly(running, course)


# ---- the broker


def test_a_broker_that_is_away_for_longer_than_the_heartbeat_timeout_fails_nobody(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 8: the detector measures in the log's own time."""
    with run(counting_job(course, heartbeat_timeout=0.5), plain, faults) as running:
        wait_checkpoint(running, course)
        with faults.broker_away():
            threading.Event().wait(1.5)  # the fault is that it takes so long
        wait_checkpoint(running, course)
        ends_exactly(running, course)
        status = status_of(running)
        assert (status.failovers_region, status.failovers_global) == (0, 0)


def test_a_broker_that_one_subtask_cannot_reach_makes_that_one_silent(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 8: its siblings' time goes on, so it is replaced."""
    with run(counting_job(course, heartbeat_timeout=0.5), plain, faults) as running:
        wait_checkpoint(running, course)
        with faults.broker_away("reader/1"):
            failed_with(running, "silent for")
        ends_exactly(running, course)
        assert failures(status_of(running))[0] == 0
