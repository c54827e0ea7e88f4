"""Threads for what may block."""

from __future__ import annotations

import subprocess
import sys
import threading

from penstock.coordinator.thread_pool import Workers

from .jobs import Plan, make_job, run, wait_until


def test_work_runs_at_most_so_much_at_once_and_none_is_lost() -> None:
    workers, lock = Workers(3, "test"), threading.Lock()
    busy, most, done = [0], [0], [0]

    def work(by: int) -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        threading.Event().wait(0.005)
        with lock:
            busy[0] -= 1
            done[0] += by

    for _ in range(20):
        workers.submit(work, 1)
    wait_until(lambda: done[0] == 20, "all of it")
    assert 1 < most[0] <= 3
    workers.close()


def test_work_that_raises_whatever_keeps_its_thread() -> None:
    workers, done = Workers(1, "test"), threading.Event()

    def leave() -> None:
        raise SystemExit(3)

    workers.submit(leave)
    workers.submit(done.set)
    assert done.wait(10.0)
    workers.close()


def test_nothing_begins_once_closed() -> None:
    workers, gate, begun = Workers(1, "test"), threading.Event(), threading.Event()
    ran = threading.Event()
    workers.submit(lambda: (begun.set(), gate.wait(10.0)))
    assert begun.wait(10.0)
    workers.submit(ran.set)
    workers.close()
    workers.submit(ran.set)
    gate.set()
    assert not ran.wait(0.1)


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = """
import threading
from penstock.coordinator.thread_pool import Workers
begun = threading.Event()
workers = Workers(2, "test")
workers.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
workers.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30.0)


def test_call_async_tells_of_whatever_was_raised() -> None:
    plan, told = Plan(), []
    with run(make_job(plan)):
        plan.wait_gateways(0)
        assert plan.coordinator is not None

        def leave() -> None:
            raise SystemExit(3)

        plan.coordinator.context.call_async(leave, lambda result, error: told.append(error))
        wait_until(lambda: told, "on_result")
    assert isinstance(told[0], SystemExit)


def test_calls_that_wait_keep_no_state_from_being_stored(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan, gate = Plan(), threading.Event()
    job = make_job(plan, checkpoint={"inline_state_max": 0}, state_storage=tmp_path.as_uri())
    with run(job) as running:
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        for _ in range(8):
            plan.coordinator.context.call_async(gate.wait, lambda result, error: None)
        now = running.service.status().checkpoints_completed  # type: ignore[union-attr]
        running.wait_for(lambda s: s.checkpoints_completed > now + 2, 20.0)
        gate.set()
