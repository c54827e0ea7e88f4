"""Coordinator states too large for a record (protocol, sections 7.6, 7.7 and 11, last row)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.coordinator.preflight import check_may_start
from penstock.schemas.errors import StateError
from penstock.testing.local import LocalJob
from penstock.transport.state_storage import StateStorage

from .jobs import PATIENCE_S, Plan, make_job, run, wait_checkpoint, wait_status, wait_until

LARGE = bytes(200_000)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/states"


def large_plan() -> Plan:
    plan = Plan()
    plan.does["checkpoint_coordinator"] = lambda c, n, result: result.complete(b"%d" % n + LARGE)
    return plan


def storage(url: str, running: LocalJob) -> StateStorage:
    return StateStorage(url, running.settings.topics.root)


def job(plan: Plan, url: str | None, **changes: Any) -> Any:
    return make_job(plan, state_storage=url, **changes)


def named(running: LocalJob) -> set[str]:
    return running.client.history().locations()


def test_a_large_state_is_stored_and_comes_back(url: str) -> None:
    """Section 7.6."""
    plan = large_plan()
    seen: list[bytes] = []
    plan.does["reset_to_checkpoint"] = lambda c, n, state: seen.append(state)
    with run(job(plan, url)) as running:
        wait_checkpoint(running, plan)
        assert len(named(running)) >= 1
        restored(plan)
        wait_until(lambda: seen, "the reset")
        assert seen[0].endswith(LARGE)


def restored(plan: Plan) -> None:
    """Rolls back; the coordinator of these tests takes any state."""
    assert plan.coordinator is not None
    plan.coordinator.context.fail_job("told to")


def test_discarded_states_are_deleted_and_kept_ones_stay(url: str) -> None:
    """Section 7.9."""
    plan = large_plan()
    with run(job(plan, url)) as running:
        for _ in range(4):
            wait_checkpoint(running, plan)
        wait_until(lambda: len(storage(url, running).list()) <= 4, "old states to go")
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        running.wait(PATIENCE_S)
        assert named(running) <= set(storage(url, running).list())


def test_a_successor_collects_what_no_checkpoint_names(url: str) -> None:
    """Section 7.7 ◆: a crash may leave states behind that nobody names."""
    plan = large_plan()
    with run(job(plan, url)) as running:
        wait_checkpoint(running, plan)
    kept = next(iter(named(running)))
    orphan = sibling(kept)
    storage(url, running).put(orphan, b"of a crash")
    again = large_plan()
    with run(job(again, url), running.transport) as running:
        wait_until(lambda: orphan not in storage(url, running).list(), "the orphan to go")
        wait_checkpoint(running, again)


def sibling(location: str) -> str:
    """A name as the instance that stored ``location`` might have given to another state."""
    folder, _, name = location.rpartition("/")
    return f"{folder}/x-{name}" if folder else f"{location}-x"


def test_a_large_state_without_storage_aborts_its_checkpoint_and_says_what_to_set() -> None:
    """Section 7.8; G5."""
    plan = large_plan()
    with run(job(plan, None, checkpoint={"tolerable_failures": 0})) as running:
        status = wait_status(running, lambda s: s.failovers_global > 0)
        assert "no state storage" in status.last_failure
        assert "set state_storage" in status.last_failure


def test_a_state_that_is_gone_is_a_clear_error_that_names_the_way_out(url: str) -> None:
    """Section 11, last row."""
    plan = large_plan()
    with run(job(plan, url)) as running:
        wait_checkpoint(running, plan)
    states = storage(url, running)
    states.delete(states.list())
    again = large_plan()
    refused = pytest.raises(StateError, match=r"cannot be restored.*must be the same place.*--from-checkpoint")
    with refused, run(job(again, url), running.transport, subtasks=False):
        pass
    assert again.names() == []


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (lambda data: data[:400], r"has 400 bytes and should have 20000\d"),
        (lambda data: b"x" + data[1:], r"has the checksum \d+ and should have \d+"),
    ],
    ids=["cut short", "another byte"],
)
def test_a_damaged_state_of_a_coordinator_is_not_restored(
    url: str, damaged: Callable[[bytes], bytes], why: str
) -> None:
    """Section 7.6: size and checksum are those of what was stored."""
    plan = large_plan()
    with run(job(plan, url)) as running:
        wait_checkpoint(running, plan)
    states = storage(url, running)
    for location in named(running):
        states.put(location, damaged(states.get(location)))
    again = run(job(Plan(), url), running.transport, subtasks=False)
    with again, pytest.raises(StateError, match=rf"cannot be restored.*{why}.*--from-checkpoint"):
        again.wait(PATIENCE_S)


def test_a_coordinator_that_does_not_see_the_states_fences_nobody(url: str, tmp_path: Path) -> None:
    """As one on another machine, whose state_storage is a folder of that machine."""
    plan = large_plan()
    with run(job(plan, url)) as running:
        wait_checkpoint(running, plan)
        with pytest.raises(StateError, match="must be the same place"):
            check_may_start(job(large_plan(), (tmp_path / "elsewhere").as_uri()).settings, running.transport)
        with pytest.raises(StateError, match="no state storage"):
            check_may_start(job(large_plan(), None).settings, running.transport)
        wait_checkpoint(running, plan)


def test_a_state_that_is_gone_because_its_checkpoint_has_been_discarded_refuses_nobody(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = large_plan()
    with run(job(plan, url)) as running:
        wait_checkpoint(running, plan)
        has = StateStorage.has

        def later(self: StateStorage, location: str) -> bool:
            wait_until(lambda: location not in named(running), "the checkpoint to be discarded")
            wait_until(lambda: not has(self, location), "its state to go")
            return has(self, location)

        monkeypatch.setattr(StateStorage, "has", later)
        check_may_start(job(large_plan(), url).settings, running.transport)


def test_a_state_that_its_codec_cannot_read_is_the_same_clear_error() -> None:
    """Section 11, last row: not a failover that comes back for ever."""
    plan = Plan()
    plan.does["checkpoint_coordinator"] = lambda c, n, result: result.complete(b"no JSON")
    with run(make_job(plan)) as running:
        wait_checkpoint(running, plan)
    again = run(make_job(Plan(), state_codec="json"), running.transport, subtasks=False)
    with again, pytest.raises(StateError, match=r"cannot be restored.*expected JSON.*--from-checkpoint"):
        again.wait(PATIENCE_S)


def test_a_checkpoint_waits_for_its_state_to_be_stored(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 7.6: stored first and named; G6: what it waits for is nameable."""
    plan = large_plan()
    release = threading.Event()
    original: Callable[..., None] = StateStorage.put

    def slow(self: StateStorage, location: str, data: bytes) -> None:
        assert release.wait(PATIENCE_S)
        original(self, location, data)

    monkeypatch.setattr(StateStorage, "put", slow)
    with run(job(plan, url)) as running:
        status = wait_status(running, lambda s: any("storage" in p.waits_for for p in s.pending))
        assert "coordinator state of op on its way to storage" in status.pending[0].waits_for
        assert status.checkpoints_completed == 0
        release.set()
        wait_status(running, lambda s: s.checkpoints_completed > 0)
