"""User code that raises, in every callback (protocol, section 8; R44, R85, R90)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import penstock
from penstock.schemas.settings import RestartStrategy
from penstock.schemas.status import Ending

from .jobs import (
    PATIENCE_S,
    Boom,
    Coordinator,
    Plan,
    epoch_of,
    make_job,
    run,
    wait_checkpoint,
    wait_recovered,
    wait_status,
)


def nothing(plan: Plan) -> None:
    """The callback comes of itself."""


def fail_the_subtask(plan: Plan) -> None:
    plan.poison[b"bad"] = 1
    plan.gateways[0].send_event(b"bad")


def fail_the_job(plan: Plan) -> None:
    assert plan.coordinator is not None
    plan.coordinator.context.fail_job("told to")


def fail_a_checkpoint(plan: Plan) -> None:
    """One attempt fails while a checkpoint awaits its coordinator."""

    def never(coordinator: Coordinator, n: int, result: object) -> None:
        del plan.does["checkpoint_coordinator"]
        threading.Timer(0.0, fail_the_subtask, (plan,)).start()

    plan.does["checkpoint_coordinator"] = never


PROVOKED: dict[str, Callable[[Plan], None]] = {
    "start": nothing,
    "handle_event_from_operator": nothing,
    "checkpoint_coordinator": nothing,
    "execution_attempt_ready": nothing,
    "notify_checkpoint_complete": nothing,
    "notify_checkpoint_aborted": fail_a_checkpoint,
    "reset_to_checkpoint": fail_the_job,
    "subtask_reset": fail_the_subtask,
    "execution_attempt_failed": fail_the_subtask,
}


@pytest.mark.parametrize("callback", PROVOKED)
def test_a_callback_that_raises_is_a_global_failover_and_the_job_goes_on(callback: str) -> None:
    """Section 8: a coordinator raised."""
    plan = Plan()
    plan.raises[callback] = 1
    with run(make_job(plan)) as running:
        if PROVOKED[callback] is not nothing:
            plan.wait_gateways(0)
            PROVOKED[callback](plan)
        plan.wait_for(lambda: plan.raises[callback] == 0, f"{callback} to raise")
        status = wait_status(running, lambda s: s.epoch >= 2 and s.state == "running")
        assert status.failovers_global >= 1
        assert f"coordinator of op raised in {callback}: Boom: in {callback}" in status.last_failure
        wait_recovered(running, plan)
        assert plan.count("start") == (2 if callback == "start" else 1)  # again where it had raised


def test_the_traceback_of_a_callback_that_raises_the_same_again_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = Plan()
    plan.raises["checkpoint_coordinator"] = 3
    with run(make_job(plan)):
        plan.wait_for(lambda: plan.raises["checkpoint_coordinator"] == 0, "the third one to raise")
        plan.wait_call("notify_checkpoint_complete")
    told = [record for record in caplog.records if "Boom: in checkpoint_coordinator" in record.getMessage()]
    tracebacks = [record.exc_info is not None for record in told if "raised" in record.getMessage()]
    assert tracebacks[:3] == [True, False, False]


def test_an_event_that_the_codec_does_not_take_ends_the_job() -> None:
    """Section 8: a dict without codec="json" is a mistake in the job, in the coordinator as in a subtask."""
    plan = Plan()
    plan.does["execution_attempt_ready"] = lambda coordinator, *_: plan.gateways[0].send_event({"a": 1})
    with run(make_job(plan)) as running:
        outcome = running.wait(PATIENCE_S)
        assert outcome.ending is Ending.FAILED
        assert "ConfigurationError" in outcome.cause
        assert "codec" in outcome.cause
        assert plan.count("reset_to_checkpoint") == 0


def test_a_poll_of_an_operator_with_inputs_ends_the_job() -> None:
    """Section 8: another attempt could not cure it."""

    class Polls(penstock.Subtask):
        def poll(self) -> penstock.Idle:
            return penstock.Idle(1.0)

    job = penstock.Job("job", restart=penstock.RestartStrategy(budget=50))
    source = job.operator("source", subtask=penstock.Subtask, parallelism=1)
    job.operator("sink", subtask=Polls, parallelism=1, inputs=[source.rebalance()])
    with run(job) as running:
        outcome = running.wait(PATIENCE_S)
        assert outcome.ending is Ending.FAILED
        assert "give the poll to an operator of its own" in outcome.cause


def test_the_status_names_callback_and_error() -> None:
    """G5; section 8: fails with the last cause."""
    plan = Plan()
    plan.raises["handle_event_from_operator"] = 1
    with run(make_job(plan)) as running:
        status = wait_status(running, lambda s: s.failovers_global > 0)
        assert "coordinator of op raised" in status.last_failure
        assert "Boom: in handle_event_from_operator" in status.last_failure


def test_a_start_that_raises_behind_a_reset_is_named() -> None:
    """G5: the reset calls start once more, where it had raised."""
    plan = Plan()
    plan.raises["start"] = 2
    with run(make_job(plan)) as running:
        status = wait_status(running, lambda s: s.epoch >= 3 and s.state == "running")
        assert "coordinator of op raised in start: Boom: in start" in status.last_failure
        wait_recovered(running, plan)


def test_past_the_budget_the_job_fails_with_the_cause() -> None:
    """Section 8."""
    plan = Plan()
    plan.raises["handle_event_from_operator"] = 1_000
    job = make_job(plan, restart=RestartStrategy(backoff_next=0.01, backoff_max=0.01, budget=3))
    with run(job) as running:
        outcome = running.wait(PATIENCE_S)
        assert outcome.ending is Ending.FAILED
        assert "Boom: in handle_event_from_operator" in outcome.cause
        assert "more than 3 failovers" in outcome.cause
        assert plan.count("reset_to_checkpoint") == 3
        assert plan.count("close") == 1


def test_close_may_raise_and_nobody_minds() -> None:
    """R90: ignored."""
    plan = Plan()
    plan.raises["close"] = 1
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
    assert plan.count("close") == 1


def test_a_request_that_raises_is_refused_and_concerns_its_sender_alone() -> None:
    """Section 8: its refusal."""
    plan = Plan()
    plan.raises["handle_request"] = 1
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        refused = running.client.request("op", b"x", timeout_s=PATIENCE_S)
        assert not refused.accepted
        assert "Boom: in handle_request" in refused.outcome
        assert running.client.request("op", b"y", timeout_s=PATIENCE_S).payload == b"answer to y"
        assert epoch_of(running) == 1


def boom() -> None:
    raise Boom("in a function of its own")


DEFERRED: dict[str, Callable[[Coordinator], object]] = {
    "run_in_coordinator": lambda c: c.context.run_in_coordinator(boom),
    "call_later": lambda c: c.context.call_later(0.0, boom),
    "call_async": lambda c: c.context.call_async(lambda: 1, lambda result, error: boom()),
    "on_writable": lambda c: c.context.on_writable(0, boom),
    "fail_job": lambda c: c.context.fail_job(Boom("in a function of its own")),
}


@pytest.mark.parametrize("how", DEFERRED)
def test_deferred_user_code_that_raises_is_a_global_failover(how: str) -> None:
    """R113: an exception anywhere fails the job, once."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert isinstance(plan.coordinator, Coordinator)
        DEFERRED[how](plan.coordinator)
        status = wait_status(running, lambda s: s.epoch == 2)
        assert "Boom: in a function of its own" in status.last_failure
        wait_recovered(running, plan)
        assert epoch_of(running) == 2


