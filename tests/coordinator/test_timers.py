"""What outlives a global failover and what does not (protocol, section 8; R88)."""

from __future__ import annotations

import threading

from penstock.coordinator.timers import Timers
from penstock.testing.local import LocalJob

from .jobs import PATIENCE_S, Plan, make_job, run, wait_status, wait_until


def roll_back(running: LocalJob, plan: Plan) -> None:
    """A global failover, from the coordinator's own thread or another."""
    status = wait_status(running, lambda s: s.state == "running")
    assert plan.coordinator is not None
    plan.coordinator.context.fail_job("told to")
    wait_status(running, lambda s: s.epoch > status.epoch and s.state == "running")


def test_a_result_that_comes_after_a_global_failover_is_dropped() -> None:
    """The result belongs to a history that is undone."""
    plan = Plan()
    results: list[object] = []
    working, release, later = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        working.set()
        assert release.wait(PATIENCE_S)
        return "stale"

    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        context = plan.coordinator.context
        context.call_async(work, lambda result, error: results.append(result))
        assert working.wait(PATIENCE_S)
        roll_back(running, plan)
        release.set()

        def fresh(result: object, error: BaseException | None) -> None:
            results.append(result)
            later.set()

        plan.coordinator.context.call_async(lambda: "fresh", fresh)
        assert later.wait(PATIENCE_S)
        assert results == ["fresh"]


def test_call_later_is_dropped_by_a_global_failover() -> None:
    """R88: other work may be dropped."""
    plan = Plan()
    called: list[str] = []
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        context = plan.coordinator.context
        context.call_later(1.0, lambda: called.append("before"))
        roll_back(running, plan)
        plan.coordinator.context.call_later(1.0, lambda: called.append("after"))
        wait_until(lambda: called, "the later timer")
        assert called == ["after"]


def test_call_every_survives_a_global_failover() -> None:
    """Global failovers or not."""
    plan = Plan()
    counted: list[int] = []
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        context = plan.coordinator.context
        coordinator = plan.coordinator
        timer = context.call_every(0.005, lambda: counted.append(coordinator.context.epoch))
        wait_until(lambda: len(counted) >= 2, "two rounds")
        roll_back(running, plan)
        wait_until(lambda: 2 in counted, "a round in the next epoch")
        timer.cancel()
        context = plan.coordinator.context
        ran = threading.Event()
        context.call_later(0.02, ran.set)
        assert ran.wait(PATIENCE_S)
        before = len(counted)
        again = threading.Event()
        context.call_later(0.02, again.set)
        assert again.wait(PATIENCE_S)
        assert len(counted) == before


def test_a_cancelled_timer_is_not_called() -> None:
    """TimerHandle.cancel."""
    plan = Plan()
    called: list[str] = []
    done = threading.Event()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        context = plan.coordinator.context
        context.call_later(0.01, lambda: called.append("cancelled")).cancel()
        context.call_later(0.03, done.set)
        assert done.wait(PATIENCE_S)
    assert called == []


def test_timers_run_in_the_order_of_their_times() -> None:
    """Those of one time in the order they were added."""
    order: list[str] = []
    woken: list[None] = []
    timers = Timers(lambda: woken.append(None))
    for name, delay in (("later", 0.0), ("latest", 0.0)):
        timers.add(delay, lambda name=name: order.append(name))  # type: ignore[misc]
    timers.add(-1.0, lambda: order.append("negative means now"))
    assert timers.next_at() is not None
    timers.run_due()
    assert order == ["later", "latest", "negative means now"]
    assert timers.next_at() is None
    assert len(woken) == 3
