"""A job's life on Spark: real tasks, a real broker, real deaths."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Finished, Job, PenstockError, Subtask
from penstock.broker import EmbeddedBroker
from penstock.coordinator.runtime import CoordinatorRuntime
from penstock.coordinator.service import CoordinatorService
from penstock.schemas.errors import JobError, RunReplaced
from penstock.spark_integration import run
from penstock.transport.kafka import KafkaTransport

from .jobs import (
    CHECKPOINT,
    CounterThatRaisesOnce,
    counting_job,
    gone,
    reports_of,
    threads_since,
    wait_until,
    wait_until_counted,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_two_operators_with_four_subtasks_handle_every_event_once(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    with run(spark, counting_job(job_name), broker=kafka_broker.bootstrap) as handle:
        reports = wait_until_counted(handle, 300)
        assert {report["count"] for report in reports.values()} == {300}
        assert len({report["pid"] for report in reports.values()}) == 4
        result = handle.stop()
    assert result.ending == "stopped"
    assert result.run_id == handle.run_id
    wait_until(lambda: all(gone(r["pid"]) for r in reports.values()), 5, "the Python workers end")


@pytest.mark.smoke
def test_a_subtask_that_raises_starts_over_in_its_task(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    job = counting_job(job_name, subtask=partial(CounterThatRaisesOnce, tmp_path / "raised"), batch=1)
    with run(spark, job, broker=kafka_broker.bootstrap) as handle:
        before = wait_until_counted(handle, 1)
        after = wait_until_counted(handle, 300)
        assert (tmp_path / "raised").exists()
        assert {name: r["task"] for name, r in before.items()} == {name: r["task"] for name, r in after.items()}
        assert {r["count"] for r in after.values()} == {300}
        status = handle.status()
        assert status is not None and status.failovers_region == 1


@pytest.mark.smoke
def test_a_killed_worker_is_replaced_and_its_siblings_run_on(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    with run(spark, counting_job(job_name, limit=500, batch=2), broker=kafka_broker.bootstrap) as handle:
        before = wait_until_counted(handle, 50)
        os.kill(before["left/1"]["pid"], signal.SIGKILL)
        after = wait_until_counted(handle, 500)
    assert after.pop("left/1")["pid"] != before.pop("left/1")["pid"]
    assert {name: (r["task"], r["pid"]) for name, r in before.items()} == {
        name: (r["task"], r["pid"]) for name, r in after.items()
    }


def test_a_dead_task_is_noticed_at_once_and_not_by_its_silence(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = counting_job(job_name, limit=100_000, batch=1, heartbeat_timeout=600.0)
    with run(spark, job, broker=kafka_broker.bootstrap) as handle:
        before = wait_until_counted(handle, 5)
        os.kill(before["right/0"]["pid"], signal.SIGKILL)
        status = handle.wait_for(lambda status: status.failovers_region > 0, 20)
    assert "right/0" in status.last_failure
    # Spark's word comes first, or the Hello of the task that takes over
    assert "died" in status.last_failure or "said Hello" in status.last_failure


def test_a_frozen_worker_is_killed_and_replaced(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = counting_job(job_name, limit=500, batch=2, heartbeat_timeout=1.5)
    with run(spark, job, broker=kafka_broker.bootstrap) as handle:
        before = wait_until_counted(handle, 20)
        frozen = before["right/1"]["pid"]
        os.kill(frozen, signal.SIGSTOP)
        try:
            after = wait_until_counted(handle, 500)
        finally:
            if not gone(frozen):
                os.kill(frozen, signal.SIGKILL)
    assert after["right/1"]["pid"] != frozen
    assert after["right/0"]["pid"] == before["right/0"]["pid"]


def test_a_second_run_of_the_same_job_replaces_the_first(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = counting_job(job_name, limit=600, batch=2)
    first = run(spark, job, broker=kafka_broker.bootstrap)
    wait_until_counted(first, 20)
    with run(spark, job, broker=kafka_broker.bootstrap) as second:  # gets its slots when the first has left them
        with pytest.raises(RunReplaced, match=first.run_id):
            first.wait(60)
        reports = wait_until_counted(second, 600)
        assert {r["count"] for r in reports.values()} == {600}


def test_a_savepoint_is_where_the_next_run_begins(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    with run(spark, counting_job(job_name, limit=100), broker=kafka_broker.bootstrap) as handle:
        wait_until_counted(handle, 100)
        assert handle.savepoint() >= 0
        result = handle.stop(savepoint=True)
        assert result.ending == "stopped" and "savepoint" in result.cause
    with run(spark, counting_job(job_name, limit=250), broker=kafka_broker.bootstrap) as handle:
        reports = wait_until_counted(handle, 250)  # each raises where a number below 100 comes again
        assert {r["count"] for r in reports.values()} == {250}


class FinishesAtOnce(Subtask):
    def poll(self) -> Finished:
        return Finished()


def test_a_job_whose_subtasks_have_finished_ends(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = Job(job_name, checkpoint=CHECKPOINT)
    job.operator("only", subtask=FinishesAtOnce, parallelism=3)
    result = run(spark, job, broker=kafka_broker.bootstrap).wait(60)
    assert result.ending == "finished"


def test_the_coordinator_may_run_elsewhere(spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str) -> None:
    job = counting_job(job_name, limit=100, parallelism=1)
    transport = KafkaTransport(kafka_broker.bootstrap)
    service = CoordinatorService(
        lambda _: CoordinatorRuntime(job.settings, job.coordinators, transport), job.restart
    ).start()
    try:
        with run(spark, job, broker=transport.config, coordinator="elsewhere") as handle:
            wait_until_counted(handle, 100, subtasks=2)
            assert handle.stop().ending == "stopped"
    finally:
        service.leave()
        service.wait(20)
        transport.close()


def test_a_stop_that_nobody_answers_cancels_the_tasks(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    job = counting_job(job_name, parallelism=1)
    handle = run(spark, job, broker=kafka_broker.bootstrap, coordinator="elsewhere")
    tracker = spark.sparkContext.statusTracker()
    wait_until(tracker.getActiveJobsIds, 20, "the Spark job begins")
    with pytest.raises(JobError, match="savepoint"):
        handle.stop(savepoint=True, timeout=0.5)
    assert not handle.done
    result = handle.stop(timeout=0.5)
    assert result.ending == "stopped" and "cancelled" in result.cause
    assert not tracker.getActiveJobsIds()


def test_requests_and_their_refusals_reach_the_caller(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    with run(spark, counting_job(job_name, parallelism=1), broker=kafka_broker.bootstrap) as handle:
        wait_until_counted(handle, 300, subtasks=2)
        handle.request("left", "more")
        wait_until(lambda: reports_of(handle)["left/0"]["count"] == 400, 20, "a hundred more")
        with pytest.raises(PenstockError, match="no operator 'middle'"):
            handle.request("middle", "more")


def test_many_runs_in_one_session_leave_no_threads_behind(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str
) -> None:
    before = set(threading.enumerate())

    def once(name: str) -> list[str]:
        with run(spark, counting_job(name, limit=10, parallelism=1), broker=kafka_broker.bootstrap) as handle:
            wait_until_counted(handle, 10, subtasks=2)
        wait_until(lambda: not threads_since(before, "penstock"), 10, "our threads end")
        return sorted(thread.name for thread in threading.enumerate())

    after_first = once(f"{job_name}-1")
    once(f"{job_name}-2")
    after_third = once(f"{job_name}-3")
    assert len(after_third) <= len(after_first), (after_first, after_third)
