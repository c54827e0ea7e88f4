"""One definition of a job, coordinator and operator: as long-running tasks, and as a Structured Streaming query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from penstock import CheckpointSettings, Context, Job, OperatorCoordinator, Subtask
from penstock.broker import EmbeddedBroker
from penstock.spark_integration import Batch, JobHandle, QueryHandle, exactly_once, run, stream

from .jobs import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OPERATOR = "squares"
NUMBERS, AT_ONCE, PARALLELISM = 30, 10, 2
DEADLINE_S = 120


class Asker(OperatorCoordinator):
    """Hands out some numbers with each completed checkpoint, and keeps what comes back, with who has answered."""

    def __init__(self) -> None:
        self.gateways: dict[int, Any] = {}
        self.asked, self.answers = 0, []

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        self.gateways[subtask] = gateway
        self.ask()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.ask()

    def ask(self) -> None:
        if len(self.gateways) == PARALLELISM:
            for number in range(self.asked, min(self.asked + AT_ONCE, NUMBERS)):
                self.gateways[number % PARALLELISM].send_event(number)
                self.asked = number + 1

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
        self.answers.append([subtask, event])

    def handle_request(self, request: Any) -> Any:
        return self.answers

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        result.complete([self.asked, self.answers])

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.gateways.clear()
        self.asked, self.answers = state or (0, [])


def answered(number: int) -> dict[str, int]:
    """What the operator does; it knows neither of the two ways."""
    return {"number": number, "square": number * number}


class Squarer(Subtask):
    def open(self, context: Context) -> None:
        self.context = context

    def handle_operator_event(self, event: Any) -> None:
        self.context.send_event_to_coordinator(answered(event))


def job_of(name: str) -> Job:
    job = Job(name, checkpoint=CheckpointSettings(interval=0.1))
    job.operator(
        OPERATOR, coordinator=Asker, subtask=Squarer, parallelism=PARALLELISM, codec="json", state_codec="json"
    )
    return job


def answer(rows: DataFrame, batch: Batch) -> None:
    as_json = F.udf(lambda event: json.dumps(answered(json.loads(event))), "string")
    batch.send_to_coordinator(rows.select(as_json("event").alias("event"), "subtask"))


EXPECTED = sorted([number % PARALLELISM, number] for number in range(NUMBERS))


def answers_of(handle: JobHandle | QueryHandle) -> list[list[int]]:
    """Who has squared which number, once all are there."""
    wait_until(lambda: len(handle.request(OPERATOR, None)) >= NUMBERS, DEADLINE_S, "every answer")
    answers = handle.request(OPERATOR, None)
    assert all(a["square"] == a["number"] ** 2 for _, a in answers)
    return sorted([subtask, a["number"]] for subtask, a in answers)


def test_the_same_job_runs_as_tasks_and_as_a_query_with_the_same_result(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    with run(spark, job_of(f"{job_name}-tasks"), broker=kafka_broker.bootstrap) as tasks:
        by_tasks = answers_of(tasks)
    with stream(spark, job_of(f"{job_name}-query"), broker=kafka_broker.bootstrap) as handle:
        writer = handle.read_stream(maxWait=0.1).writeStream.foreachBatch(exactly_once(answer))
        writer.option("checkpointLocation", str(tmp_path)).start()
        by_query = answers_of(handle)
    assert by_tasks == by_query == EXPECTED
