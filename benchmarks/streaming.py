"""Micro-batches of the penstock source beside Spark's own Kafka source, and beside the least Python source."""

from __future__ import annotations

import random
import statistics
import struct
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from penstock.broker import JarsUnavailable
from penstock.spark_integration import local_session

from .figures import SIZE, Figure, Goal, Setting, quantile
from .query_sources import FRAME, Groups, KafkaTopic, penstock_query, trickling, trivial_stream
from .spark_kafka import CONNECTOR, kafka_source_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOTS = 4
KAFKA = f"Spark's Kafka source ({CONNECTOR})"
FRAMES = f"{KAFKA}, frames"
ROWS = 480_000
"""In a batch, where they are counted per second."""
BATCHES, IDLE_EVENTS, STEADY_EVENTS = 25, 20, 400
PARTS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
"""Of a batch, as Spark's progress has them; the last one is the whole."""
WARM_UP_BATCHES = 5
INTERVAL_S = 0.01
"""Between two events, where they come steadily."""
DEADLINE_S = 120.0
_STAMP = struct.Struct("<d")
_LOOK_S = 0.05

Opened = Callable[[], Any]
"""Makes a context manager that gives a streaming DataFrame, filled meanwhile."""


@dataclass(frozen=True)
class Floor:
    """Median milliseconds of each part of a batch that has next to nothing in it."""

    source: str
    partitions: int
    parts: dict[str, float]

    @property
    def whole(self) -> float:
        return self.parts["triggerExecution"]


@dataclass
class Session:
    spark: SparkSession
    has_kafka: bool


@contextmanager
def session(setting: Setting) -> Iterator[Session]:
    """Spark with its Kafka source, or without where that cannot be had, which is said."""
    own = {"spark.python.worker.reuse": "true", "spark.sql.shuffle.partitions": "4"}
    try:
        jars = setting.kafka_jars or ",".join(map(str, kafka_source_jars()))
        own["spark.jars"] = jars
    except (JarsUnavailable, OSError) as error:
        setting.say(f"without Spark's Kafka source: {error}")
    spark = local_session(SLOTS, "penstock-benchmarks", **own)
    spark.sparkContext.setLogLevel("FATAL")  # a query that is stopped in a batch says so in many lines
    try:
        yield Session(spark, "spark.jars" in own)
    finally:
        spark.stop()


# ---- the floor


def floors(at: Session, bootstrap: str, partitions: int, batches: int, repeats: int) -> list[Floor]:
    """Medians over ``repeats`` of the medians over the batches of a query, the sources by turns."""
    spark = at.spark
    sources: dict[str, Opened] = {
        "the least Python source": partial(_trivial, spark, partitions, 1),
        "penstock": partial(_penstock, spark, bootstrap, Groups(partitions, 1, SIZE, subtasks=1)),
    }
    if at.has_kafka:
        sources[KAFKA] = partial(_kafka_trickle, spark, bootstrap, partitions)
    runs: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(repeats):
        for name, opened in sources.items():
            with opened() as frame:
                progress = _progress(frame, batches + WARM_UP_BATCHES)[WARM_UP_BATCHES:]
            runs[name].append(_medians([p.durationMs for p in progress]))
    return [Floor(name, partitions, _medians(of_runs)) for name, of_runs in runs.items()]


def _medians(durations: list[dict[str, Any]]) -> dict[str, float]:
    return {part: statistics.median(d.get(part, 0) for d in durations) for part in PARTS}


@contextmanager
def _trivial(spark: SparkSession, partitions: int, count: int) -> Iterator[DataFrame]:
    yield trivial_stream(spark, partitions, count, SIZE)


@contextmanager
def _penstock(spark: SparkSession, bootstrap: str, coordinator: Groups) -> Iterator[DataFrame]:
    with penstock_query(spark, bootstrap, coordinator) as handle:
        yield handle.read_stream()


@contextmanager
def _kafka_trickle(spark: SparkSession, bootstrap: str, partitions: int) -> Iterator[DataFrame]:
    topic = KafkaTopic(bootstrap, partitions)
    with trickling(topic.send, 2 * INTERVAL_S, lambda: bytes(SIZE)):
        yield topic.stream(spark)
    topic.flush()


