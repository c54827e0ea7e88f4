"""The sink under a real Spark, over a real broker: every row counts once, whoever dies (protocol, section 10.9)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import penstock
from penstock.broker import EmbeddedBroker
from penstock.schemas.settings import CheckpointSettings
from penstock.spark_integration import register_source
from penstock.spark_integration.streaming.writing import stream_writer
from penstock.testing.local import LocalJob
from penstock.transport.kafka import KafkaConfig, KafkaTransport

from .counting import Counts, Idle
from .test_queries import DEADLINE_S, ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

FILES, ROWS = 4, 50
"""Batches, and rows of each."""


class Numbers(Counts):
    """Waits in batch 2 where a test tells it to, and takes no negative number."""

    entered, go_on = threading.Event(), threading.Event()

    def handle_batch(self, query: str, batch_id: int, events: Sequence[Any]) -> None:
        if batch_id == 2:
            self.entered.set()
            assert self.go_on.wait(DEADLINE_S)
        numbers = [event["number"] for event in events]
        if any(number < 0 for number in numbers):
            raise ValueError("a number is negative")
        super().handle_batch(query, batch_id, numbers)


@pytest.fixture
def running(job_name: str, kafka_broker: EmbeddedBroker) -> Iterator[LocalJob]:
    Numbers.entered.clear()
    Numbers.go_on.set()
    job = penstock.Job(f"fed-{job_name}", checkpoint=CheckpointSettings(interval=5.0))
    job.operator("op", coordinator=Numbers, subtask=Idle, parallelism=1, codec="json", state_codec="json")
    transport = KafkaTransport(kafka_broker.bootstrap)
    with LocalJob(job, transport) as running:
        running.wait_for(lambda status: status.state == "running", DEADLINE_S)
        yield running
    transport.close()


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A folder of files; each is a batch."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    for file in range(FILES):
        lines = [str(number) for number in range(file * ROWS, (file + 1) * ROWS)]
        path = folder / f"{file}.txt"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (file, file))  # Spark takes the oldest first
    return folder


def events(spark: SparkSession, numbers: Path) -> DataFrame:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(numbers)).repartition(2)
    return lines.select(F.to_json(F.struct(F.col("value").cast("long").alias("number"))).alias("event"))


def feed(frame: DataFrame, running: LocalJob, broker: EmbeddedBroker, folder: Path) -> StreamingQuery:
    writer = stream_writer(frame, running.job, "op", KafkaConfig(broker.bootstrap), {"coordinatorTimeout": 300})
    return writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()


def run_to_the_end(query: StreamingQuery) -> None:
    assert query.awaitTermination(int(DEADLINE_S)), query.status


def counted(running: LocalJob) -> dict[str, int]:
    codec = running.job.operators["op"].codec
    counts: dict[str, int] = codec.decode(running.client.request("op", codec.encode(None), DEADLINE_S).payload)
    return counts


ONCE = {str(number): 1 for number in range(FILES * ROWS)}


def test_a_batch_whose_commit_spark_has_lost_runs_again_and_counts_once(
    spark: SparkSession, running: LocalJob, kafka_broker: EmbeddedBroker, numbers: Path, tmp_path: Path
) -> None:
    """What a driver leaves that is killed between the sink's commit and Spark's own."""
    checkpoint = tmp_path / "checkpoint"
    run_to_the_end(feed(events(spark, numbers), running, kafka_broker, checkpoint))
    assert counted(running) == ONCE
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    (numbers / "more.txt").write_text(f"{FILES * ROWS}\n")
    run_to_the_end(feed(events(spark, numbers), running, kafka_broker, checkpoint))
    assert counted(running) == ONCE | {str(FILES * ROWS): 1}


def test_a_worker_and_the_coordinator_die_within_batches_and_each_row_counts_once(
    spark: SparkSession, running: LocalJob, kafka_broker: EmbeddedBroker, numbers: Path, tmp_path: Path
) -> None:
    struck = str(tmp_path / "struck")

    def strike(batches: Iterator[Any]) -> Iterator[Any]:
        """The process that writes batch 1's rows dies behind them, once."""
        for batch in batches:
            yield batch
            if any(f'"number":{ROWS}}}' in text for text in batch.column(0).to_pylist()):
                try:
                    os.close(os.open(struck, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), 9)

    Numbers.go_on.clear()
    frame = events(spark, numbers).mapInArrow(strike, "event string")
    query = feed(frame, running, kafka_broker, tmp_path / "checkpoint")
    assert Numbers.entered.wait(DEADLINE_S), query.exception()
    assert Path(struck).exists()
    running.crash_coordinator()
    Numbers.go_on.set()
    running.replace_coordinator()
    run_to_the_end(query)
    assert counted(running) == ONCE


def test_a_refused_batch_fails_the_query_with_the_coordinators_words(
    spark: SparkSession, running: LocalJob, kafka_broker: EmbeddedBroker, numbers: Path, tmp_path: Path
) -> None:
    (numbers / "bad.txt").write_text("-1\n")
    assert "a number is negative" in ended(feed(events(spark, numbers), running, kafka_broker, tmp_path / "c"))
    assert counted(running) == ONCE
    (numbers / "bad.txt").unlink()


def test_options_alone_feed_a_coordinator_too(
    spark: SparkSession, running: LocalJob, kafka_broker: EmbeddedBroker, numbers: Path, tmp_path: Path
) -> None:
    register_source(spark)
    writer = events(spark, numbers).writeStream.format("penstock").queryName("named")
    given = {"job": running.job.name, "operator": "op", "kafka.bootstrap.servers": kafka_broker.bootstrap}
    writer = writer.options(**given).option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_the_end(writer.trigger(availableNow=True).start())
    assert counted(running) == ONCE
