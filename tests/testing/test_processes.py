"""Processes of a local job that die, freeze and are replaced (protocol, sections 4, 8, 11)."""

from __future__ import annotations

import threading

import pytest

import penstock
from penstock.schemas.errors import JobFailed
from penstock.schemas.status import Ending
from penstock.testing import Faults, LocalJob
from penstock.testing.records import (
    CheckpointAck,
    CheckpointCommit,
    EpochClaimed,
    Failed,
    Heartbeat,
    Hello,
    Start,
    TriggerCheckpoint,
)
from penstock.transport import MemoryBroker, MemoryTransport, Partition, Transport

from .jobs import (
    PATIENCE_S,
    Course,
    Listing,
    counting_job,
    ends_exactly,
    failures,
    run,
    status_of,
    wait_checkpoint,
    wait_until,
)


@pytest.fixture
def course() -> Course:
    return Course()


@pytest.mark.parametrize("policy", ["replay", "global"])
def test_a_crashed_subtask_comes_back_and_the_job_ends_exactly(
    plain: Transport, faults: Faults, course: Course, policy: str
) -> None:
    with run(counting_job(course, on_failover=policy), plain, faults) as running:
        wait_checkpoint(running, course)
        running.crash_subtask("reader", 1)
        running.wait_for(lambda s: failures(s) == [0, 1] or s.failovers_global > 0, PATIENCE_S)
        ends_exactly(running, course)


