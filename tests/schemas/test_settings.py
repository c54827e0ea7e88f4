"""What a user sets is checked when it is set: the error names the setting, its value and what is allowed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.schemas.errors import ConfigurationError, PenstockError
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import CheckpointSettings, JobSettings, OperatorSettings, RestartStrategy

READER = OperatorSettings("reader", 4)

ABOVE_0 = [0, -1, float("nan"), float("inf"), "1", True, None]
AT_LEAST_0 = [-0.1, float("nan"), float("inf"), "1", False, None]
COUNT_FROM_1 = [0, -1, 1.0, "1", True, None]
COUNT_FROM_0 = [-1, 0.5, "1", False, None]

BAD = [
    *((CheckpointSettings, "interval", value) for value in ABOVE_0 if value is not None),
    *((CheckpointSettings, "timeout", value) for value in ABOVE_0),
    *((CheckpointSettings, "min_pause", value) for value in AT_LEAST_0),
    *((CheckpointSettings, "max_concurrent", value) for value in COUNT_FROM_1),
    *((CheckpointSettings, "tolerable_failures", value) for value in COUNT_FROM_0),
    *((CheckpointSettings, "retained", value) for value in COUNT_FROM_1),
    *((CheckpointSettings, "inline_state_max", value) for value in [*COUNT_FROM_0, 512 * 1024 + 1]),
    *((RestartStrategy, "backoff_first", value) for value in AT_LEAST_0),
    *((RestartStrategy, "backoff_next", value) for value in AT_LEAST_0),
    *((RestartStrategy, "backoff_max", value) for value in AT_LEAST_0),
    *((RestartStrategy, "budget", value) for value in COUNT_FROM_0),
    *((RestartStrategy, "budget_window", value) for value in ABOVE_0),
    *((OperatorSettings, "parallelism", value) for value in [*COUNT_FROM_1, 10_001]),
    *((OperatorSettings, "on_failover", value) for value in ["", "restart", None, 1]),
    *((OperatorSettings, "max_held_bytes", value) for value in COUNT_FROM_1),
    *((OperatorSettings, "max_unsent_bytes", value) for value in COUNT_FROM_1),
    *((OperatorSettings, "max_unhandled", value) for value in COUNT_FROM_1),
    *((OperatorSettings, "event_ack_timeout", value) for value in ABOVE_0),
    *((JobSettings, "heartbeat_interval", value) for value in ABOVE_0),
    *((JobSettings, "start_timeout", value) for value in ABOVE_0),
    *((JobSettings, "task_cancellation_timeout", value) for value in ABOVE_0),
    *((JobSettings, "frame_events_max", value) for value in COUNT_FROM_1),
    *((JobSettings, "frame_bytes_max", value) for value in COUNT_FROM_1),
    *((JobSettings, "frame_linger", value) for value in AT_LEAST_0),
]

VALID: dict[type, dict[str, Any]] = {
    CheckpointSettings: {},
    RestartStrategy: {},
    OperatorSettings: {"name": "reader", "parallelism": 4},
    JobSettings: {"name": "flights", "operators": (READER,)},
}


@pytest.mark.parametrize(("cls", "setting", "value"), BAD)
def test_a_value_that_cannot_be_is_refused_by_name(cls: type, setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        cls(**{**VALID[cls], setting: value})
    assert setting in str(refused.value)
    assert re.search(rf"(?<![\w.]){re.escape(repr(value))}(?![\w.])", str(refused.value)), str(refused.value)


@pytest.mark.parametrize("timeout", [0.1, 1.9])
def test_a_heartbeat_timeout_that_one_late_heartbeat_would_exceed_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match=r"heartbeat_timeout \(.*\) must be at least twice heartbeat_interval"):
        JobSettings("flights", (READER,), heartbeat_timeout=timeout)


@pytest.mark.parametrize("timeout", [float("nan"), "10", None, True, float("inf")])
def test_a_heartbeat_timeout_that_is_no_finite_number_is_refused(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="heartbeat_timeout"):
        JobSettings("flights", (READER,), heartbeat_timeout=timeout)


def test_a_job_without_operators_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="job 'flights' has no operator; add one"):
        JobSettings("flights", ())


def test_two_operators_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="job 'flights' has two operators named 'reader'"):
        JobSettings("flights", (READER, OperatorSettings("totals", 1), READER))


@pytest.mark.parametrize(("name", "prefix"), [("Flights", "penstock"), ("flights", "pen.stock")])
def test_a_job_whose_topics_could_not_be_named_is_refused(name: str, prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be part of a topic name"):
        JobSettings(name, (READER,), prefix)


def test_an_operator_whose_topic_could_not_be_named_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"operator name 'a\.b' cannot be part of a topic name"):
        OperatorSettings("a.b", 1)


def test_an_operator_that_the_job_does_not_have_is_refused_with_those_it_has() -> None:
    job = JobSettings("flights", (OperatorSettings("totals", 2), READER))
    with pytest.raises(ConfigurationError, match="job 'flights' has no operator 'writer'; it has: reader, totals"):
        job.operator("writer")
    assert job.operator("reader") is READER


def test_a_failover_policy_may_be_given_as_its_word() -> None:
    assert OperatorSettings("reader", 1, on_failover="reset").on_failover is FailoverPolicy.RESET  # type: ignore[arg-type]


def test_no_interval_means_savepoints_only() -> None:
    assert CheckpointSettings(interval=None).interval is None


def test_what_is_set_once_cannot_be_changed_unchecked() -> None:
    with pytest.raises(AttributeError):
        READER.parallelism = -1  # type: ignore[misc]


def test_a_configuration_error_is_caught_as_ours_and_as_a_value_error() -> None:
    assert issubclass(ConfigurationError, PenstockError)
    assert issubclass(ConfigurationError, ValueError)


def test_a_job_knows_its_subtasks_operator_by_operator() -> None:
    job = JobSettings("flights", (OperatorSettings("reader", 2), OperatorSettings("totals", 1)))
    assert job.subtasks() == [SubtaskId("reader", 0), SubtaskId("reader", 1), SubtaskId("totals", 0)]
    assert job.parallelism == {"reader": 2, "totals": 1}
    assert job.topics.acks == "penstock.flights.acks"


def test_defaults_are_those_that_the_documentation_names() -> None:
    job = JobSettings("flights", (READER,))
    checkpoint, restart = job.checkpoint, job.restart
    assert (checkpoint.interval, checkpoint.timeout, checkpoint.min_pause) == (1.0, 60.0, 0.0)
    assert (checkpoint.max_concurrent, checkpoint.tolerable_failures, checkpoint.retained) == (1, 3, 2)
    assert checkpoint.inline_state_max == 128 * 1024
    assert (restart.backoff_first, restart.backoff_next, restart.backoff_max) == (0.0, 0.1, 30.0)
    assert (restart.budget, restart.budget_window) == (20, 600.0)
    assert (job.heartbeat_interval, job.heartbeat_timeout, job.start_timeout) == (1.0, 10.0, 120.0)
    assert job.task_cancellation_timeout == 180.0
    assert (job.frame_bytes_max, job.frame_events_max, job.frame_linger) == (64 * 1024, 1_000, 0.0)
    assert (READER.on_failover, READER.event_ack_timeout) == (FailoverPolicy.REPLAY, 30.0)
    assert (READER.max_held_bytes, READER.max_unsent_bytes) == (64 * 1024 * 1024, 64 * 1024 * 1024)
    assert READER.max_unhandled == 1_000_000