def _progress(frame: DataFrame, batches: int) -> list[Any]:
    """Of so many batches of a query into Spark's noop sink, as soon as each trigger may be."""
    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            return _wait(query, lambda: [p for p in query.recentProgress if p.numInputRows], batches, look_s=0.5)
        finally:
            query.stop()


def _wait(query: Any, seen: Callable[[], list[Any]], count: int, look_s: float = _LOOK_S) -> list[Any]:
    """Looks seldom where looking costs the query something: it shares the machine and, in part, this process."""
    deadline = time.monotonic() + DEADLINE_S
    while len(found := seen()) < count:
        if not query.isActive:
            raise RuntimeError(f"the query has ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} of {count} within {DEADLINE_S:g} s: {query.status}")
        time.sleep(look_s)
    return found[:count]


# ---- from an event to its row


def row_latencies(at: Session, bootstrap: str, count: int, idle: bool) -> dict[str, list[float]]:
    """Seconds from sending an event to its row in foreachBatch, by source.

    ``idle``: one event at a time, at a random moment of a query that has nothing to do. Else one each INTERVAL_S.
    """
    found = {}
    coordinator = Groups(1, 0, SIZE)
    with penstock_query(at.spark, bootstrap, coordinator) as handle:
        found["penstock"] = _latencies(
            handle.read_stream().select("event"),
            coordinator.send_one, coordinator.ready, count, idle,
        )  # fmt: skip
    if at.has_kafka:
        topic, ready = KafkaTopic(bootstrap, 1), threading.Event()
        ready.set()
        found[KAFKA] = _latencies(topic.stream(at.spark).select("value"), topic.send, ready, count, idle)
    return found


def _latencies(
    frame: DataFrame, send: Callable[[bytes], object], ready: threading.Event, count: int, idle: bool
) -> list[float]:
    taken: list[float] = []

    def write(rows: DataFrame, _: int) -> None:
        stamps = [_STAMP.unpack_from(row[0])[0] for row in rows.collect()]
        now = time.monotonic()
        taken.extend(now - stamp for stamp in stamps)

    def stamped() -> bytes:
        return _STAMP.pack(time.monotonic()).ljust(SIZE, b"\0")

    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.foreachBatch(write).option("checkpointLocation", folder).start()
        try:
            _wait(query, lambda: [True] * ready.is_set(), 1)
            if idle:
                for n in range(count + WARM_UP_BATCHES):
                    time.sleep(random.uniform(0.5, 0.7))
                    send(stamped())
                    _wait(query, lambda: taken, n + 1)
                warm_up = WARM_UP_BATCHES
            else:
                warm_up = int(5 / INTERVAL_S)
                with trickling(send, INTERVAL_S, stamped):
                    _wait(query, lambda: taken, count + warm_up)
            return taken[warm_up : count + warm_up]
        finally:
            query.stop()


# ---- rows per second


def rows_per_second(at: Session, bootstrap: str, parallelism: int, rows: int, repeats: int) -> dict[str, list[float]]:
    """Rows of a batch by the time of its addBatch, into the noop sink, so many batches of each source.

    The first one is left out: in it processes start. The backlog stands in the log before the batch begins.
    """
    spark, each = at.spark, rows // parallelism
    count = repeats + 1
    coordinator = Groups(parallelism, each, SIZE)
    sources: dict[str, Opened] = {
        "penstock": partial(_penstock, spark, bootstrap, coordinator),
        "the least Python source": partial(_trivial, spark, parallelism, each),
    }
    if at.has_kafka:
        sources[f"{KAFKA}, one record per event"] = partial(_kafka_filled, spark, bootstrap, parallelism, each, count)
        sources[FRAMES] = partial(_kafka_frames, spark, bootstrap, parallelism, each, count)
    found = {}
    for name, opened in sources.items():
        with opened() as frame:
            batches = _progress(frame, count)[1:]
        rows_of = FRAME if name == FRAMES else 1
        found[name] = [p.numInputRows * rows_of * 1000 / max(1, p.durationMs["addBatch"]) for p in batches]
    return found


