"""Records per second of a Kafka source, beside raw confluent-kafka and beside Spark's own Kafka source."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from penstock import Context, Finished, Idle, Job, OperatorCoordinator, Subtask
from penstock.errors import PenstockError
from penstock.schemas.settings import CheckpointSettings
from penstock.sources import Kafka
from penstock.subtask_client.metrics import Metrics

from . import raw
from .data_channels import key_of
from .figures import SIZE, Figure, Setting
from .query_sources import KafkaTopic
from .service import coordinated, run_subtask
from .streaming import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 1_000_000
PARTITIONS = 4
KEYS = 1_000
INTERVAL_S = 0.5
DEADLINE_S = 240.0


def filled(bootstrap: str, records: int) -> str:
    """A topic with so many records of a hundred bytes, the first eight of them a key."""
    topic = KafkaTopic(bootstrap, PARTITIONS)
    for number in range(0, records, KEYS * PARTITIONS):
        for key in range(min(KEYS, (records - number) // PARTITIONS)):
            value = key.to_bytes(8, "big") + bytes(SIZE - 8)
            for partition in range(PARTITIONS):
                topic.send_when_there_is_room(value, partition)
    topic.flush()
    return topic.topic


# ---- one subtask, without a job


def raw_alone(bootstrap: str, topic: str, records: int) -> float:
    """From the first record to the last, the value of each taken."""
    consumer = raw.consumer_of(bootstrap, topic, range(PARTITIONS))
    seen, began = 0, 0.0
    while seen < records:
        messages = consumer.consume(1_000, 0) or consumer.consume(1, 1.0)
        if messages and not seen:
            began = time.monotonic()
        for message in messages:
            message.value()
        seen += len(messages)
    took = time.monotonic() - began
    consumer.close()
    return records / took


def source_alone(bootstrap: str, topic: str, records: int) -> float:
    """The same through the source's subtask, driven by hand."""
    subtask: Any = Kafka(topic, brokers=bootstrap, until="latest").read()["subtask"]()
    times: list[float] = []

    def emit(record: Any) -> None:
        if not times:
            times.append(time.monotonic())

    subtask.open(SimpleNamespace(job="bench", operator="in", subtask=0, metrics=Metrics(), emit=emit))
    found = subtask._connected.describe([topic], 30.0)[topic]
    each = records // PARTITIONS
    given = [[topic, found.id, partition, 0, each] for partition in range(PARTITIONS)]
    subtask.handle_operator_event({"partitions": given, "all": True})
    while not isinstance(said := subtask.poll(), Finished):
        if isinstance(said, Idle):
            time.sleep(min(said.until, 0.005))
    took = time.monotonic() - times[0]
    subtask.close()
    return records / took


# ---- a job that counts by key


class Times(OperatorCoordinator):
    """Learns when each sink has had its first and its last record, and what it has counted."""

    def __init__(self) -> None:
        self.told: dict[int, list[Any]] = {}

    def handle_event_from_operator(self, subtask: int, attempt: int, event: list[Any], context: Any) -> None:
        self.told[subtask] = event


class CountByKey(Subtask):
    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.first = 0.0

    def open(self, context: Context) -> None:
        self.context = context

    def process(self, record: bytes, input: str) -> None:
        if not self.counts:
            self.first = time.monotonic()
        key = record[:8]
        self.counts[key] = self.counts.get(key, 0) + 1

    def end_inputs(self) -> None:
        self.context.send_event_to_coordinator([self.first, time.monotonic(), sum(self.counts.values())])


def _job(name: str, bootstrap: str, topic: str, parallelism: int, by: Mapping[str, OperatorCoordinator]) -> Job:
    job = Job(name, checkpoint=CheckpointSettings(interval=INTERVAL_S, timeout=DEADLINE_S))
    reads = Kafka(topic, brokers=bootstrap, until="latest").read()
    reader = job.operator("reader", **reads, parallelism=parallelism)
    times = by.get("count")
    coordinator: Callable[[], OperatorCoordinator] | None = None if times is None else lambda: times
    job.operator(
        "count", subtask=CountByKey, coordinator=coordinator, parallelism=parallelism,
        inputs=[reader.keyed_by(key_of)], codec="json",
    )  # fmt: skip
    return job


def counted_by_a_job(bootstrap: str, topic: str, parallelism: int, records: int) -> float:
    """From the first record at a sink to the last, with checkpoints meanwhile."""
    times, name = Times(), f"bench-{uuid.uuid4().hex[:12]}"
    job = _job(name, bootstrap, topic, parallelism, {"count": times})
    bare = _job(name, bootstrap, topic, parallelism, {})
    targets = [partial(run_subtask, bare, subtask, bootstrap) for subtask in job.settings.subtasks()]
    with coordinated(job, bootstrap, targets) as service:
        if (end := service.wait(DEADLINE_S)) is None or len(times.told) < parallelism:
            raise PenstockError(f"the job has not ended as it was to: {end}, {service.status()}")
    counted = sum(count for _, _, count in times.told.values())
    if counted != records:
        raise PenstockError(f"{counted} records were counted, not {records}")
    return records / (max(last for _, last, _ in times.told.values()) - min(f for f, _, _ in times.told.values()))


def counted_by_spark(spark: SparkSession, bootstrap: str, topic: str, records: int) -> float:
    """The same by a batch query on Spark's own source, from its start to its result."""
    from pyspark.sql import functions as F

    began = time.monotonic()
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    counts = rows.groupBy(F.substring("value", 1, 8).alias("key")).count().collect()
    took = time.monotonic() - began
    if sum(row["count"] for row in counts) != records:
        raise PenstockError("Spark has counted another number of records")
    return records / took


def figures(setting: Setting) -> Iterator[Figure]:
    records, at = setting.count(RECORDS, 20_000), setting.bootstrap
    topic = filled(at, records)
    setting.say(f"{records} records in {PARTITIONS} partitions")
    ours: dict[int, list[float]] = {0: []} | {parallelism: [] for parallelism in setting.parallelisms}
    raws: list[float] = []
    sparks: list[float] = []
    with session(setting) as of_spark:
        if of_spark.has_kafka:
            counted_by_spark(of_spark.spark, at, topic, records)  # warms up
        for _ in range(setting.repeats):
            raws.append(raw_alone(at, topic, records))
            ours[0].append(source_alone(at, topic, records))
            for parallelism in setting.parallelisms:
                ours[parallelism].append(counted_by_a_job(at, topic, parallelism, records))
            if of_spark.has_kafka:
                sparks.append(counted_by_spark(of_spark.spark, at, topic, records))
    unit, raw_definition = "records/s", "raw confluent-kafka: one consumer, the value of each record taken"
    yield Figure.of_runs(
        "Kafka source, one subtask by itself", f"first record to last, {SIZE}-byte records, emitted to nobody",
        ours.pop(0), unit, raws, raw_definition,
    )  # fmt: skip
    for parallelism, runs in ours.items():
        name = f"Kafka source, {parallelism} to {parallelism} by key"
        what = f"first record counted to last, each subtask in a process, a checkpoint every {INTERVAL_S:g} s"
        yield Figure.of_runs(name, what, runs, unit, raws, raw_definition)
        if sparks:
            beside = "Spark's Kafka source: a batch query that counts by key, in the JVM, start to result"
            yield Figure.of_runs(name, what, runs, unit, sparks, beside)