def test_an_error_of_the_work_itself_goes_to_on_result() -> None:
    """call_async: on_result(result, error)."""
    plan = Plan()
    seen: list[tuple[object, object]] = []
    told = threading.Event()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert plan.coordinator is not None

        def on_result(result: object, error: BaseException | None) -> None:
            seen.append((result, type(error)))
            told.set()

        plan.coordinator.context.call_async(boom, on_result)
        assert told.wait(PATIENCE_S)
        assert seen == [(None, Boom)]
        assert epoch_of(running) == 1


def test_only_the_first_fail_job_counts_until_the_reset() -> None:
    """C3.11; R37: and a later one is a new failure."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        context = plan.coordinator.context

        def twice() -> None:
            context.fail_job("first")
            context.fail_job("second")

        context.run_in_coordinator(twice)
        status = wait_status(running, lambda s: s.epoch == 2 and s.state == "running")
        assert status.failovers_global == 1
        assert "first" in status.last_failure
        wait_checkpoint(running, plan)
        plan.coordinator.context.fail_job("third")
        assert "third" in wait_status(running, lambda s: s.epoch == 3).last_failure


def test_a_factory_that_makes_something_else_is_a_clear_error() -> None:
    """G5."""
    plan = Plan()
    job = make_job(plan)
    job.operators.clear()
    job.operator("op", coordinator=object, subtask=object, parallelism=1)  # type: ignore[arg-type]
    with (
        run(job, subtasks=False) as running,
        pytest.raises(Exception, match=r"must be a penstock\.OperatorCoordinator.*returned object"),
    ):
        running.wait(PATIENCE_S)


def test_what_a_thread_does_through_the_context_of_an_epoch_that_is_over_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R96: a thread that was begun before a reset acts on nothing behind it."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        old = plan.coordinator.context
        old.fail_job("told to")
        plan.wait_call("reset_to_checkpoint")
        wait_recovered(running, plan)
        epoch = epoch_of(running)
        ran: list[str] = []
        old.fail_job("late")
        old.run_in_coordinator(lambda: ran.append("run_in_coordinator"))
        old.call_later(0.0, lambda: ran.append("call_later"))
        old.call_async(lambda: ran.append("call_async"), lambda *_: ran.append("on_result"))
        old.on_writable(0, lambda: ran.append("on_writable"))
        new = threading.Event()
        plan.coordinator.context.run_in_coordinator(new.set)
        assert new.wait(PATIENCE_S)
        wait_recovered(running, plan, b"later")
        assert (ran, epoch_of(running), old.epoch) == ([], epoch, epoch - 1)
    assert caplog.text.count("is dropped: the coordinator has been rolled back") == 1
