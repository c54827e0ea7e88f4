"""What ``send_event`` refuses and promises, with a real coordinator behind it (protocol, section 6)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.schemas.acks import Hello
from penstock.schemas.codec import encode
from penstock.schemas.errors import (
    Backpressure,
    ConfigurationError,
    CoordinatorClosed,
    EventTooLarge,
    RolledBack,
    TaskNotRunning,
)
from penstock.testing.local import LocalJob
from penstock.transport.ports import Partition

from .jobs import (
    PATIENCE_S,
    Boom,
    Plan,
    epoch_of,
    make_job,
    run,
    wait_checkpoint,
    wait_recovered,
    wait_status,
    wait_until,
)


def test_a_future_settles_when_its_event_has_been_handled() -> None:
    """Section 6."""
    plan = Plan()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        future = plan.gateways[0].send_event(b"a")
        future.result(PATIENCE_S)
        assert (0, b"a") in plan.handled


def test_callbacks_of_futures_run_on_the_coordinators_thread() -> None:
    """Section 6; R94."""
    plan = Plan()
    own, called = [], threading.Event()
    plan.does["start"] = lambda c: own.append(threading.get_ident())
    with run(make_job(plan)):
        plan.wait_gateways(0)

        def seen(_: object) -> None:
            own.append(threading.get_ident())
            called.set()

        plan.gateways[0].send_event(b"a").add_done_callback(seen)
        assert called.wait(PATIENCE_S)
    assert own[0] == own[1]


def test_waiting_for_a_future_on_the_coordinators_thread_is_an_error_and_not_a_deadlock() -> None:
    """R94: callbacks must not block."""
    plan = Plan()
    errors: list[Exception] = []

    def ready(_: object, subtask: int, attempt: int) -> None:
        try:
            plan.gateways[subtask].send_event(b"a").result(PATIENCE_S)
        except RuntimeError as error:
            errors.append(error)

    plan.does["execution_attempt_ready"] = ready
    with run(make_job(plan)):
        plan.wait_handled(b"a")
    assert "add_done_callback" in str(errors[0])


def test_events_are_encoded_in_the_call() -> None:
    """R3: a later mutation is invisible."""
    plan = Plan()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        event = bytearray(b"before")
        future = plan.gateways[0].send_event(event)
        event[:] = b"after!"
        future.result(PATIENCE_S)
        assert (0, b"before") in plan.handled


def test_an_event_that_does_not_encode_raises_in_the_call() -> None:
    """R3."""
    plan = Plan()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        with pytest.raises(ConfigurationError, match="expected bytes, not dict"):
            plan.gateways[0].send_event({"not": "bytes"})


def test_an_event_larger_than_the_broker_takes_is_refused_and_nothing_else_suffers() -> None:
    """Section 6, bounds."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        with pytest.raises(EventTooLarge, match="send a reference"):
            plan.gateways[0].send_event(bytes(running.transport.max_record_bytes))
        largest = bytes(running.transport.max_record_bytes - 2_048)
        plan.gateways[0].send_event(largest).result(PATIENCE_S)
        assert epoch_of(running) == 1


def test_backpressure_beyond_max_unhandled_and_on_writable_says_when_to_go_on() -> None:
    """Section 6, bounds."""
    plan = Plan()
    stalled, release, writable = threading.Event(), threading.Event(), threading.Event()

    job = make_job(plan, max_unhandled=10, interval=None)
    original = plan.poison

    class Gate:
        def __getitem__(self, event: bytes) -> int:
            if event == b"0":
                stalled.set()
                plan.changed.release()
                assert release.wait(PATIENCE_S)
                plan.changed.acquire()
            return original[event]

        def __setitem__(self, event: bytes, count: int) -> None:
            original[event] = count

    plan.poison = Gate()  # type: ignore[assignment]
    with run(job):
        plan.wait_gateways(0)
        gateway = plan.gateways[0]
        for i in range(10):
            gateway.send_event(b"%d" % i)
        assert stalled.wait(PATIENCE_S)
        with pytest.raises(Backpressure, match="max_unhandled"):
            gateway.send_event(b"too many")
        assert plan.coordinator is not None
        plan.coordinator.context.on_writable(0, writable.set)
        assert not writable.is_set()
        release.set()
        assert writable.wait(PATIENCE_S)
        gateway.send_event(b"again").result(PATIENCE_S)


def test_backpressure_beyond_max_unsent_bytes() -> None:
    """Section 6, bounds: bytes that the broker has not taken."""
    plan = Plan()
    outcomes: list[Exception | None] = []

    def ready(_: object, subtask: int, attempt: int) -> None:
        for _ in range(3):  # in a callback: nothing leaves meanwhile
            try:
                plan.gateways[subtask].send_event(bytes(600))
                outcomes.append(None)
            except Backpressure as error:
                outcomes.append(error)

    plan.does["execution_attempt_ready"] = ready
    with run(make_job(plan, max_unsent_bytes=1_000)):
        plan.wait_gateways(0)
        wait_until(lambda: len(outcomes) == 3, "three sends")
        assert outcomes[:2] == [None, None]
        assert "max_unsent_bytes" in str(outcomes[2])
        wait_until(lambda: len(plan.handled) == 2, "both to be handled")
        plan.gateways[0].send_event(bytes(600)).result(PATIENCE_S)  # what was taken is counted no more


