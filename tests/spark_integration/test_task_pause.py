"""When a task that fails waits before Spark learns of it, and when it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.schemas.ids import SubtaskId
from penstock.spark_integration import task
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


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_whatever_a_users_file_raises_is_waited_behind(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that leaves as it is imported would be started again without a pause: it never says Hello."""

    def fails(*_: object) -> None:
        raise error

    slept: list[float] = []
    monkeypatch.setattr(task, "TaskContext", SimpleNamespace(get=lambda: SimpleNamespace(attemptNumber=lambda: 4)))
    monkeypatch.setattr(task, "_run_subtask", fails)
    monkeypatch.setattr(task.time, "sleep", slept.append)
    with pytest.raises(type(error)):
        task.run_subtask(None, SubtaskId("op", 0))  # type: ignore[arg-type]
    assert slept == [0.5]
