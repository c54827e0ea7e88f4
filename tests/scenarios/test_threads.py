"""Rules about user code and its threads, on a whole job in memory: gateways, futures, callbacks, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.schemas.errors import CoordinatorClosed, TaskNotRunning
from penstock.schemas.status import Ending
from penstock.subtask_client.api import Idle, PollResult, Progress
from tests.coordinator.jobs import (
    PATIENCE_S,
    Coordinator,
    Plan,
    epoch_of,
    make_job,
    run,
    wait_checkpoint,
    wait_recovered,
    wait_status,
    wait_until,
)


def with_subtask(job: penstock.Job, plan: Plan, subtask: Callable[[], penstock.Subtask]) -> penstock.Job:
    """The same job, with another kind of subtask."""
    job.operators.clear()
    job.operator("op", coordinator=lambda: Coordinator(plan), subtask=subtask, parallelism=1)
    return job


@pytest.mark.parametrize("policy", ["replay", "reset", "global"])
def test_every_attempt_has_a_gateway_of_its_own_that_says_whose_it_is(policy: str) -> None:
    """R1, R32: a gateway never turns into another attempt's; the new one comes with execution_attempt_ready."""
    plan = Plan()
    with run(make_job(plan, on_failover=policy)) as running:
        plan.wait_gateways(0)
        old = plan.gateways[0]
        was = (old.subtask, old.attempt)
        old.fail_attempt("told to")
        plan.wait_call("execution_attempt_ready", 2)
        new = plan.gateways[0]
        assert new is not old
        assert (old.subtask, old.attempt) == was
        assert (new.subtask, new.attempt > old.attempt) == (0, True)
        wait_recovered(running, plan)


def test_a_future_is_open_while_its_event_is_received_and_not_handled() -> None:
    """R5, R24: there, the acknowledgement means that a mailbox has it."""
    plan = Plan()
    entered, release = threading.Event(), threading.Event()

    class Slow(penstock.Subtask):
        def handle_operator_event(self, event: bytes) -> None:
            entered.set()
            assert release.wait(PATIENCE_S)

    with run(with_subtask(make_job(plan, interval=None), plan, Slow)) as running:
        plan.wait_gateways(0)
        future = plan.gateways[0].send_event(b"a")
        try:
            assert entered.wait(PATIENCE_S)
            # The coordinator has heard that the subtask has the event.
            wait_status(running, lambda s: s.operators[0].subtasks[0].step == "handling event 0")
            assert not future.done()
        finally:
            release.set()
        future.result(PATIENCE_S)


class Alone:
    """Notices when something is entered while something else is still inside, or on another thread."""

    def __init__(self) -> None:
        self.inside = ""
        self.threads: set[int] = set()
        self.overlaps: list[str] = []
        self.entered: list[str] = []

    def __call__(self, name: str) -> Alone:
        self.threads.add(threading.get_ident())
        self.entered.append(name)
        if self.inside:
            self.overlaps.append(f"{name} during {self.inside}")
        self.inside = name
        return self

    def __enter__(self) -> None:
        threading.Event().wait(0.0005)  # long enough for another thread to come in

    def __exit__(self, *_: object) -> None:
        self.inside = ""


def test_a_subtask_handles_one_event_at_a_time_in_order_and_none_during_a_snapshot() -> None:
    """R25: everything that is called on its object is called by one thread, one after the other."""
    plan = Plan()
    alone = Alone()
    handled: list[int] = []

    class Watched(penstock.Subtask):
        def handle_operator_event(self, event: bytes) -> None:
            with alone("event"):
                handled.append(int(event))

        def poll(self) -> PollResult:
            with alone("poll"):
                return Progress() if len(handled) < 200 else Idle(0.01)

        def snapshot_state(self, checkpoint_id: int) -> bytes:
            with alone("snapshot"):
                return b""

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            with alone("notice"):
                pass

    with run(with_subtask(make_job(plan, interval=0.01), plan, Watched)) as running:
        plan.wait_gateways(0)
        last = [plan.gateways[0].send_event(b"%d" % i) for i in range(200)][-1]
        last.result(PATIENCE_S)
        wait_checkpoint(running, plan)
        wait_until(lambda: "notice" in alone.entered, "a notice")
    assert handled == list(range(200))
    assert set(alone.entered) == {"event", "poll", "snapshot", "notice"}
    assert alone.overlaps == []
    assert len(alone.threads) == 1