def test_on_writable_of_a_subtask_that_does_not_exist_raises() -> None:
    """G5."""
    plan = Plan()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        with pytest.raises(ConfigurationError, match="has subtasks 0 to 0, not 3"):
            plan.coordinator.context.on_writable(3, print)


@pytest.mark.parametrize("policy", ["replay", "reset", "global"])
def test_a_subtask_that_raises_comes_back_and_futures_settle_by_policy(policy: str) -> None:
    """Section 6, section 8: replay carries over, reset fails with TaskNotRunning, global with RolledBack."""
    plan = Plan()
    plan.poison[b"bad"] = 1
    with run(make_job(plan, on_failover=policy)) as running:
        plan.wait_gateways(0)
        future = plan.gateways[0].send_event(b"bad")
        if policy == "replay":
            future.result(PATIENCE_S)
        else:
            with pytest.raises(TaskNotRunning if policy == "reset" else RolledBack):
                future.result(PATIENCE_S)
        wait_recovered(running, plan)
        assert (plan.count("subtask_reset") == 0) == (policy == "global")


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_futures_settle_however_the_coordinator_ends(how: str) -> None:
    """Section 6: the returned future settles exactly once, always."""
    plan = Plan()
    running = run(make_job(plan), subtasks=False).start()
    try:
        settled = threading.Event()
        running.run_id = "run-1"
        running.client.announce_run(running.run_id)
        hello(running)
        plan.wait_gateways(0)
        future = plan.gateways[0].send_event(b"nobody handles it")
        future.add_done_callback(lambda _: settled.set())
        if how == "stop":
            assert running.client.stop(timeout_s=PATIENCE_S).accepted
        else:
            assert running.service is not None
            running.service.leave()
        with pytest.raises(CoordinatorClosed):
            future.result(PATIENCE_S)
        assert settled.wait(PATIENCE_S)
    finally:
        running.close()


def hello(running: LocalJob) -> None:
    """An instance that says Hello and nothing more."""
    writer = running.transport.writer()
    record = Hello("op", 0, running.run_id, "nonce", "task", "host", {"op": 1}, 1)
    writer.append(Partition(running.settings.topics.acks, 0), encode(record))
    writer.close()


def test_user_code_may_fail_an_attempt_through_its_gateway() -> None:
    """Section 8: a failed external write reported by user code."""
    plan = Plan()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        plan.gateways[0].fail_attempt(Boom("the commit was refused"))
        plan.wait_call("execution_attempt_ready", 2)
        (reason,) = [call[3] for call in plan.calls if call[0] == "execution_attempt_failed"]
        assert "Boom: the commit was refused" in reason


def test_a_state_that_is_not_bytes_is_a_clear_error() -> None:
    """R45; a global failover names it."""
    plan = Plan()
    errors: list[Any] = []

    def checkpoint(coordinator: object, n: int, result: Any) -> None:
        if not errors:
            try:
                result.complete({"not": "bytes"})
            except ConfigurationError as error:
                errors.append(error)
        result.complete(b"bytes")

    plan.does["checkpoint_coordinator"] = checkpoint
    with run(make_job(plan)) as running:
        wait_checkpoint(running, plan)
        assert "expected bytes, not dict" in str(errors[0])
        assert epoch_of(running) == 1


def test_a_checkpoint_future_is_completed_once() -> None:
    """Section 7.3."""
    plan = Plan()
    errors: list[Any] = []

    def checkpoint(coordinator: object, n: int, result: Any) -> None:
        result.complete(b"state")
        for again, argument in ((result.complete, b"state"), (result.fail, "no")):
            try:
                again(argument)
            except RuntimeError as error:
                errors.append(str(error))

    plan.does["checkpoint_coordinator"] = checkpoint
    with run(make_job(plan)) as running:
        n = wait_checkpoint(running, plan)
    assert n >= 1
    assert all("has been completed or failed before" in error for error in errors[:2])


def test_a_checkpoint_future_that_fails_aborts_that_checkpoint_alone() -> None:
    """Section 7.3; R44."""
    plan = Plan()

    def checkpoint(coordinator: object, n: int, result: Any) -> None:
        if n == 1:
            result.fail(Boom("not now"))
        else:
            result.complete(b"0")

    plan.does["checkpoint_coordinator"] = checkpoint
    with run(make_job(plan)) as running:
        plan.wait_call("notify_checkpoint_complete")
        status = wait_status(running, lambda s: s.checkpoints_completed > 0)
        assert status.checkpoints_aborted == 1
        assert status.epoch == 1
        assert ("notify_checkpoint_aborted", 1) in plan.calls
