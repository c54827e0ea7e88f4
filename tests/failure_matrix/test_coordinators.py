"""Coordinators that are killed, and ones that thaw behind their successor (protocol, section 11).

The subtasks' processes stay up and are rolled back in place.
"""

from __future__ import annotations

import pytest

from penstock.cli.exits import Exit
from penstock.schemas.errors import TransportError
from penstock.schemas.events import EventFrame
from penstock.transport.ports import Partition
from tests.rounds import rounds

from .conftest import MakeRig
from .rig import COORDINATOR, NEVER, Rig

pytestmark = pytest.mark.kafka

COMPLETED = ("after-commit-of-checkpoint", "completed")
"""Where the checkpoint stands, and nobody has been told of it."""
OPENING = ("before-commit-of-epoch", "after-commit-of-epoch", "reset", "started", "ready")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("point", "policy"),
    [
        *((point, "replay") for point in ("cut", "before-marker", "before-commit-of-checkpoint", *COMPLETED)),
        ("before-commit-of-checkpoint", "global"),
        pytest.param("completed", "global", marks=pytest.mark.smoke),
    ],
)
@pytest.mark.parametrize("round_", rounds())
def test_a_coordinator_killed_during_a_checkpoint_is_followed_by_one_that_begins_from_the_last_completed(
    make_rig: MakeRig, point: str, policy: str, round_: int
) -> None:
    with make_rig(policy=policy).start() as rig:
        rig.run_up_to(20)
        tasks = rig.pids()
        held = rig.gates.hold(COORDINATOR, point)
        rig.gates.limit = 40
        n = held.wait().n
        completed = rig.completed()
        assert (n in completed) is (point in COMPLETED)
        rig.replace_coordinator()
        rig.finish()
        assert rig.epochs() == [1, 2]
        assert [claim.restored_checkpoint_id for claim in rig.claims()] == [-1, completed[-1]]
        assert (n in rig.completed()) is (point in COMPLETED)
        assert rig.pids() == tasks


def test_a_transaction_left_open_by_a_killed_coordinator_is_aborted_by_its_successor(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        tasks = rig.pids()
        held = rig.gates.hold(COORDINATOR, "inside-commit-of-checkpoint")
        rig.gates.limit = 40
        n = held.wait().n
        rig.coordinator.kill()
        log = Partition(rig.topics.checkpoints, 0)
        with pytest.raises(TransportError, match="a transaction that is still open"):
            rig.transport.read_all(log, timeout_s=2.0)
        rig.start_coordinator()
        rig.gates.wait_passage(COORDINATOR, "before-commit-of-epoch", lambda p: p.pid == rig.coordinator.pid)
        assert n not in rig.completed()  # read to the end, behind the successor's claim
        rig.finish()
        assert n not in rig.completed()
        assert rig.pids() == tasks


@pytest.mark.parametrize("point", [point for point in OPENING if point != "started"])
def test_a_coordinator_killed_during_a_global_failover_is_followed_by_one_that_ends_it(
    make_rig: MakeRig, point: str
) -> None:
    with make_rig().start() as rig:
        restored = rig.run_up_to(20).n
        tasks = rig.pids()
        tick = rig.gates.hold(COORDINATOR, "tick")
        tick.wait()
        held = rig.gates.hold(COORDINATOR, point)
        tick.release("fail")
        held.wait()
        rig.gates.limit = 40
        rig.replace_coordinator()
        rig.finish()
        assert rig.epochs() == ([1, 2] if point == OPENING[0] else [1, 2, 3])
        assert min(claim.restored_checkpoint_id for claim in rig.claims()[1:]) >= restored
        assert rig.pids() == tasks


@pytest.mark.soak
@pytest.mark.parametrize("point", OPENING)
@pytest.mark.parametrize("round_", rounds())
def test_a_coordinator_killed_while_it_takes_over_is_followed_by_one_that_does(
    make_rig: MakeRig, point: str, round_: int
) -> None:
    with make_rig().start() as rig:
        restored = rig.run_up_to(20).n
        tasks = rig.pids()
        rig.coordinator.kill()
        held = rig.gates.hold(COORDINATOR, point)
        rig.start_coordinator()
        held.wait()
        rig.replace_coordinator()
        rig.finish()
        assert rig.epochs() == ([1, 2] if point == OPENING[0] else [1, 2, 3])
        assert min(claim.restored_checkpoint_id for claim in rig.claims()[1:]) >= restored
        assert rig.pids() == tasks


@pytest.mark.parametrize("point", ["before-commit-of-epoch", "started", "ready"])
def test_the_very_first_coordinator_may_be_killed_while_it_opens(make_rig: MakeRig, point: str) -> None:
    with make_rig() as rig:
        held = rig.gates.hold(COORDINATOR, point)
        rig.start()
        held.wait()
        rig.gates.limit = 20
        tasks = rig.pids()
        rig.replace_coordinator()
        rig.finish()
        assert {claim.restored_checkpoint_id for claim in rig.claims()} == {-1}
        assert rig.pids() == tasks


@pytest.mark.soak
@pytest.mark.parametrize("point", ["before-frame", "cut", "before-commit-of-checkpoint"])
@pytest.mark.parametrize("round_", rounds())
def test_a_frozen_coordinator_that_thaws_behind_its_successor_leaves_and_changes_nothing(
    make_rig: MakeRig, point: str, round_: int
) -> None:
    with make_rig(truncate_every_s=NEVER).start() as rig:
        rig.run_up_to(20)
        tasks, zombie = rig.pids(), rig.coordinator
        held = rig.gates.hold(COORDINATOR, point)
        rig.gates.limit = 40
        caught = held.wait()
        zombie.freeze()
        held.release("flush")
        rig.start_coordinator()
        rig.run_up_to(40)
        thawed_at = len(rig.gates.passages)
        zombie.thaw()
        assert zombie.ended() == Exit.REPLACED, zombie.said()
        assert "Traceback" not in zombie.said() and " ERROR " not in zombie.said()
        if point == "before-frame":
            rig.gates.wait_passage(COORDINATOR, "after-frame", lambda p: p.pid == zombie.pid)
            assert late_frames(rig, caught.data["partition"])
        rig.finish()
        handled = [p for p in rig.gates.passages[thawed_at:] if p.point == "handled"]
        assert handled and zombie.pid not in {p.data["by"] for p in handled}
        assert rig.epochs() == [1, 2]
        if point != "before-frame":
            assert caught.n not in rig.completed()
        assert rig.pids() == tasks


def late_frames(rig: Rig, partition: int) -> list[int]:
    """Offsets of frames of the first epoch that stand behind the beginning of the second."""
    records = rig.records(rig.topics.events("list"), partition)
    first, second = (claim.epoch for claim in rig.claims())
    begins = min(offset for offset, record in records if getattr(record, "epoch", 0) == second)
    late = [(offset, record) for offset, record in records if offset > begins]
    return [offset for offset, record in late if isinstance(record, EventFrame) and record.epoch == first]