@contextmanager
def _kafka_filled(spark: SparkSession, bootstrap: str, partitions: int, each: int, batches: int) -> Iterator[DataFrame]:
    topic = KafkaTopic(bootstrap, partitions)
    topic.fill(each * batches, bytes(SIZE))
    yield topic.stream(spark, maxOffsetsPerTrigger=each * partitions)


@contextmanager
def _kafka_frames(spark: SparkSession, bootstrap: str, partitions: int, each: int, batches: int) -> Iterator[DataFrame]:
    """Events of one size end to end in a record, taken apart by Spark's own functions."""
    topic = KafkaTopic(bootstrap, partitions)
    frames = each // FRAME
    topic.fill(frames * batches, bytes(SIZE * FRAME))
    rows = topic.stream(spark, maxOffsetsPerTrigger=frames * partitions)
    events = F.transform(
        F.sequence(F.lit(0), F.lit(FRAME - 1)), lambda i: F.substring("value", i * SIZE + 1, F.lit(SIZE))
    )
    yield rows.select("partition", "offset", "timestamp", F.explode(events).alias("event"))


# ---- all of it


def figures(setting: Setting) -> Iterator[Figure]:
    at_broker = setting.bootstrap
    with session(setting) as at:
        if not setting.quick:
            floors(at, at_broker, SLOTS, WARM_UP_BATCHES, 1)  # by then the JVM has compiled what all of them need
        for partitions in (SLOTS,) if setting.quick else (1, SLOTS):
            setting.say(f"micro-batches of one event, {partitions} partition(s)")
            yield from _floor_figures(floors(at, at_broker, partitions, setting.count(BATCHES, 2), setting.repeats))
        setting.say("rows per second")
        rows = setting.count(ROWS, SLOTS * FRAME)
        yield from _throughput_figures(rows_per_second(at, at_broker, SLOTS, rows, setting.repeats))
        for idle, count in ((True, setting.count(IDLE_EVENTS, 2)), (False, setting.count(STEADY_EVENTS, 20))):
            setting.say(f"from an event to its row, {'idle' if idle else 'steady'}")
            yield from _latency_figures(row_latencies(at, at_broker, count, idle), idle)


def _floor_figures(of: list[Floor]) -> list[Figure]:
    ours = next(f for f in of if f.source == "penstock")
    name = f"micro-batch of one event, {ours.partitions} partition{'s' if ours.partitions > 1 else ''}"
    found = [
        Figure(name, "trigger to commit, noop sink", ours.whole, "ms", other.whole, other.source,
               Goal("<= 50 ms more", "difference", at_most=50) if other.source == KAFKA else None)
        for other in of
        if other is not ours
    ]  # fmt: skip
    beside = next((f for f in of if f.source == KAFKA), of[0])
    return found + [
        Figure(f"{name}: {part}", "median of the batches", ours.parts[part], "ms", beside.parts[part], beside.source)
        for part in PARTS[:-1]
    ]


def _throughput_figures(by_source: dict[str, list[float]]) -> list[Figure]:
    what = f"reading a batch into the noop sink, {SIZE}-byte events"
    ours = by_source.pop("penstock")
    return [
        Figure.of_runs(f"rows/s, {SLOTS} partitions", what, ours, "rows/s", runs, source,
                       Goal(">= 60 %", "ratio", at_least=0.6) if source.startswith(KAFKA) else None)
        for source, runs in by_source.items()
    ]  # fmt: skip


def _latency_figures(by_source: dict[str, list[float]], idle: bool) -> list[Figure]:
    what = f"{'one at a time, idle query' if idle else f'one each {1000 * INTERVAL_S:g} ms'}, 1 partition, foreachBatch"
    name = f"send to row, {'idle' if idle else 'steady'}"
    ours, theirs = by_source["penstock"], by_source.get(KAFKA)
    return [
        Figure(f"{name}, {q}", what, 1000 * quantile(ours, fraction), "ms",
               1000 * quantile(theirs, fraction) if theirs else None, f"{KAFKA}: produce to row" if theirs else "")
        for q, fraction in (("p50", 0.5), ("p99", 0.99))
    ]  # fmt: skip
