"""Snippets of README and of pages on Spark run as they stand, but for the addresses and folders that they name."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock
from penstock.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0


def block(page: str, part: str) -> str:
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    (one,) = [text for text in found if part in text]
    return str(one)


class Numbers(penstock.OperatorCoordinator):
    """Sends each subtask its number, and says when an event comes back."""

    heard = threading.Event()

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        gateway.send_event({"number": subtask})

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
        self.heard.set()

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        result.complete(None)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        pass


@contextmanager
def queries_end_after(spark: SparkSession, event: threading.Event) -> Iterator[None]:
    """Stop the session's queries as soon as ``event`` is set, or the deadline is over."""

    def stop() -> None:
        event.wait(DEADLINE_S)
        for query in spark.streams.active:
            query.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    yield
    event.set()
    thread.join(DEADLINE_S)


def query_job(name: str) -> penstock.Job:
    job = penstock.Job(name)
    job.operator("numbers", coordinator=Numbers, parallelism=2, codec="json", state_codec="json")
    return job


def test_the_job_of_the_readme_on_spark(
    spark: SparkSession, kafka_broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "hello", "spark": spark}
    exec(block("README.md", "# hello.py"), names)
    exec(block("README.md", "handle.wait()").replace("broker:9092", kafka_broker.bootstrap), names)
    assert names["handle"].done
    assert len(re.findall(r"subtask \d has heard \[\d\]", capfd.readouterr().out)) == 4


def test_the_query_of_the_readme(spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    text = block("README.md", "read_stream").replace("broker:9092", kafka_broker.bootstrap)
    text = text.replace("s3://lake/checkpoints/rules", str(tmp_path / "checkpoints"))
    written: list[Any] = []
    seen = threading.Event()

    def write(rows: Any, batch: Any) -> None:
        written.extend(row.event for row in rows.select("event").collect())
        if len(written) >= 2:
            seen.set()

    with queries_end_after(spark, seen):
        exec(text, {"penstock": penstock, "spark": spark, "job": query_job("readme-query"), "write": write})
    assert sorted(written) == [b'{"number":0}', b'{"number":1}']


def test_the_query_of_the_page_on_batches_written_once(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    text = block("docs/exactly-once-batches.md", "send_to_coordinator").replace("broker:9092", kafka_broker.bootstrap)
    text = text.replace("/data/out", str(tmp_path / "out"))
    Numbers.heard.clear()
    with queries_end_after(spark, Numbers.heard):
        exec(text, {"spark": spark, "job": query_job("page-once"), "folder": str(tmp_path / "checkpoints")})
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_the_program_of_the_page_on_dataframes(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = tmp_path / "flights"
    flights.mkdir()
    for file in range(4):
        pyarrow.parquet.write_table(pa.table({"delay": [10, 59, 60, None, 600]}), flights / f"{file}.parquet")
    text = block("docs/dataframes.md", "# rows.py").replace("broker:9092", kafka_broker.bootstrap)
    text = text.replace("/data/flights", str(flights))
    monkeypatch.setattr(penstock.spark_integration, "local_session", lambda slots: spark, raising=False)
    heard: list[int] = []
    names: dict[str, Any] = {"__name__": "rows"}
    head, start, rest = text.partition("spark = penstock")
    exec(head, names)
    names["Threshold"].handle_event_from_operator = lambda self, subtask, attempt, event, context: heard.append(
        event["late"]
    )
    exec(start + rest, names)
    assert sorted(heard) == [2, 2, 2, 2]


def test_the_options_of_the_page_on_structured_streaming(spark: SparkSession, kafka_broker: EmbeddedBroker) -> None:
    text = block("docs/structured-streaming.md", 'option("job"').replace("broker:9092", kafka_broker.bootstrap)
    text = text.replace('"job", "rules"', '"job", "options"')  # the page's own job has run on this broker
    job = penstock.Job("options")
    job.operator("rules", coordinator=Numbers, parallelism=2, codec="json", state_codec="json")
    with penstock.spark_integration.stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        names: dict[str, Any] = {"penstock": penstock, "spark": spark}
        exec(text, names)
        assert names["rules"].isStreaming
        assert names["rules"].schema == handle.read_stream().schema


class Board(penstock.OperatorCoordinator):
    fed = threading.Event()

    def handle_batch(self, query: str, batch_id: int, events: Any) -> None:
        if events:
            self.fed.set()


def test_the_options_of_the_page_on_feeds(spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    job = penstock.Job("delays")
    job.operator("board", coordinator=Board, subtask=penstock.Subtask, parallelism=1, codec="json")
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    events = ticks.selectExpr("CAST(value AS STRING) AS event")
    with penstock.spark_integration.run(spark, job, broker=kafka_broker.bootstrap):
        names: dict[str, Any] = {"penstock": penstock, "spark": spark, "events": events, "broker": kafka_broker}
        exec(block("docs/feeds.md", 'option("job"'), {**names, "folder": str(tmp_path)}, names)
        assert Board.fed.wait(DEADLINE_S)
        names["query"].stop()


def test_the_program_of_the_page_on_deployment(
    spark: SparkSession,
    kafka_broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {"__name__": "hello"}
    exec(block("README.md", "# hello.py"), names)
    job = names["job"].renamed("watched")
    monkeypatch.setattr(penstock.spark_integration, "local_session", lambda slots: spark, raising=False)
    text = block("docs/deploy.md", "local_session").replace("127.0.0.1:9092", kafka_broker.bootstrap)
    exec(text, {"job": job})
    assert "finished" in capsys.readouterr().out
