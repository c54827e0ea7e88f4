"""What cannot go on ends, and says why."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Job, OperatorCoordinator, RestartStrategy, Subtask
from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import BrokerUnreachable, ConfigurationError, JobFailed, JobHasFinished
from penstock.spark_integration import run
from penstock.transport.kafka import KafkaConfig

from .jobs import (
    CHECKPOINT,
    Teller,
    counting_job,
    raising_job,
    raising_when_told_of_an_abort,
    threads_since,
    wait_until,
    wait_until_counted,
)
from .test_runs import FinishesAtOnce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize(
    "callback",
    ["open", "restore_state", "handle_operator_event", "poll", "snapshot_state", "notify_checkpoint_complete"],
)
def test_a_subtask_that_keeps_raising_fails_the_job_with_what_it_raised(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, callback: str
) -> None:
    handle = run(spark, raising_job(job_name, callback), broker=kafka_broker.bootstrap)
    with pytest.raises(JobFailed, match=f"as {callback} does"):
        handle.wait(60)
    assert handle.done


def test_a_subtask_that_raises_when_told_of_an_abort_fails_the_job_too(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    handle = run(spark, raising_when_told_of_an_abort(job_name), broker=kafka_broker.bootstrap)
    with pytest.raises(JobFailed, match="as notify_checkpoint_aborted does"):
        handle.wait(60)


class RaisesWhenReady(OperatorCoordinator):
    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        raise LookupError("no gateway is good enough")


def test_a_coordinator_that_keeps_raising_fails_the_job_with_what_it_raised(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = Job(job_name, restart=RestartStrategy(budget=2))
    job.operator("only", subtask=Subtask, coordinator=RaisesWhenReady, parallelism=1)
    handle = run(spark, job, broker=kafka_broker.bootstrap)
    with pytest.raises(JobFailed, match="no gateway is good enough"):
        handle.wait(60)


def raises_when_loaded() -> Any:
    raise ImportError("no module named elsewhere_only")


class Unloadable:
    """Pickles well."""

    def __call__(self) -> Subtask:
        raise AssertionError("not reached")

    def __reduce__(self) -> Any:
        return raises_when_loaded, ()


def test_code_that_does_not_load_in_a_worker_fails_the_job_at_once(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = Job(job_name)
    job.operator("only", subtask=Unloadable(), parallelism=1)
    handle = run(spark, job, broker=kafka_broker.bootstrap)
    with pytest.raises(JobFailed, match=r"(?s)'only'.*no module named elsewhere_only"):
        handle.wait(60)


def test_code_that_does_not_pickle_is_refused_before_anything_starts(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    lock = threading.Lock()

    class HoldsALock(Subtask):
        def open(self, context: Any) -> None:
            lock.acquire()

    job = Job(job_name)
    job.operator("only", subtask=HoldsALock, parallelism=1)
    with pytest.raises(ConfigurationError, match=r"(?s)operator 'only'.*lock"):
        run(spark, job, broker=kafka_broker.bootstrap)


class DiesAtOnce(Subtask):
    def open(self, context: Any) -> None:
        os._exit(1)


def test_a_worker_that_always_dies_fails_the_job_with_that_cause(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = Job(job_name, restart=RestartStrategy(budget=3))
    job.operator("only", subtask=DiesAtOnce, parallelism=1)
    handle = run(spark, job, broker=kafka_broker.bootstrap)
    with pytest.raises(JobFailed, match=r"died|exited"):
        handle.wait(60)


def test_a_spark_job_that_somebody_cancels_ends_the_run_with_that_cause(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    before = set(threading.enumerate())
    handle = run(spark, counting_job(job_name, parallelism=1), broker=kafka_broker.bootstrap)
    wait_until_counted(handle, 10, subtasks=2)
    spark.sparkContext.cancelAllJobs()
    with pytest.raises(JobFailed, match="cancelled"):
        handle.wait(30)
    wait_until(lambda: not threads_since(before, "coordinator"), 10, "the coordinator leaves")


def test_a_job_that_has_finished_is_refused_before_its_tasks_start(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = Job(job_name, checkpoint=CHECKPOINT)
    job.operator("only", subtask=FinishesAtOnce, parallelism=1)
    run(spark, job, broker=kafka_broker.bootstrap).wait(60)
    with pytest.raises(JobHasFinished):
        run(spark, job, broker=kafka_broker.bootstrap)


def test_no_broker_is_said_within_seconds(spark: SparkSession, job_name: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=nobody):
        run(spark, counting_job(job_name), broker=nobody)
    assert time.monotonic() - began < 15


def test_settings_given_twice_or_wrongly_are_refused(spark: SparkSession, job_name: str) -> None:
    job = counting_job(job_name)
    with pytest.raises(ConfigurationError, match="client_settings"):
        run(spark, job, broker=KafkaConfig("127.0.0.1:1"), client_settings={"client.id": "x"})
    with pytest.raises(ConfigurationError, match="'nowhere'"):
        run(spark, job, broker="127.0.0.1:1", coordinator="nowhere")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no operator"):
        run(spark, Job(job_name), broker="127.0.0.1:1")


JOB_FILE = """
import helper_beside_it
from penstock import Subtask

class Adder(Subtask):
    def open(self, context):
        self.context, self.count = context, 0
    def restore_state(self, checkpoint_id, state):
        self.count = state
    def snapshot_state(self, checkpoint_id):
        return self.count
    def handle_operator_event(self, event):
        self.count = helper_beside_it.add_one(self.count)
        self.context.send_event_to_coordinator({"count": self.count})
"""


def test_classes_from_a_file_that_workers_cannot_import_reach_them(
    spark: SparkSession,
    kafka_broker: EmbeddedBroker,
    job_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "helper_beside_it.py").write_text("def add_one(number):\n    return number + 1\n")
    (tmp_path / "a_job.py").write_text(JOB_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("penstock_job_a_job", tmp_path / "a_job.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    job = Job(job_name, checkpoint=CHECKPOINT)
    for operator in ("left", "right"):
        job.operator(operator, subtask=module.Adder, coordinator=partial(Teller, 50), parallelism=1, codec="json",
                     state_codec="json")  # fmt: skip
    with run(spark, job, broker=kafka_broker.bootstrap) as handle:
        wait_until_counted(handle, 50, subtasks=2)
