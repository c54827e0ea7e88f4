"""When a task that fails waits before Spark learns of it, and when it does not."""

from __future__ import annotations

from penstock.spark_integration.task import RETRY_PAUSE_MAX_S, pause_before_retry


def test_the_first_failure_is_told_at_once() -> None:
    assert pause_before_retry(0, lived_s=0.0) == 0.0


def test_a_task_that_raises_again_and_again_waits_longer_each_time_up_to_a_bound() -> None:
    pauses = [pause_before_retry(attempt, lived_s=0.1) for attempt in range(1, 100)]
    assert pauses == sorted(pauses)
    assert pauses[0] > 0
    assert pauses[-1] == RETRY_PAUSE_MAX_S


def test_a_task_that_has_lived_for_a_while_does_not_wait_however_often_it_was_started() -> None:
    assert pause_before_retry(1_000, lived_s=RETRY_PAUSE_MAX_S) == 0.0
