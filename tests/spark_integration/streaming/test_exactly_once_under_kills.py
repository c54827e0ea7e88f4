"""The whole of it under a real Spark and a real broker: files and events back, while drivers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.broker import EmbeddedBroker
from penstock.schemas.acks import BatchEventFrame, BatchEvents
from penstock.schemas.codec import decode
from penstock.schemas.topics import TopicNames
from penstock.spark_integration import Batch, exactly_once, stream
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition
from tests.rounds import rounds

from . import counted_job
from .counted_job import EVENTS, PARALLELISM, Counter, job_of, newest, wait_for, writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROOT = Path(__file__).parents[3]


def drive(
    name: str, broker: str, folder: Path, point: str = "", batch_id: int = -1
) -> subprocess.CompletedProcess[str]:
    """A driver of its own; its coordinator and its JVM end with it."""
    return subprocess.run(
        [sys.executable, "-m", counted_job.__name__, name, broker, str(folder), point, str(batch_id)],
        capture_output=True, text=True, timeout=900, check=False, cwd=ROOT, env=dict(os.environ),
    )  # fmt: skip


def killed(process: subprocess.CompletedProcess[str]) -> bool:
    return process.returncode == -signal.SIGKILL


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """By a reader that knows nothing of us."""
    rows = ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: int(row["number"]))


def acks_of(name: str, broker: str) -> list[Any]:
    transport = KafkaTransport(broker)
    try:
        return [decode(r.value) for r in transport.read_all(Partition(TopicNames("penstock", name).acks, 0))]
    finally:
        transport.close()


@pytest.mark.soak
@pytest.mark.timeout(1800)  # four drivers, one after the other
@pytest.mark.parametrize("round_", rounds())
def test_every_number_is_written_once_and_comes_back_once_whenever_its_driver_is_killed(
    kafka_broker: EmbeddedBroker, tmp_path: Path, round_: int, job_name: str
) -> None:
    name, broker = f"counted-{job_name}-{round_}", kafka_broker.bootstrap
    assert killed(drive(name, broker, tmp_path, "behind the files", 1 + round_ % 2))
    between = {row["number"]: row["checkpoint_id"] for row in rows_of(tmp_path)}
    assert killed(drive(name, broker, tmp_path, "behind the events", 3 + round_ % 2))
    assert {row["number"]: row["checkpoint_id"] for row in rows_of(tmp_path)}.items() >= between.items()
    finished = drive(name, broker, tmp_path)
    assert "received True" in finished.stdout, finished.stdout + finished.stderr
    rows = rows_of(tmp_path)
    assert [row["number"] for row in rows] == list(range(EVENTS))
    assert all(row["number"] % PARALLELISM == row["subtask"] for row in rows)

    commits, offsets = tmp_path / "checkpoint" / "commits", tmp_path / "checkpoint" / "offsets"
    last = newest(commits)
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
    assert newest(commits) < newest(offsets) == last
    again = drive(name, broker, tmp_path)
    assert "received True" in again.stdout, again.stdout + again.stderr
    assert newest(commits) == last
    assert rows_of(tmp_path) == rows


@pytest.fixture
def name(job_name: str) -> str:
    return f"counted-{job_name}"


def test_what_a_failed_task_attempt_has_sent_does_not_count(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt fails when what it sends stands in the log; what it sends is nothing that may count."""
    monkeypatch.setattr(counted_job, "EVENTS", 6)
    broker, counts = kafka_broker.bootstrap, []

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        events = [event for batch in batches for event in batch.column(0).to_pylist()]
        if not events or context is None:
            return
        if context.attemptNumber() == 0:
            void = pa.array([b'{"number": -1}'] * 10_000, pa.binary())
            for _ in range(3):  # Spark hands over 10,000 rows at once, and a frame holds 1,000
                yield pa.RecordBatch.from_arrays([void], names=["event"])
            await_frames_of_void(name, broker)
            raise RuntimeError("the first attempt fails on purpose, behind its frames")
        yield pa.RecordBatch.from_arrays([pa.array(events, pa.binary())], names=["event"])

    def write(rows: Any, batch: Batch) -> None:
        counts.append(batch.send_to_coordinator(rows.select("event").mapInArrow(fails_once, "event binary")))

    with stream(spark, job_of(name), broker=broker) as handle:
        rows = handle.read_stream(maxWait=0.2)
        query = rows.writeStream.foreachBatch(exactly_once(write)).option("checkpointLocation", str(tmp_path)).start()
        wait_for(lambda: len(Counter.newest.received) >= 6, query, "every number back")
        handle.stop()
    assert sorted(number for number, _, _ in Counter.newest.received) == list(range(6))
    assert sum(counts) == 6
    manifests = [record for record in acks_of(name, broker) if isinstance(record, BatchEvents)]
    counted = {writer.writer for manifest in manifests for writer in manifest.writers}
    assert counted
    assert not counted & {frame.writer for frame in frames_of_void(name, broker)}


def frames_of_void(name: str, broker: str) -> list[BatchEventFrame]:
    return [
        record for record in acks_of(name, broker) if isinstance(record, BatchEventFrame) and b"-1" in record.payload
    ]


def await_frames_of_void(name: str, broker: str) -> None:
    deadline = time.monotonic() + 60
    while not frames_of_void(name, broker):
        if time.monotonic() > deadline:
            raise AssertionError("no frame of the first attempt within 60 s")
        time.sleep(0.1)


def test_what_the_function_raises_runs_the_same_batch_again_and_nothing_is_doubled(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_job, "EVENTS", 60)
    tokens: list[str] = []

    def strike(point: str, batch: Batch) -> None:
        if point == "behind the events":
            tokens.append(str(batch.token))
            if len(tokens) == 1:
                raise LookupError("fails on purpose")

    with stream(spark, job_of(name), broker=kafka_broker.bootstrap) as handle:
        rows = handle.read_stream(maxWait=0.2)
        started = rows.writeStream.foreachBatch(writer(tmp_path / "out", strike))
        started = started.option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises(Exception, match="fails on purpose"):
            started.start().awaitTermination()
        query = started.start()
        wait_for(lambda: len(Counter.newest.received) >= 60, query, "every number back")
        handle.stop()
    assert sorted(number for number, _, _ in Counter.newest.received) == list(range(60))
    assert [row["number"] for row in rows_of(tmp_path)] == list(range(60))
    assert tokens[0] == tokens[1]
    assert len(set(tokens)) == len(tokens) - 1
    assert all(belongs_to > 0 for _, _, belongs_to in Counter.newest.received)