def test_a_crashed_subtask_says_nothing_more_and_is_not_closed(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """As after SIGKILL: no Failed, no last heartbeat, no close()."""
    with run(counting_job(course), plain, faults) as running:
        wait_checkpoint(running, course)
        ack = faults.hold(CheckpointAck, operator="reader", subtask=1)
        ack.wait_until_caught()
        acks = Partition(running.settings.topics.acks, 0)
        running.crash_subtask("reader", 1, restart=False)
        said = faults.watch(process="reader/1")
        ack.release()
        (thread,) = [t for t in threading.enumerate() if t.name == "penstock-thread-reader/1"] or [None]
        if thread is not None:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        end = plain.offsets([acks])[acks].end
        assert said.caught == []
        assert course.closed == []
        assert [r for r in plain.read_all(acks) if r.offset >= end and (r.key or b"").startswith(b"reader/1")] == []
        running.start_subtask("reader", 1)
        ends_exactly(running, course)


def test_a_crash_between_snapshot_and_ack_loses_and_doubles_nothing(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 11: before its ack."""
    ack = faults.hold(CheckpointAck, operator="reader", subtask=0, skip=1)
    with run(counting_job(course, on_failover="global"), plain, faults) as running:
        ack.wait_until_caught()
        running.crash_subtask("reader", 0)
        ack.release()
        ends_exactly(running, course)


def test_a_frozen_subtask_is_killed_as_silent_and_started_again(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 8: as the Spark runner does."""
    with run(counting_job(course, heartbeat_timeout=1.0), plain, faults) as running:
        wait_checkpoint(running, course)
        running.freeze_subtask("reader", 1)
        running.wait_for(lambda s: "reader/1" in s.last_failure and "silent" in s.last_failure, PATIENCE_S)
        ends_exactly(running, course)
        assert [i.process for i in faults.injected if i.fault == "crash"] == ["reader/1"]


def test_a_frozen_subtask_that_was_replaced_leaves_when_it_thaws_and_writes_nothing_that_counts(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """Section 11: frozen, superseded, thawed."""
    with run(counting_job(course, heartbeat_timeout=1.0), plain, faults, kills_silent=False) as running:
        wait_checkpoint(running, course)
        running.freeze_subtask("reader", 1)
        running.start_subtask("reader", 1)
        running.wait_for(lambda s: failures(s)[1] >= 1 and s.operators[0].subtasks[1].phase == "running", PATIENCE_S)
        wait_checkpoint(running, course)
        said = faults.watch(Hello | Failed, operator="reader", subtask=1)
        running.thaw_subtask("reader", 1)
        (frozen,) = [t for t in threading.enumerate() if t.name == "penstock-thread-reader/1"]
        frozen.join(PATIENCE_S)
        assert not frozen.is_alive(), "superseded, so it leaves"
        assert [i for i in said.caught if isinstance(i.record, Hello)] == [], "and does not say Hello again"
        ends_exactly(running, course)


def test_a_frozen_subtask_that_thaws_in_time_goes_on_as_if_nothing_had_been(
    plain: Transport, faults: Faults, course: Course
) -> None:
    with run(counting_job(course), plain, faults) as running:
        wait_checkpoint(running, course)
        running.freeze_subtask("reader", 1)
        handled = course.handled[1]
        wait_until(lambda: course.handled[0] == 39, "subtask 0 to go on")
        assert course.handled[1] == handled
        running.thaw_subtask("reader", 1)
        ends_exactly(running, course)
        assert failures(status_of(running)) == [0, 0]


@pytest.mark.parametrize("policy", ["replay", "global"])
@pytest.mark.parametrize("moment", ["at work", "marked", "committing", "starting"])
def test_a_crashed_coordinator_is_replaced_and_its_subtasks_stay_up(
    plain: Transport, faults: Faults, course: Course, policy: str, moment: str
) -> None:
    """Section 11: killed at any point."""
    latch = {
        "at work": faults.watch(Heartbeat),
        "marked": faults.hold(TriggerCheckpoint, operator="reader", subtask=1, skip=1, process="coordinator"),
        "committing": faults.hold(CheckpointCommit, skip=2),
        "starting": faults.hold(Start, operator="reader", subtask=0),
    }
    for name, other in latch.items():
        if name != moment:
            other.release()
    with run(counting_job(course, on_failover=policy), plain, faults) as running:
        epoch = running.wait_for(lambda s: s.epoch > 0, PATIENCE_S).epoch
        latch[moment].wait_until_caught()
        first = running.service
        assert first is not None
        running.crash_coordinator()
        latch[moment].release()
        outcome = first.wait(PATIENCE_S)
        assert outcome is not None
        assert outcome.ending is Ending.LEFT
        assert "coordinator" not in course.closed
        running.replace_coordinator()
        running.wait_for(lambda s: s.epoch > epoch and s.state == "running", PATIENCE_S)
        ends_exactly(running, course)
        assert [i.process for i in faults.injected if i.fault == "crash"] == ["coordinator"]


def test_a_frozen_coordinator_that_was_replaced_is_fenced_when_it_thaws(
    plain: Transport, faults: Faults, course: Course
) -> None:
    """G4, section 11: the broker fences its checkpoint log, its events carry an old epoch, it leaves quietly."""
    with run(counting_job(course), plain, faults) as running:
        wait_checkpoint(running, course)
        first = running.service
        assert first is not None
        epoch = running.wait_for(lambda s: s.epoch > 0, PATIENCE_S).epoch
        running.freeze_coordinator()
        claim = faults.watch(EpochClaimed)
        running.replace_coordinator()
        claim.wait_until_caught()
        running.wait_for(lambda s: s.epoch > epoch and s.state == "running", PATIENCE_S)
        running.thaw_coordinator()
        outcome = first.wait(PATIENCE_S)
        assert outcome is not None
        assert outcome.ending is Ending.FENCED
        ends_exactly(running, course)


def test_a_coordinator_that_takes_over_from_one_at_work_needs_no_fault(
    plain: Transport, faults: Faults, course: Course
) -> None:
    with run(counting_job(course), plain, faults) as running:
        wait_checkpoint(running, course)
        epoch = running.wait_for(lambda s: s.epoch > 0, PATIENCE_S).epoch
        running.replace_coordinator()
        running.wait_for(lambda s: s.epoch > epoch, PATIENCE_S)
        ends_exactly(running, course)
    assert faults.injected == []


class Stuck(Listing):
    """Its user code does not come back."""

    release = threading.Event()
    stuck = threading.Event()
    subtask: int | None = None

    def handle_operator_event(self, event: int) -> None:
        Stuck.subtask = self.context.subtask
        self.stuck.set()
        self.release.wait(PATIENCE_S)


def stuck_job(course: Course) -> penstock.Job:
    Stuck.release.clear()
    Stuck.stuck.clear()
    job = counting_job(course)
    settings = job.operators.pop("reader")
    job.operator("reader", coordinator=settings.coordinator, subtask=lambda: Stuck(course), parallelism=2, codec="json",
                 state_codec="json")  # fmt: skip
    return job


def test_user_code_that_does_not_return_cannot_be_frozen_and_that_is_said(faults: Faults, course: Course) -> None:
    with run(stuck_job(course), MemoryTransport(MemoryBroker()), faults) as running:
        assert Stuck.stuck.wait(PATIENCE_S)
        assert Stuck.subtask is not None
        with pytest.raises(TimeoutError, match="user code is running"):
            running.freeze_subtask("reader", Stuck.subtask, timeout=0.5)
        Stuck.release.set()


def test_closing_names_the_process_whose_user_code_does_not_return(faults: Faults, course: Course) -> None:
    running = run(stuck_job(course), MemoryTransport(MemoryBroker()), faults).start()
    assert Stuck.stuck.wait(PATIENCE_S)
    with pytest.raises(JobFailed, match="thread-reader/"):
        running.close(timeout=0.5)
    Stuck.release.set()
    running.close()


def test_closing_ends_what_is_frozen_held_or_without_a_broker(plain: Transport, faults: Faults, course: Course) -> None:
    faults.hold(CheckpointCommit)
    with run(counting_job(course), plain, faults) as running, faults.broker_away("reader/0"):
        running.freeze_subtask("reader", 1)
    assert all(not t.name.startswith("penstock-thread-reader") for t in threading.enumerate())


def test_a_subtask_that_does_not_exist_is_an_error_that_says_so(course: Course) -> None:
    running: LocalJob
    with LocalJob(counting_job(course)) as running:
        with pytest.raises(KeyError, match="reader/7"):
            running.crash_subtask("reader", 7)
        with pytest.raises(penstock.PenstockError, match="no operator 'writer'"):
            running.crash_subtask("writer", 0)
