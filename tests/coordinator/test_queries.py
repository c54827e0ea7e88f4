"""A coordinator that a query drives, in its runtime: the planner asks over the log (protocol, section 10)."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.service import CoordinatorService, instances_of
from penstock.job import Job
from penstock.schemas.errors import Backpressure
from penstock.schemas.status import BatchOutcome
from penstock.spark_integration.streaming.planner import Planner
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .jobs import PATIENCE_S, Plan, make_job


@contextmanager
def coordinating(job: Job, broker: MemoryBroker) -> Iterator[CoordinatorService]:
    settings = dataclasses.replace(job.settings, driven_by_query=True)
    options = CoordinatorOptions(status_interval_s=0.05)
    service = CoordinatorService(
        instances_of(settings, job.coordinators, MemoryTransport(broker), options), job.restart
    ).start()
    try:
        yield service
    finally:
        service.leave()
        service.wait(PATIENCE_S)


@contextmanager
def planning(job: Job, broker: MemoryBroker) -> Iterator[Planner]:
    planner = Planner(
        lambda: MemoryTransport(broker), job.settings.topics, "op", wait_s=0.05, timeout_s=PATIENCE_S, resend_s=0.2
    )
    try:
        yield planner
    finally:
        planner.close()


def test_a_batch_from_its_request_to_its_decision() -> None:
    plan, broker = Plan(), MemoryBroker()
    job = make_job(plan)
    with coordinating(job, broker), planning(job, broker) as planner:
        assert planner.plan(-1).outcome is BatchOutcome.NOTHING
        future = plan.gateways[0].send_event(b"a")
        first = planner.plan(-1)
        assert first.outcome is BatchOutcome.PLANNED
        assert not future.done()
        second = planner.plan(first.checkpoint_id)
        assert second.outcome is BatchOutcome.NOTHING
        future.result(PATIENCE_S)
        assert plan.count("notify_checkpoint_complete") == 1


def test_a_request_is_answered_as_soon_as_something_is_sent() -> None:
    plan, broker = Plan(), MemoryBroker()
    job = make_job(plan)
    with coordinating(job, broker), planning(job, broker) as planner:
        planner.plan(-1)
        planner._wait_s = PATIENCE_S
        answers = []
        asking = threading.Thread(target=lambda: answers.append(planner.plan(-1)))
        asking.start()
        plan.gateways[0].send_event(b"a")
        asking.join(PATIENCE_S / 2)
        assert answers and answers[0].outcome is BatchOutcome.PLANNED


def test_what_gateways_hold_for_a_batch_is_bounded_by_backpressure() -> None:
    """Section 10.5: no checkpoint is aborted for it, so senders are held back."""
    plan, broker = Plan(), MemoryBroker()
    job = make_job(plan, max_held_bytes=10_000)
    with coordinating(job, broker), planning(job, broker) as planner:
        planner.plan(-1)
        gateway = plan.gateways[0]
        gateway.send_event(b"a")
        planned = planner.plan(-1)
        writable = threading.Event()

        def send_on() -> None:
            for _ in range(10_000):
                gateway.send_event(bytes(1_000))
                time.sleep(0.001)

        with pytest.raises(Backpressure, match="max_held_bytes"):
            send_on()
        assert plan.coordinator is not None
        plan.coordinator.context.on_writable(0, writable.set)
        assert planner.plan(planned.checkpoint_id).outcome is BatchOutcome.PLANNED
        assert writable.wait(PATIENCE_S)


def test_who_is_told_that_the_batch_is_committed_may_send_at_once() -> None:
    """Section 10.5: the decision opens the gateways, and what they held is held no more."""
    plan, broker = Plan(), MemoryBroker()
    job = make_job(plan, max_held_bytes=10_000)
    plan.does["notify_checkpoint_complete"] = lambda *_: plan.gateways[0].send_event(b"b")
    with coordinating(job, broker), planning(job, broker) as planner:
        planner.plan(-1)
        gateway = plan.gateways[0]
        gateway.send_event(b"a")
        planned = planner.plan(-1)
        gateway.send_event(bytes(10_001))
        assert planner.plan(planned.checkpoint_id).outcome is BatchOutcome.PLANNED
        assert plan.count("notify_checkpoint_complete") == 1
        assert plan.count("reset_to_checkpoint") == 0


@pytest.mark.parametrize("stored", [False, True])
def test_a_coordinator_that_is_replaced_goes_on_where_spark_stands(stored: bool) -> None:
    plan, broker = Plan(), MemoryBroker()
    job = make_job(plan)
    with planning(job, broker) as planner:
        with coordinating(job, broker):
            planner.plan(-1)
            plan.gateways[0].send_event(b"a")
            planned = planner.plan(-1)
        with coordinating(job, broker):
            resets = plan.count("reset_to_checkpoint")
            answer = planner.plan(planned.checkpoint_id if stored else -1)
            if stored:
                assert answer.outcome is BatchOutcome.NOTHING
            else:  # Spark may yet store what was planned
                assert (answer.checkpoint_id, answer.partitions) == (planned.checkpoint_id, planned.partitions)
            assert plan.count("reset_to_checkpoint") - resets == (1 if stored else 0)