def test_an_event_that_a_subtask_has_no_handler_for_ends_the_job() -> None:
    """R26; section 8: it is a mistake in the job."""
    plan = Plan()
    with run(with_subtask(make_job(plan), plan, penstock.Subtask)) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"whatever")
        outcome = running.wait(PATIENCE_S)
        assert outcome.ending is Ending.FAILED
        assert "give it a handle_operator_event" in outcome.cause


def test_under_reset_a_dead_attempts_gateway_returns_futures_that_have_failed() -> None:
    """R30, R31: it does not raise, and nothing of it reaches the successor."""
    plan = Plan()
    with run(make_job(plan, on_failover="reset")) as running:
        plan.wait_gateways(0)
        old = plan.gateways[0]
        old.fail_attempt("told to")
        plan.wait_call("execution_attempt_ready", 2)
        future = old.send_event(b"too late")
        assert future.done()
        assert isinstance(future.exception(), TaskNotRunning)
        plan.gateways[0].send_event(b"behind it").result(PATIENCE_S)
        assert (0, b"too late") not in plan.handled
        wait_recovered(running, plan)


class Threads(Plan):
    """Notes on which thread each callback comes, and whether two of them meet."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = Alone()

    def note(self, name: str, *args: Any) -> None:
        with self.alone(name):
            super().note(name, *args)


def test_every_callback_of_a_coordinator_comes_on_one_thread_one_after_the_other() -> None:
    """R94: checkpoints, failovers of both kinds, events, requests and the end included."""
    plan = Threads()
    with run(make_job(plan, parallelism=2, interval=0.01)) as running:
        plan.wait_gateways(0, 1)
        wait_checkpoint(running, plan)
        plan.gateways[0].fail_attempt("told to")
        plan.wait_call("subtask_reset")
        assert running.client.request("op", b"x", timeout_s=PATIENCE_S).accepted
        assert plan.coordinator is not None
        plan.coordinator.context.fail_job("told to")
        plan.wait_call("reset_to_checkpoint")
        wait_checkpoint(running, plan)
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
    assert {
        "start", "execution_attempt_ready", "execution_attempt_failed", "subtask_reset", "reset_to_checkpoint",
        "checkpoint_coordinator", "notify_checkpoint_complete", "handle_event_from_operator", "handle_request", "close",
    } <= set(plan.alone.entered)  # fmt: skip
    assert plan.alone.overlaps == []
    assert len(plan.alone.threads) == 2
    assert plan.alone.entered[-1] == "close", "the last one alone has a thread of its own: nobody waits for ever for it"


def test_after_the_end_nothing_that_user_code_kept_has_an_effect_or_raises() -> None:
    """R38: there, calls that would change something raise."""
    plan = Plan()
    owed: list[Any] = []
    called: list[str] = []

    def keep(_: object, n: int, result: Any) -> None:
        if owed:
            result.complete(b"0")
        owed.append(result)

    plan.does["checkpoint_coordinator"] = keep
    with run(make_job(plan, interval=0.02)) as running:
        plan.wait_gateways(0)
        plan.wait_call("checkpoint_coordinator")
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
        future = plan.gateways[0].send_event(b"too late")
        assert isinstance(future.exception(), CoordinatorClosed)
        assert plan.coordinator is not None
        context = plan.coordinator.context
        owed[0].complete(b"0")
        context.fail_job("too late")
        context.run_in_coordinator(lambda: called.append("run_in_coordinator"))
        context.call_later(0.0, lambda: called.append("call_later"))
        context.call_async(lambda: called.append("work"), lambda result, error: called.append("call_async"))
    assert running.service is not None
    assert running.service.done()  # its thread has ended: nothing of this can happen any more
    assert called == []
    assert plan.names()[-1] == "close"
    assert epoch_of(running) == 1
