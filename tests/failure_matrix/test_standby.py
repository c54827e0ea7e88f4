"""Coordinators with ``--standby``: the one at work is killed, frozen, asked to leave, or merely slow (protocol, 4).

The subtasks' processes stay up and are rolled back in place; whoever follows is elected by Kafka's group protocol.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from penstock.audit import audit
from penstock.broker import EmbeddedBroker, processes
from penstock.cli.exits import Exit
from tests.rounds import rounds

from .children import Child
from .conftest import MakeRig
from .gates import DEADLINE_S
from .rig import COORDINATOR, Rig

pytestmark = pytest.mark.kafka

AFTER_S = 2.0
"""The embedded broker allows sessions that are shorter than Kafka's default."""
LONG_AFTER_S = 45.0
HAND_OVER_S = 20.0
"""Far above what a coordinator that leaves in order needs, and far below a session that is waited for."""


def standby(after_s: float = AFTER_S) -> list[str]:
    return ["--standby", "--takeover-after", f"{after_s:g}"]


def start(rig: Rig, standbys: int = 1, after_s: float = AFTER_S) -> tuple[Child, list[Child]]:
    """The whole job, with one coordinator at work and others that stand by for it."""
    rig.announce()
    active = rig.start_coordinator(*standby(after_s))
    rig.start_subtasks()
    rig.run_up_to(20)
    waiting = [rig.start_coordinator(*standby(after_s)) for _ in range(standbys)]
    for child in waiting:
        wait_said(rig, child, f"standing by: epoch {rig.claims()[0].epoch} is at work")
    group = rig.topics.standby_group
    rig.wait_until(lambda: rig.transport.candidates(group) == 1 + standbys, f"{1 + standbys} candidates")
    return active, waiting


def finish(rig: Rig) -> None:
    """Every list is exact, and so are the logs."""
    rig.finish()
    report = audit(rig.transport, rig.settings.name)
    assert report.healthy, report.findings


def wait_said(rig: Rig, child: Child, words: str, times: int = 1) -> None:
    rig.wait_until(lambda: child.said().count(words) >= times, f"{child.log_file.name} says {words!r}")


def followed_by(rig: Rig, waiting: list[Child]) -> Child:
    """Lets the job go on; exactly one of those that waited takes over, in the second epoch."""
    rig.run_up_to(40)
    pids = {p.pid for p in rig.gates.of(COORDINATOR, "started")[1:]}
    (heir,) = [child for child in waiting if child.pid in pids]
    assert pids == {heir.pid}
    assert rig.epochs() == [1, 2]
    return heir


@pytest.mark.soak
@pytest.mark.parametrize(
    "point", ["tick", pytest.param("cut", marks=pytest.mark.smoke), "before-commit-of-checkpoint", "before-frame"]
)
@pytest.mark.parametrize("round_", rounds())
def test_a_killed_coordinator_is_followed_by_exactly_one_of_two_standbys(
    make_rig: MakeRig, point: str, round_: int
) -> None:
    with make_rig() as rig:
        active, waiting = start(rig, standbys=2)
        tasks = rig.pids()
        held = rig.gates.hold(COORDINATOR, point)
        rig.gates.limit = 40
        held.wait()
        active.kill()
        held.release()
        followed_by(rig, waiting)
        finish(rig)
        assert [child.ended() for child in waiting] == [Exit.DONE, Exit.DONE]
        assert rig.pids() == tasks


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_a_frozen_coordinator_is_followed_and_when_it_thaws_it_stands_by(make_rig: MakeRig, round_: int) -> None:
    with make_rig() as rig:
        active, waiting = start(rig)
        tasks = rig.pids()
        held = rig.gates.hold(COORDINATOR, "before-commit-of-checkpoint")
        rig.gates.limit = 40
        caught = held.wait()
        active.freeze()
        held.release()
        heir = followed_by(rig, waiting)
        active.thaw()
        wait_said(rig, active, f"standing by: epoch {rig.claims()[1].epoch} is at work")
        assert "Traceback" not in active.said() and " ERROR " not in active.said()
        assert caught.n not in rig.completed()
        processes.send_signal(heir, signal.SIGTERM)  # and back
        assert heir.ended() == Exit.DONE, heir.said()
        rig.coordinator = active
        finish(rig)
        assert rig.epochs() == [1, 2, 3]
        assert rig.pids() == tasks


