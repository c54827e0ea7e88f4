"""Sessions in which long-running tasks could not live are refused, with the setting, its value and the way out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Job, Subtask
from penstock.schemas.errors import ConfigurationError, JobRefused
from penstock.schemas.settings import JobSettings
from penstock.spark_integration.session import local_session
from penstock.spark_integration.session_checks import SessionFacts, check_session, classic_context


def settings(parallelism: int = 4) -> JobSettings:
    job = Job("checked")
    job.operator("read", subtask=Subtask, parallelism=parallelism - 1)
    job.operator("sum", subtask=Subtask, parallelism=1)
    return job.settings


def facts(
    master: str = "local[4,1000000]", cores: Callable[[], list[int]] = list, processors: int = 2, **conf: str
) -> SessionFacts:
    return SessionFacts(master, {name.replace("__", "."): value for name, value in conf.items()}, processors, cores)


@pytest.mark.parametrize(
    ("given", "parallelism"),
    [
        (facts(), 4),
        (facts("local[*,5000]"), 2),
        (facts("local[1,1000000]", spark__task__cpus="0.25"), 4),
        (facts("local-cluster[2,2,1024]", spark__task__maxFailures="1000000"), 4),
        (facts("spark://host:7077", lambda: [2, 2], spark__task__maxFailures="1000"), 4),
        (facts(spark__speculation="false", spark__dynamicAllocation__enabled="FALSE"), 4),
    ],
)
def test_a_session_that_is_good_enough_is_accepted(given: SessionFacts, parallelism: int) -> None:
    check_session(given, settings(parallelism), 0.0)


@pytest.mark.parametrize(
    "name",
    [
        "spark.speculation",
        "spark.dynamicAllocation.enabled",
        "spark.excludeOnFailure.enabled",
        "spark.excludeOnFailure.application.enabled",
        "spark.excludeOnFailure.taskAndStage.enabled",
    ],
)
def test_settings_that_move_double_or_withhold_tasks_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name} is 'true'.*Set it to 'false'"):
        check_session(SessionFacts("local[4,1000000]", {name: "true"}, 2, list), settings(), 0.0)


@pytest.mark.parametrize(
    ("master", "hint"),
    [
        ("local[4]", r"local\[4,1000000\]"),
        ("local", r"local\[1,1000000\]"),
        ("local[*]", r"local\[\*,1000000\]"),
        ("local[4, 2]", r"local\[4,1000000\]"),
    ],
)
def test_a_local_master_without_retries_runs_the_job_with_a_warning_that_names_one_that_has_them(
    master: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_session(facts(master, spark__task__cpus="0.25"), settings(2), 0.0)
    (warning,) = caplog.messages
    assert "a killed or silent Python worker ends the job" in warning
    assert re.search(hint, warning)


@pytest.mark.parametrize("value", [None, "4", "999", "many"])
def test_a_cluster_that_gives_up_on_a_task_is_refused(value: str | None) -> None:
    conf = {} if value is None else {"spark.task.maxFailures": value}
    with pytest.raises(ConfigurationError, match=rf"spark.task.maxFailures is '{value or 4}'.*1000000"):
        check_session(SessionFacts("local-cluster[2,2,1024]", conf, 2, list), settings(), 0.0)


@pytest.mark.parametrize(
    ("given", "available"),
    [
        (facts("local[3,1000000]"), 3),
        (facts("local[*,1000000]", processors=2), 2),
        (facts("local[4,1000000]", spark__task__cpus="2"), 2),
        (facts("local-cluster[3,1,1024]", spark__task__maxFailures="1000000"), 3),
        (facts("local-cluster[2,3,1024]", spark__task__maxFailures="1000000", spark__task__cpus="2"), 2),
        (facts("spark://host:7077", lambda: [2, 1], spark__task__maxFailures="1000000"), 3),
        (facts("yarn", list, spark__task__maxFailures="1000000"), 0),
    ],
)
def test_too_few_slots_are_refused_with_what_is_needed_and_what_there_is(given: SessionFacts, available: int) -> None:
    with pytest.raises(JobRefused, match=rf"needs 4 task slots at once \(read 3, sum 1\), and there are {available} "):
        check_session(given, settings(4), 0.0)


def test_executors_are_given_time_to_register() -> None:
    registered = iter([[], [2], [2, 2]])
    check_session(
        facts("spark://host:7077", lambda: next(registered), spark__task__maxFailures="1000000"), settings(4), 10.0
    )


def test_nonsense_as_cpus_per_task_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"spark.task.cpus is 'none'"):
        check_session(facts(spark__task__cpus="none"), settings(), 0.0)


def test_spark_connect_is_refused() -> None:
    class ConnectSession:
        @property
        def sparkContext(self) -> Any:
            raise NotImplementedError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")

    with pytest.raises(JobRefused, match="Spark Connect"):
        classic_context(ConnectSession())


def test_a_stopped_session_is_refused() -> None:
    with pytest.raises(JobRefused, match="has been stopped"):
        classic_context(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))


@pytest.mark.parametrize("slots", [0, -1, True, 2.5])
def test_a_local_session_needs_slots(slots: Any) -> None:
    with pytest.raises(ConfigurationError, match="slots is"):
        local_session(slots)


@pytest.mark.spark
def test_a_second_local_session_is_refused(spark: Any) -> None:
    with pytest.raises(ConfigurationError, match="there is a Spark session in this process already"):
        local_session(2)


@pytest.mark.spark
def test_each_local_session_has_the_slots_it_was_made_with(tmp_path: Path) -> None:
    """The JVM of an earlier session goes on, and remembers its settings."""
    program = """
from penstock.spark_integration import local_session
for slots in (3, 2):
    spark = local_session(slots)
    print(spark.sparkContext.defaultParallelism)
    spark.stop()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=360, check=True
    )
    assert ran.stdout.split() == ["3", "2"]
