"""Subtasks that are killed, frozen, thawed and doubled, as processes (protocol, section 11)."""

from __future__ import annotations

import pytest

from penstock.cli.exits import Exit
from penstock.schemas.errors import PositionUnavailable
from penstock.schemas.events import Start
from tests.rounds import rounds

from .conftest import MakeRig
from .process import SUPERSEDED
from .rig import COORDINATOR, FIRST, NEVER, SECOND

pytestmark = pytest.mark.kafka

AROUND_AN_EVENT = ("before-handling", "handled")
AROUND_A_CHECKPOINT = ("before-snapshot", "after-snapshot", "before-ack", "after-ack")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("point", "policy"),
    [
        *((point, "replay") for point in AROUND_AN_EVENT),
        ("handled", "reset"),
        pytest.param("handled", "global", marks=pytest.mark.smoke),
    ],
)
@pytest.mark.parametrize("round_", rounds())
def test_a_subtask_killed_around_an_event_comes_back_from_the_last_checkpoint(
    make_rig: MakeRig, point: str, policy: str, round_: int
) -> None:
    with make_rig(policy=policy).start() as rig:
        rig.run_up_to(20)
        before = rig.pids()
        held = rig.gates.hold(FIRST, point, lambda p: p.n == 30)
        rig.gates.limit = 40
        assert held.wait().pid == before[0]
        rig.subtasks[0].child.kill()
        status = rig.finish()
        assert status.failovers_region + status.failovers_global == 1
        assert rig.pids()[0] != before[0]
        assert rig.pids()[1] == before[1]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("point", "policy"),
    [*((point, "replay") for point in AROUND_A_CHECKPOINT), ("after-ack", "reset"), ("after-ack", "global")],
)
@pytest.mark.parametrize("round_", rounds())
def test_a_subtask_killed_around_its_part_of_a_checkpoint_takes_no_part_in_it(
    make_rig: MakeRig, point: str, policy: str, round_: int
) -> None:
    """Also where its ack stands already: it is not counted for its successor, and the checkpoint is aborted."""
    with make_rig(policy=policy).start() as rig:
        rig.run_up_to(20)
        before = rig.pids()
        cut = rig.gates.hold(COORDINATOR, "cut")
        n = cut.wait().n
        held = rig.gates.hold(FIRST, point, lambda p: p.n == n)
        other = rig.gates.hold(SECOND, "before-snapshot", lambda p: p.n == n)
        rig.gates.limit = 40
        cut.release()
        other.wait()  # n cannot complete yet
        assert held.wait().pid == before[0]
        rig.subtasks[0].child.kill()
        rig.gates.wait_passage(COORDINATOR, "failed", lambda p: p.n == 0)
        other.release()
        status = rig.finish()
        assert status.failovers_region + status.failovers_global == 1
        assert rig.pids()[0] != before[0]
        assert rig.pids()[1] == before[1]
        assert n not in rig.completed()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("point", "then", "dropped"),
    [
        ("before-handling", "", "stale-"),
        ("before-handling", "raise", "stale-Failed"),
        ("before-snapshot", "", "stale-CheckpointAck"),
        ("before-ack", "", "stale-CheckpointAck"),
    ],
)
@pytest.mark.parametrize("round_", rounds())
def test_a_frozen_subtask_that_thaws_behind_its_successor_leaves_and_nothing_it_writes_counts(
    make_rig: MakeRig, point: str, then: str, dropped: str, round_: int
) -> None:
    with make_rig(truncate_every_s=NEVER).start() as rig:
        rig.run_up_to(20)
        held = rig.gates.hold(FIRST, point, lambda p: p.n == 30 or point != "before-handling")
        rig.gates.limit = 40
        held.wait()
        rig.subtasks[0].child.freeze()
        held.release(then)
        zombie = rig.subtasks[0].replace()
        rig.run_up_to(40)
        zombie.thaw()
        assert zombie.ended() == SUPERSEDED, zombie.said()
        status = rig.finish()
        assert [why for why in status.dropped if why.startswith(dropped)], status.dropped
        assert len(rig.gates.of(FIRST, "after-hello")) == 2
        assert status.failovers_region == 1


def test_a_frozen_subtask_leaves_also_where_the_start_of_its_successor_has_been_truncated(make_rig: MakeRig) -> None:
    """Section 4: it finds its position gone and asks anew; but its Hello names the attempt that it was, so it is told
    that it has been superseded and supersedes nobody."""
    with make_rig(truncate_every_s=0.0).start() as rig:
        rig.run_up_to(20)
        held = rig.gates.hold(FIRST, "before-handling", lambda p: p.n == 30)
        rig.gates.limit = 40
        held.wait()
        rig.subtasks[0].child.freeze()
        held.release()
        zombie = rig.subtasks[0].replace()
        successor = rig.subtasks[0].child
        rig.run_up_to(40)
        events = rig.topics.events("list")

        def no_start_is_left() -> bool:
            try:
                return not any(isinstance(record, Start) for _, record in rig.records(events))
            except PositionUnavailable:  # truncated while it was read
                return False

        rig.wait_until(no_start_is_left, "truncation")
        zombie.thaw()
        assert zombie.ended() == SUPERSEDED, zombie.said()
        assert len(rig.gates.of(FIRST, "after-hello")) == 3
        rig.finish()
        assert rig.subtasks[0].child is successor


def test_of_two_attempts_of_one_partition_the_later_hello_wins(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        older = rig.subtasks[0].replace()
        assert older.ended() == SUPERSEDED, older.said()
        status = rig.finish()
        assert len(rig.gates.of(FIRST, "after-hello")) == 2
        assert status.failovers_region == 1


def test_of_two_instances_that_nobody_has_answered_yet_the_later_hello_wins(make_rig: MakeRig) -> None:
    with make_rig() as rig:
        rig.announce()
        said_hello = rig.gates.hold(FIRST, "after-hello")
        rig.start_subtasks()
        older_pid = said_hello.wait().pid
        older = rig.subtasks[0].replace()
        assert older.pid == older_pid
        rig.gates.wait_passage(FIRST, "after-hello", lambda p: p.pid != older_pid)
        said_hello.release()
        rig.start_coordinator()
        assert older.ended() == SUPERSEDED, older.said()
        rig.finish()
        assert {opened.pid for opened in rig.gates.of(FIRST, "opened")} == {rig.subtasks[0].child.pid}


def test_the_same_job_started_a_second_time_takes_over_and_the_first_says_why_it_ends(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        coordinator, tasks, older_run = rig.coordinator, rig.subtasks, rig.run
        rig.announce()
        rig.start_coordinator()
        rig.start_subtasks()
        assert coordinator.ended() == Exit.REPLACED, coordinator.said()
        assert '"ending": "fenced"' in coordinator.said()
        for task in tasks:
            task.returned()
            assert f"run {older_run} of job {rig.settings.name} has been replaced" in task.child.said()
            assert len(task.children) == 1
        rig.finish()
