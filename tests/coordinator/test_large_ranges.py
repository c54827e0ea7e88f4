"""Inbox ranges above ``max_held_bytes`` whose coordinator forwards what it is handed (protocol, section 8.4)."""

from __future__ import annotations

import threading
from typing import Any

from penstock.schemas.settings import RestartStrategy

from .jobs import Handler, Plan, make_job, run

EVENTS, LENGTH = 400, 100
MAX_UNSENT_BYTES = 25_000


class Sender(Handler):
    """Sends many events before its snapshot, slowly enough for a coordinator that forwards each."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.context = context

    def handle_operator_event(self, event: Any) -> None:
        if event == b"go":
            for number in range(EVENTS):
                self.context.send_event_to_coordinator(b"%0*d" % (LENGTH, number))
                threading.Event().wait(0.002)


def completed(plan: Plan) -> list[int]:
    return [call[1] for call in plan.calls if call[0] == "notify_checkpoint_complete"]


def test_a_coordinator_that_forwards_a_range_above_its_bounds_is_not_failed_by_back_pressure() -> None:
    plan, held = Plan(), dict[str, int]()
    received = list[bytes]()

    def handle(_: Any, subtask: int, event: bytes) -> None:
        if len(event) == LENGTH:
            received.append(event)
            plan.gateways[1].send_event(event)

    def checkpoint(_: Any, n: int, result: Any) -> None:
        if not held:
            held["n"] = n
            plan.gateways[0].send_event(b"go")  # before the cut: all that it makes the subtask send belongs to n
        result.complete(b"state")

    plan.does["handle_event_from_operator"] = handle
    plan.does["checkpoint_coordinator"] = checkpoint
    job = make_job(
        plan, parallelism=2, interval=1.0, handler=Sender, max_held_bytes=5_000, max_unsent_bytes=MAX_UNSENT_BYTES,
        restart=RestartStrategy(backoff_next=0.01, backoff_max=0.02, budget=4),
    )  # fmt: skip
    job.heartbeat_interval, job.frame_bytes_max = 0.05, 1_000
    with run(job) as running:
        plan.wait_gateways(0, 1)
        plan.wait_for(lambda: held.get("n") in completed(plan), "the first checkpoint")
        before = len(received)
        assert before * LENGTH > MAX_UNSENT_BYTES
        assert plan.coordinator is not None
        plan.coordinator.context.fail_job("one global failover")
        plan.wait_for(lambda: max(completed(plan)) > held["n"], "a checkpoint behind the failover")
        status = running.service.status()  # type: ignore[union-attr]
        assert (status.epoch, status.failovers_global) == (2, 1)
    assert received[before:] == [b"%0*d" % (LENGTH, number) for number in range(EVENTS)]
