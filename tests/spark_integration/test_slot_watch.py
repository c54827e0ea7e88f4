"""A run says that executors are missing, where Spark only waits for them."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.spark_integration import slot_watch, supervisor
from penstock.spark_integration.session_checks import SessionFacts
from penstock.spark_integration.slot_watch import SlotWatch


class Cluster:
    """Executors whose cores a test sets, and a clock that it moves."""

    def __init__(self, master: str, cores: list[int]) -> None:
        self.cores, self.now = cores, 100.0
        facts = SessionFacts(master, {"spark.task.cpus": "0.5"}, 8, self.count)
        self.watch = SlotWatch("flights", 4, facts, lambda: self.now)

    def count(self) -> list[int]:
        if self.cores == [-1]:
            raise RuntimeError("the context is gone")
        return self.cores

    def go(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.watch.look()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_missing_slots_are_said_after_half_a_minute_and_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("spark://master:7077", [1, 1])
    cluster.go(25)
    cluster.cores = [1]
    cluster.go(45)
    assert len(warnings(caplog)) == 1
    assert "2 on 1 executors, and its subtasks need 4" in warnings(caplog)[0]
    assert "on the page of spark://master:7077. A standalone master" in warnings(caplog)[0]
    cluster.go(60)
    assert len(warnings(caplog)) == 2
    cluster.cores = [2]
    cluster.go(200)
    assert warnings(caplog)[2:] == ["job=flights: there are 4 task slots again"]


def test_a_master_that_forgets_is_said_of_standalone_clusters_only(caplog: pytest.LogCaptureFixture) -> None:
    Cluster("yarn", []).go(45)
    assert warnings(caplog)[0].endswith("on the page of yarn.")


def test_an_executor_that_is_replaced_within_the_time_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("yarn", [4])
    for _ in range(5):
        cluster.cores = []
        cluster.go(20)
        cluster.cores = [4]
        cluster.go(20)
    assert warnings(caplog) == []


def test_a_local_master_has_no_executors_and_a_stopped_context_is_not_asked_in_vain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Cluster("local[4,1000000]", []).go(500)
    Cluster("spark://master:7077", [-1]).go(500)
    assert warnings(caplog) == []


def test_the_watch_of_a_run_looks() -> None:
    looked: list[int] = []
    ours = supervisor.Supervisor(cast(Any, None), cast(Any, parts(looked)))
    assert ours._watch().cause == "enough"
    assert len(looked) == 3


def parts(looked: list[int]) -> Any:
    """A run that ends when its slots have been looked at for the third time."""
    service = SimpleNamespace(done=lambda: len(looked) >= 3)
    service.wait = lambda timeout: SimpleNamespace(ending=supervisor.Ending.STOPPED, cause="enough")
    settings = SimpleNamespace(name="flights", subtasks=list)
    slots = SimpleNamespace(look=lambda: looked.append(1))
    job = SimpleNamespace(has_inputs=False, done=lambda: False)
    return SimpleNamespace(settings=settings, service=service, spark_job=job, slots=slots, run_id="ours")


def test_the_times_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert f"for {slot_watch.MISSING_S:.0f} s" in page
