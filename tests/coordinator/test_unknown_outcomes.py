"""A commit whose outcome stays unknown (protocol, section 7.7 ◆; section 11)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import penstock
from penstock.coordinator import host, preflight
from penstock.schemas.checkpoints import CheckpointCompleted, EpochClaimed, JobFinished
from penstock.schemas.codec import decode
from penstock.schemas.errors import (
    AppendFailed,
    CoordinatorClosed,
    EventNotHandled,
    Fenced,
    JobFailed,
    OutcomeUnknown,
)
from penstock.schemas.settings import RestartStrategy
from penstock.schemas.status import Ending
from penstock.transport.memory import MemoryBroker, MemoryFencedLog, MemoryTransport
from penstock.transport.ports import FencedLog, Partition

from .jobs import PATIENCE_S, Plan, make_job, run, wait_checkpoint, wait_recovered, wait_status, wait_until

Records = Sequence[tuple[str, bytes | None]]


class UnsureLog:
    """Raises OutcomeUnknown for the commits that it is told to, before or after they stand."""

    def __init__(self, log: MemoryFencedLog, faults: Faults) -> None:
        self._log, self._faults = log, faults

    def commit(self, records: Records) -> None:
        fault = self._faults.of(records)
        if fault == "before":
            raise self._faults.error("the broker never got it")
        self._log.commit(records)
        if fault == "after":
            raise self._faults.error("the answer was lost")

    def close(self) -> None:
        self._log.close()


class Faults(MemoryTransport):
    """An in-memory transport whose ``times`` next commits of a kind of record have no outcome."""

    def __init__(self, kind: type, when: str, times: int = 1, *, skip: int = 0) -> None:
        super().__init__(MemoryBroker())
        self.kind, self.when, self.times, self.skip = kind, when, times, skip
        self.error: Callable[[str], Exception] = OutcomeUnknown
        self.hit = threading.Event()

    def of(self, records: Records) -> str:
        if not any(isinstance(decode(v), self.kind) for _, v in records if v is not None) or self.times == 0:
            return ""
        if self.skip:
            self.skip -= 1
            return ""
        self.times -= 1
        self.hit.set()
        return self.when

    def claim_log(self, topic: str, owner: str, timeout_s: float = 30.0) -> Any:
        log: FencedLog = UnsureLog(super().claim_log(topic, owner, timeout_s), self)
        return log


def completed(transport: MemoryTransport, topic: str) -> list[int]:
    found = [decode(r.value) for r in transport.read_all(Partition(topic, 0)) if r.value is not None]
    return [record.checkpoint_id for record in found if isinstance(record, CheckpointCompleted)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_checkpoint_whose_commit_has_no_outcome_loses_and_doubles_nothing(when: str) -> None:
    """Section 7.7 ◆: the instance ends, its successor sees what stands."""
    plan = Plan()
    transport = Faults(CheckpointCompleted, when, skip=2)
    with run(make_job(plan), transport) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"echo once")
        assert transport.hit.wait(PATIENCE_S)
        plan.wait_call("start", 2)
        stood = completed(transport, running.settings.topics.checkpoints)
        resets = [call[1] for call in plan.calls if call[0] == "reset_to_checkpoint"]
        assert resets[0] in stood
        wait_recovered(running, plan)
        state = running.client.history().last
        assert state is not None
        (snapshot,) = state.subtasks.values()
        assert snapshot.state is not None
        assert (snapshot.state.inline or b"").split(b"\0").count(b"echo once") == 1


def test_a_successor_begins_though_a_close_does_not_return_and_the_others_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "CLOSE_TIMEOUT_S", 0.1)
    plan, goes_on, closed = Plan(), threading.Event(), threading.Event()

    class Hangs(penstock.OperatorCoordinator):
        def close(self) -> None:
            goes_on.wait(PATIENCE_S)
            closed.set()

    job, transport = make_job(plan), Faults(CheckpointCompleted, "after", skip=2)
    job.operator("hangs", coordinator=Hangs, subtask=penstock.Subtask, parallelism=1)
    with run(job, transport) as running:
        assert transport.hit.wait(PATIENCE_S)
        plan.wait_call("close")
        plan.wait_call("start", 2)
        wait_checkpoint(running, plan)
        assert not closed.is_set()
        goes_on.set()
        assert closed.wait(PATIENCE_S)


@pytest.mark.parametrize("kind", [EpochClaimed, CheckpointCompleted])
def test_who_is_fenced_and_finds_no_newer_epoch_is_followed_by_an_instance_of_its_own_host(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 4: the broker aborts the transaction of a process that is paused in a commit, and then refuses it."""
    monkeypatch.setattr(preflight, "SUCCESSOR_WAIT_S", 0.2)
    plan = Plan()
    transport = Faults(kind, "before")
    transport.error = Fenced
    with run(make_job(plan), transport) as running:
        assert transport.hit.wait(PATIENCE_S)
        wait_recovered(running, plan)
        assert wait_status(running, lambda s: s.state == "running").epoch == (1 if kind is EpochClaimed else 2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_claim_without_an_outcome_is_followed_by_another(when: str) -> None:
    """Section 4: ended for any other reason, it is started again by its host."""
    plan = Plan()
    transport = Faults(EpochClaimed, when)
    with run(make_job(plan), transport) as running:
        wait_recovered(running, plan)
        status = wait_status(running, lambda s: s.state == "running")
        assert status.epoch == (2 if when == "after" else 1)


def test_the_instance_deletes_and_tells_nothing_of_a_checkpoint_whose_outcome_it_does_not_know() -> None:
    """Section 7.7 ◆."""
    plan = Plan()
    transport = Faults(CheckpointCompleted, "after")
    with run(make_job(plan), transport):
        plan.wait_call("start", 2)
        first = plan.names()[: plan.names().index("close")]
        assert "notify_checkpoint_complete" not in first
        plan.wait_call("notify_checkpoint_complete")


def test_futures_of_an_instance_that_broke_off_settle() -> None:
    """Section 6: the returned future settles exactly once, always."""
    plan = Plan()
    transport = Faults(CheckpointCompleted, "before")
    gateways: list[Any] = []
    plan.does["execution_attempt_ready"] = lambda c, s, a: gateways.append(plan.gateways[s])
    with run(make_job(plan), transport):
        plan.wait_call("start", 2)
        future = gateways[0].send_event(b"to nobody")
        with pytest.raises((CoordinatorClosed, EventNotHandled)):
            future.result(PATIENCE_S)


def test_a_coordinator_that_breaks_off_again_and_again_fails_the_job_with_the_cause() -> None:
    """Section 4: within the restart budget."""
    plan = Plan()
    transport = Faults(CheckpointCompleted, "before", times=1_000)
    job = make_job(plan, restart=RestartStrategy(backoff_next=0.01, backoff_max=0.01, budget=2))
    with run(job, transport) as running, pytest.raises(JobFailed, match=r"broke off too often.*never got it"):
        running.wait(PATIENCE_S)


def test_a_broker_that_refuses_a_commit_is_no_end_of_the_job() -> None:
    """Section 4: a coordinator that ends for any other reason is started again."""
    plan = Plan()
    transport = Faults(CheckpointCompleted, "before")
    transport.error = AppendFailed
    with run(make_job(plan), transport) as running:
        plan.wait_call("start", 2)
        wait_recovered(running, plan)


def test_a_stop_whose_commit_has_no_outcome_ends_the_job_all_the_same() -> None:
    """Section 8: until its effect is committed it is executed again."""
    plan = Plan()
    transport = Faults(JobFinished, "before")
    with run(make_job(plan), transport) as running:
        wait_checkpoint(running, plan)
        reply = running.client.stop(timeout_s=PATIENCE_S)
        assert reply.accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
        wait_until(lambda: plan.count("close") == 2, "both instances to close")
