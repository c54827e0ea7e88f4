"""What the streaming benchmarks read: the sources beside each other, and who fills them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.coordinator.api import CheckpointResult, Gateway, OperatorCoordinator
from penstock.job import Job
from penstock.spark_integration import QueryHandle, stream

from . import raw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OPERATOR = "events"
FRAME = 600
"""Events in a record, where there are several: as many as one of ours holds at this size."""
_FLUSH_S = 120.0
_ARROW_ROWS = 10_000
_BOUND = 100_000_000
_BOUND_BYTES = 2 * 1024**3


class Groups(OperatorCoordinator):
    """Sends a group of events to each subtask, in one callback, whenever the one before is in a completed batch.

    So each batch of the query is one group. ``count`` of 0 sends nothing: somebody else does, by ``gateways``.
    """

    def __init__(self, parallelism: int, count: int, size: int, subtasks: int | None = None) -> None:
        self.parallelism, self.count, self.event = parallelism, count, bytes(size)
        self.subtasks = parallelism if subtasks is None else subtasks
        self.gateways: dict[int, Gateway] = {}
        self.ready = threading.Event()

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self.gateways[subtask] = gateway
        if len(self.gateways) == self.parallelism:
            self.ready.set()
            self.send()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.send()

    def send(self) -> None:
        for subtask in range(self.subtasks):
            send_event = self.gateways[subtask].send_event
            for _ in range(self.count):
                send_event(self.event)

    def send_one(self, event: bytes) -> None:
        self.gateways[0].send_event(event)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(b"")


@contextmanager
def penstock_query(spark: SparkSession, bootstrap: str, coordinator: Groups) -> Iterator[QueryHandle]:
    """The coordinator in this driver, and what a query needs to read its events."""
    job = Job(f"bench-{uuid.uuid4().hex[:12]}")
    job.operator(
        OPERATOR, coordinator=lambda: coordinator, parallelism=coordinator.parallelism, max_unhandled=_BOUND,
        max_unsent_bytes=_BOUND_BYTES,
    )  # fmt: skip
    with stream(spark, job, broker=bootstrap) as handle:
        yield handle


@dataclass
class KafkaTopic:
    """Events in a topic of the same broker, and Spark's own source for it."""

    bootstrap: str
    partitions: int

    def __post_init__(self) -> None:
        self.topic = raw.create_topic(self.bootstrap, self.partitions)
        self._producer = Producer({"bootstrap.servers": self.bootstrap, **raw.PRODUCER})
        self._producer.list_topics(self.topic, timeout=30)

    def send(self, value: bytes, partition: int = 0) -> None:
        self._producer.produce(self.topic, value, partition=partition)
        self._producer.poll(0)

    def send_when_there_is_room(self, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(self.topic, value, partition=partition)
                return
            except BufferError:
                self._producer.poll(0.1)

    def fill(self, records: int, value: bytes) -> None:
        """As many records in each partition."""
        for number in range(records):
            for partition in range(self.partitions):
                self.send_when_there_is_room(value, partition)
            if number % 1000 == 0:
                self._producer.poll(0)
        self.flush()

    def flush(self) -> None:
        if self._producer.flush(_FLUSH_S):
            raise TimeoutError(f"the broker did not take everything within {_FLUSH_S:g} s")

    def stream(self, spark: SparkSession, **options: object) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic, "startingOffsets": "earliest"}
        return spark.readStream.format("kafka").options(**given, **{k: str(v) for k, v in options.items()}).load()


@contextmanager
def trickling(send: Callable[[bytes], object], interval_s: float, event: Callable[[], bytes]) -> Iterator[None]:
    """Somebody sends an event at this interval, meanwhile."""
    stop = threading.Event()

    def run() -> None:
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            send(event())
            due += interval_s

    thread = threading.Thread(target=run, name="trickle", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@dataclass
class _Part(InputPartition):
    subtask: int
    begin: int
    end: int


class Trivial(DataSource):
    """The least that a Python data source can be: numbers are its offsets, and its rows have our columns.

    What it takes is PySpark's own price for any source in Python.
    """

    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> str:
        return "subtask int, sequence bigint, checkpoint_id bigint, event binary, offset bigint, timestamp timestamp"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _TrivialReader(self.options)


class _TrivialReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.parallelism, self.count = int(options["parallelism"]), int(options["count"])
        self.size = int(options["size"])

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # type: ignore[override, unused-ignore]
        return {"at": start["at"] + self.count}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Part(subtask, start["at"], end["at"]) for subtask in range(self.parallelism)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Part)
        left, rows = partition.end - partition.begin, None
        while left:
            count = min(_ARROW_ROWS, left)
            if rows is None or rows.num_rows != count:
                rows = _rows(partition.subtask, count, self.size)
            yield rows
            left -= count


def _rows(subtask: int, count: int, size: int) -> pa.RecordBatch:
    now = datetime.now(UTC)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(subtask, pa.int32()), count),
            pa.array(range(count), pa.int64()),
            pa.repeat(pa.scalar(0, pa.int64()), count),
            pa.repeat(pa.scalar(bytes(size), pa.binary()), count),
            pa.array(range(count), pa.int64()),
            pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count),
        ],
        names=["subtask", "sequence", "checkpoint_id", "event", "offset", "timestamp"],
    )


def trivial_stream(spark: SparkSession, parallelism: int, count: int, size: int) -> DataFrame:
    spark.dataSource.register(Trivial)
    return spark.readStream.format("trivial").options(parallelism=parallelism, count=count, size=size).load()
