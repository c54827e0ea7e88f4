"""Coordinators and the broker in containers, subtasks in a Spark outside: what dies is replaced, nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.cli.exits import Exit
from tests.rounds import rounds

from .engine import KafkaInContainer
from .running import LedgerRun, exit_code

pytestmark = [pytest.mark.containers, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

each_round = pytest.mark.parametrize("round_", rounds())
StartRun = Callable[[], LedgerRun]

OUTAGE_S = 6.0
"""Twice what the job's subtasks may be silent."""
SIGKILLED = 137


@pytest.mark.parametrize(
    ("end", "code"), [pytest.param("kill", SIGKILLED, marks=pytest.mark.smoke), ("stop", Exit.INTERRUPTED)]
)
@each_round
def test_a_coordinator_container_that_is_killed_or_stopped_is_replaced_and_the_result_is_exact(
    start_run: StartRun, round_: int, end: str, code: int
) -> None:
    run = start_run()
    before = run.status()
    container = run.coordinators[0].get_wrapped_container()
    container.kill() if end == "kill" else container.stop(timeout=60)
    assert exit_code(run.coordinators[0]) == code
    run.start_coordinator()
    after = run.wait_for_status(lambda status: status.epoch > before.epoch, "no new epoch")
    assert after.instance != before.instance
    run.finish_exactly()


@each_round
def test_a_frozen_coordinator_that_was_replaced_leaves_when_it_thaws(start_run: StartRun, round_: int) -> None:
    run = start_run()
    before = run.status()
    frozen = run.coordinators[0]
    frozen.get_wrapped_container().pause()
    run.start_coordinator()
    run.wait_for_status(lambda status: status.epoch > before.epoch, "no new epoch")
    run.wait_until_answered(20)
    frozen.get_wrapped_container().unpause()
    assert exit_code(frozen) == Exit.REPLACED
    run.finish_exactly()


@each_round
def test_a_paused_broker_fails_nobody(kafka: KafkaInContainer, start_run: StartRun, round_: int) -> None:
    run = start_run()
    before = run.status()
    kafka.pause()
    try:
        threading.Event().wait(OUTAGE_S)  # this is the fault, and how long it lasts
    finally:
        kafka.unpause()
    run.wait_for_status(lambda status: status.last_completed > before.last_completed, "no checkpoint since")
    run.finish_exactly()
    after = run.status()
    assert (after.instance, after.epoch) == (before.instance, before.epoch)
    assert (after.failovers_region, after.failovers_global) == (before.failovers_region, before.failovers_global)


@each_round
def test_a_broker_container_may_be_removed_and_made_again_on_its_volume(
    kafka: KafkaInContainer, start_run: StartRun, round_: int
) -> None:
    run = start_run()
    before = run.status()
    kafka.remove()
    kafka.replace()
    run.wait_for_status(lambda status: status.last_completed > before.last_completed, "no checkpoint since")
    run.finish_exactly()
