"""Queries under a real Spark, over a real broker, with the job's coordinator in the driver."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from penstock import Job, RestartStrategy
from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import ConfigurationError, JobFailed, JobRefused, RunReplaced
from penstock.spark_integration import QueryHandle, register_source, stream
from penstock.spark_integration.streaming.options import SourceOptions
from penstock.transport.kafka import KafkaTransport

from .groups import OPERATOR, PARALLELISM, Groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

BATCHES: list[Any] = [
    [[b"a%d" % i for i in range(7)], [b"b"]],
    [[], [b"c", b"", b"d"]],
    [[b"e"], []],
]
DEADLINE_S = 450.0
GIVEN = {"job": "j", "operator": "o", "kafka.bootstrap.servers": "127.0.0.1:1"}


@dataclass
class Rule:
    name: str
    limit: int | None


def job_of(name: str, batches: Any = BATCHES, codec: Any = None, **settings: Any) -> Job:
    """A job whose batches are exactly these, one after the other."""
    job = Job(f"query-{name}", **settings)
    job.operator(
        OPERATOR, coordinator=partial(Groups, batches), parallelism=PARALLELISM, codec=codec, state_codec="json"
    )
    return job


@pytest.fixture
def job(job_name: str) -> Job:
    return job_of(job_name)


@pytest.fixture
def handle(spark: SparkSession, job: Job, kafka_broker: EmbeddedBroker) -> Iterator[QueryHandle]:
    with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        yield handle


def wait_until_completed(handle: QueryHandle, checkpoint_id: int) -> None:
    """Returns when the coordinator knows that Spark has committed the batch of that checkpoint."""
    deadline = time.monotonic() + DEADLINE_S
    while (status := handle.status()) is None or status.last_completed < checkpoint_id:
        assert time.monotonic() < deadline, f"checkpoint {checkpoint_id} is not completed: {status}"
        time.sleep(0.05)


class Batches:
    """A foreachBatch sink in this process: the rows of each batch id, each time that it ran."""

    def __init__(self, fail: Callable[[int], bool] = lambda _: False) -> None:
        self.runs: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.fail = fail

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted(map(tuple, frame.drop("timestamp").collect()))
        self.runs.append((batch_id, rows))
        if self.fail(batch_id):
            raise LookupError(f"batch {batch_id} fails on purpose")

    def events(self) -> list[list[list[bytes]]]:
        """By run and subtask, in order."""
        return [[[bytes(row[3]) for row in rows if row[0] == s] for s in range(PARALLELISM)] for _, rows in self.runs]


def started(frame: DataFrame, folder: Path, write: Batches, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder))
    return (writer.trigger(**trigger) if trigger else writer).start()


def wait_for(condition: Callable[[], Any], query: StreamingQuery, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert query.isActive, f"{what}: the query has ended: {query.exception()}"
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}; {query.status}"
        time.sleep(0.05)


def ended(query: StreamingQuery) -> str:
    """What the query failed with."""
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(int(DEADLINE_S))
    return str(caught.value)


def run_to_the_end(handle: QueryHandle, folder: Path, write: Batches, **options: Any) -> None:
    """Runs what there is, and ends."""
    query = started(handle.read_stream(**options), folder, write, availableNow=True)
    assert query.awaitTermination(int(DEADLINE_S)), query.status


@pytest.mark.smoke
def test_events_arrive_as_rows_batch_by_batch_and_the_last_one_is_completed_too(
    handle: QueryHandle, tmp_path: Path
) -> None:
    write = Batches()
    query = started(handle.read_stream(OPERATOR, maxWait=0.1), tmp_path, write)
    wait_for(lambda: len(write.runs) == 3, query, "three batches")
    assert write.events() == BATCHES
    assert [batch_id for batch_id, _ in write.runs] == [0, 1, 2]
    ids = [rows[0][2] for _, rows in write.runs]
    assert ids == sorted(set(ids))
    numbers = [[(row[0], row[1], row[2]) for row in rows] for _, rows in write.runs]
    assert numbers[0] == [(0, i, ids[0]) for i in range(7)] + [(1, 0, ids[0])]
    assert numbers[1] == [(1, i, ids[1]) for i in (1, 2, 3)]
    assert numbers[2] == [(0, 7, ids[2])]
    wait_until_completed(handle, ids[2])
    handle.stop()
    assert not query.isActive
    handle.stop()


@pytest.mark.smoke
def test_a_query_that_fails_in_a_batch_reads_the_same_rows_under_the_same_id(
    spark: SparkSession, job: Job, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    write = Batches(fail=lambda batch_id: batch_id == 1)
    with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        assert "batch 1 fails on purpose" in ended(started(handle.read_stream(), tmp_path, write))
        write.fail = lambda _: False
        query = started(handle.read_stream(maxWait=0.1), tmp_path, write)
        wait_for(lambda: len(write.runs) == 4, query, "the failed batch again, and the one behind it")
    assert [batch_id for batch_id, _ in write.runs] == [0, 1, 1, 2]
    assert write.runs[1] == write.runs[2]
    assert write.events() == [BATCHES[0], BATCHES[1], BATCHES[1], BATCHES[2]]


def test_a_batch_whose_commit_was_lost_runs_again_under_another_coordinator(
    spark: SparkSession, job: Job, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    write = Batches()
    for _ in range(2):
        with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
            run_to_the_end(handle, tmp_path, write)
        for entry in (tmp_path / "commits").iterdir():
            entry.unlink()
    assert [batch_id for batch_id, _ in write.runs] == [0, 0, 1]
    assert write.runs[0] == write.runs[1]
    assert write.events() == [BATCHES[0], BATCHES[0], BATCHES[1]]


def test_available_now_takes_one_batch_and_completes_it(handle: QueryHandle, tmp_path: Path) -> None:
    write = Batches()
    for taken in (1, 2, 3, 3):
        run_to_the_end(handle, tmp_path, write)
        assert write.events() == BATCHES[:taken]
        wait_until_completed(handle, write.runs[-1][1][0][2])


def test_events_of_a_dataclass_are_typed_columns(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    seen: list[Any] = []
    job = job_of(job_name, [[[Rule("a", 1)], [Rule("b", None)]]], codec=Rule)
    with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        frame = handle.read_stream()
        assert frame.schema["event"].dataType.simpleString() == "struct<name:string,limit:bigint>"
        writer = frame.select("event.*").writeStream.foreachBatch(
            lambda rows, _: seen.extend(map(tuple, rows.collect()))
        )
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(int(DEADLINE_S))
        as_bytes = handle.read_stream(eventSchema="")
    assert sorted(seen) == [("a", 1), ("b", None)]
    assert as_bytes.schema["event"].dataType.simpleString() == "binary"


def test_a_query_without_its_spark_checkpoint_is_refused_unless_it_says_that_it_is_fresh(
    handle: QueryHandle, tmp_path: Path
) -> None:
    write = Batches()
    run_to_the_end(handle, tmp_path / "lost", write)
    message = ended(started(handle.read_stream(), tmp_path / "new", write))
    assert "JobRefused: the coordinator of job query-" in message
    assert "Spark's checkpoint is empty, and job" in message
    run_to_the_end(handle, tmp_path / "new", write, fresh=True)
    assert write.events() == [BATCHES[0], BATCHES[0]]


def test_an_older_copy_of_the_spark_checkpoint_is_refused(handle: QueryHandle, tmp_path: Path) -> None:
    write = Batches()
    run_to_the_end(handle, tmp_path / "mine", write)
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    run_to_the_end(handle, tmp_path / "mine", write)
    message = ended(started(handle.read_stream(), tmp_path / "copy", write))
    assert "Spark's checkpoint is an older copy" in message
    assert len(write.runs) == 2


def test_a_job_that_fails_ends_its_query(
    spark: SparkSession, job_name: str, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    job = job_of(job_name, [[[b"x"], []], "it cannot go on"], restart=RestartStrategy(budget=1))
    handle = stream(spark, job, broker=kafka_broker.bootstrap)
    message = ended(started(handle.read_stream(maxWait=0.1), tmp_path, Batches()))
    assert f"job {job.name} has ended (failed: " in message
    assert "it cannot go on" in message
    assert handle.done
    with pytest.raises(JobFailed, match="it cannot go on"):
        handle.stop()


def test_a_coordinator_that_takes_over_goes_on_with_the_query(
    spark: SparkSession, job: Job, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    write = Batches()
    handle = stream(spark, job, broker=kafka_broker.bootstrap)
    query = started(handle.read_stream(maxWait=0.1), tmp_path, write)
    wait_for(lambda: write.runs, query, "a batch")
    successor = stream(spark, job, broker=kafka_broker.bootstrap)
    wait_for(lambda: len(write.runs) == 3, query, "what the successor plans")
    assert write.events() == BATCHES
    with pytest.raises(RunReplaced, match="another coordinator of job"):
        handle.stop()
    assert not query.isActive
    successor.stop()


def test_a_coordinator_that_does_not_run_is_named(
    spark: SparkSession, job: Job, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with stream(spark, job, broker=kafka_broker.bootstrap, coordinator="elsewhere") as handle:
        assert handle.status() is None
        message = ended(started(handle.read_stream(coordinatorTimeout=2), tmp_path, Batches()))
    assert f"no coordinator of job {job.name} has answered within 2 s" in message


def test_a_spark_checkpoint_from_before_a_purge_is_refused(
    spark: SparkSession, job: Job, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        run_to_the_end(handle, tmp_path, Batches())
    transport = KafkaTransport(kafka_broker.bootstrap)
    transport.delete_topics([spec.name for spec in job.settings.topic_specs])
    transport.close()
    with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        message = ended(started(handle.read_stream(), tmp_path, Batches()))
    assert "that job's topics have been deleted since" in message
    assert "a new checkpointLocation" in message


def test_a_wrong_option_is_refused_when_the_stream_is_loaded(spark: SparkSession) -> None:
    register_source(spark)
    with pytest.raises(PySparkException, match=r"the penstock source has no option 'startingoffsets'"):
        spark.readStream.format("penstock").option("startingOffsets", "earliest").load()
    with pytest.raises(PySparkException, match=r"use spark\.readStream, and not spark\.read"):
        spark.read.format("penstock").options(**GIVEN).load().collect()


def test_a_plan_shows_no_client_setting(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    register_source(spark)
    options = SourceOptions.parse(GIVEN | {"kafka.ssl.key.pem": "hush-hush", "kafka.sasl.password": "hush-hush"})
    spark.readStream.format("penstock").options(**options.to_options()).load().explain(True)
    shown = capsys.readouterr().out
    assert "operator=o" in shown
    assert "hush-hush" not in shown


def test_asynchronous_progress_tracking_is_stopped_and_named(handle: QueryHandle, tmp_path: Path) -> None:
    writer = handle.read_stream().writeStream.format("noop").option("asyncProgressTrackingEnabled", "true")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(int(DEADLINE_S))
    with pytest.raises(JobRefused, match=r"has asynchronous progress tracking.*Leave the option"):
        handle.status()
    with pytest.raises(JobRefused, match="asynchronous progress tracking"):
        handle.stop()


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ({"continuous": "1 second"}, "does not support continuous"),
        ({"realTime": "5 minutes"}, "not supported in Real-time"),
    ],
)
def test_triggers_without_batches_are_refused_by_spark(
    handle: QueryHandle, tmp_path: Path, trigger: dict[str, Any], message: str
) -> None:
    writer = handle.read_stream().writeStream.format("console").outputMode("update")
    with pytest.raises(PySparkException, match=message):
        writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger).start().awaitTermination(int(DEADLINE_S))


def test_a_handle_stops_its_own_queries_and_no_others(spark: SparkSession, handle: QueryHandle, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load().writeStream.format("noop")
    other = rate.option("checkpointLocation", str(tmp_path / "other")).start()
    query = started(handle.read_stream(), tmp_path / "own", Batches())
    handle.stop()
    assert (query.isActive, other.isActive) == (False, True)
    other.stop()


def test_only_the_jobs_operator_can_be_read(handle: QueryHandle) -> None:
    with pytest.raises(ConfigurationError, match=r"has no operator 'writer'; it has: reader"):
        handle.read_stream("writer")
    with pytest.raises(ConfigurationError, match=r"no option 'startingoffsets'"):
        handle.read_stream(startingOffsets="latest")