def test_one_that_is_asked_to_leave_hands_over_at_once_and_the_job_goes_on(make_rig: MakeRig) -> None:
    with make_rig() as rig:
        active, waiting = start(rig, standbys=2, after_s=LONG_AFTER_S)
        tasks = rig.pids()
        began = time.monotonic()
        rig.gates.limit = 40
        processes.send_signal(active, signal.SIGTERM)
        assert active.ended() == Exit.DONE, active.said()
        rig.gates.wait_for(lambda: len(rig.gates.of(COORDINATOR, "started")) > 1, "a successor")
        assert time.monotonic() - began < HAND_OVER_S
        followed_by(rig, waiting)
        finish(rig)
        assert rig.pids() == tasks


def test_one_that_only_stands_by_leaves_and_nothing_else_happens(make_rig: MakeRig) -> None:
    with make_rig() as rig:
        active, (waiting,) = start(rig)
        processes.send_signal(waiting, signal.SIGTERM)
        assert waiting.ended() == Exit.DONE, waiting.said()
        rig.coordinator = active
        finish(rig)
        assert rig.epochs() == [1]


def test_a_callback_that_takes_long_is_no_reason_to_take_over(make_rig: MakeRig) -> None:
    with make_rig() as rig:
        active, (waiting,) = start(rig)
        held = rig.gates.hold(COORDINATOR, "cut")
        held.wait()
        wait_silence(rig, 3 * AFTER_S)
        assert rig.transport.candidates(rig.topics.standby_group) == 2
        held.release()
        rig.coordinator = active
        finish(rig)
        assert waiting.ended() == Exit.DONE
        assert rig.epochs() == [1]


def test_one_without_standby_is_left_at_work_while_it_is_heard_and_followed_when_it_is_not(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        alone = rig.coordinator
        waiting = rig.start_coordinator(*standby())
        wait_said(rig, waiting, ", elected to follow it")
        rig.run_up_to(30)
        assert rig.epochs() == [1]
        alone.kill()
        followed_by(rig, [waiting])
        finish(rig)


def test_one_whose_callback_does_not_end_gives_its_place_up_all_the_same_when_it_is_asked_to_leave(
    make_rig: MakeRig,
) -> None:
    with make_rig() as rig:
        active, waiting = start(rig)
        held = rig.gates.hold(COORDINATOR, "cut")
        rig.gates.limit = 40
        held.wait()
        processes.send_signal(active, signal.SIGTERM)
        assert active.ended() == Exit.DONE, active.said()
        followed_by(rig, waiting)
        finish(rig)


@pytest.mark.parametrize("how", ["paused", "killed"])
def test_a_broker_that_is_away_for_longer_than_any_session_is_no_reason_to_take_over(
    make_rig: MakeRig, tmp_path: Path, how: str
) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, make_rig(broker.bootstrap) as rig:
        active, (waiting,) = start(rig)
        tasks = rig.pids()
        (broker.pause if how == "paused" else broker.kill)()
        time.sleep(2 * AFTER_S)  # the outage itself; nothing is waited for
        assert active.alive() and waiting.alive()
        (broker.resume if how == "paused" else broker.start)()
        rig.coordinator = active
        finish(rig)
        assert waiting.ended() == Exit.DONE, waiting.said()
        assert rig.epochs() == [1]
        assert rig.pids() == tasks


def wait_silence(rig: Rig, seconds: float) -> None:
    """Until no status has been told for so long."""
    deadline = time.monotonic() + DEADLINE_S
    while (status := rig.client.status()) is None or time.time() * 1000 - status.at_ms < seconds * 1000:
        assert time.monotonic() < deadline, "the coordinator goes on telling its status"
        time.sleep(0.1)
