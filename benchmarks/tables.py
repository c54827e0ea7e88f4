"""Rows per second into a Delta table by a table sink, beside Spark's own writer and beside ``write_deltalake``.

All of them make the same batches by the same function.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from penstock import Context, Finished, Job, OperatorCoordinator, Progress, Subtask
from penstock.broker import JarsUnavailable
from penstock.errors import PenstockError
from penstock.schemas.settings import CheckpointSettings
from penstock.spark_integration import local_session
from penstock.tables import Delta

from .figures import Figure, Setting
from .service import coordinated, run_subtask
from .spark_delta import SETTINGS, VERSION, delta_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES, ROWS = 400, 10_000
COMMITS = 4
"""Of ``write_deltalake``: about as many as the job has checkpoints."""
INTERVAL_S = 2.0
SLOTS = 4
"""Of Spark."""
DEADLINE_S = 240.0
SCHEMA = pa.schema([("n", pa.int64()), ("carrier", pa.string()), ("delay", pa.float64())])
CARRIERS = ("AA", "B6", "DL", "UA")


def batch(number: int) -> pa.RecordBatch:
    numbers = range(number * ROWS, (number + 1) * ROWS)
    columns = [list(numbers), [CARRIERS[n % 4] for n in numbers], [n % 61 / 7 for n in numbers]]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def numbered(record: bytes) -> pa.RecordBatch:
    return batch(int(record))


class Began(OperatorCoordinator):
    """Learns when the first batch was emitted. All processes share the machine's clock."""

    def __init__(self) -> None:
        self.at = float("inf")

    def handle_event_from_operator(self, subtask: int, attempt: int, event: float, context: Any) -> None:
        self.at = min(self.at, event)


class Numbers(Subtask):
    """Emits its share of the batches' numbers; the sink makes the rows."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def open(self, context: Context) -> None:
        self.context, self.next = context, context.subtask

    def poll(self) -> Progress | Finished:
        if self.next < self.context.parallelism:
            self.context.send_event_to_coordinator(time.monotonic())
        if self.next >= self.batches:
            return Finished()
        self.context.emit(b"%d" % self.next)
        self.next += self.context.parallelism
        return Progress()

    def snapshot_state(self, checkpoint_id: int) -> int:
        return self.next

    def restore_state(self, checkpoint_id: int, state: int) -> None:
        self.next = state


def _job(name: str, table: Path, batches: int, parallelism: int, began: Began | None) -> Job:
    job = Job(name, checkpoint=CheckpointSettings(interval=INTERVAL_S, timeout=DEADLINE_S))
    numbers = job.operator(
        "numbers", subtask=partial(Numbers, batches), coordinator=None if began is None else lambda: began,
        parallelism=parallelism, codec="json", state_codec="json",
    )  # fmt: skip
    sink = Delta(table, SCHEMA).sink(numbered)
    if began is None:
        sink["coordinator"] = None
    job.operator("out", **sink, parallelism=parallelism, inputs=[numbers.rebalance()])
    return job


def _require_all(table: Path, batches: int) -> None:
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["n"])
    if rows.num_rows != batches * ROWS or len(rows["n"].unique()) != batches * ROWS:
        raise PenstockError(f"the table has {rows.num_rows} rows, not each of {batches * ROWS} once")


def by_a_job(bootstrap: str, folder: Path, batches: int, parallelism: int) -> float:
    """From the first batch emitted to the job's end: the last commit is in the table."""
    began, name, table = Began(), f"bench-{uuid.uuid4().hex[:12]}", folder / uuid.uuid4().hex
    job = _job(name, table, batches, parallelism, began)
    bare = _job(name, table, batches, parallelism, None)
    targets = [partial(run_subtask, bare, subtask, bootstrap) for subtask in job.settings.subtasks()]
    with coordinated(job, bootstrap, targets) as service:
        end = service.wait(DEADLINE_S)
        took = time.monotonic() - began.at
    if end is None:
        raise PenstockError(f"the job has not ended within {DEADLINE_S:g} s: {service.status()}")
    _require_all(table, batches)
    return batches * ROWS / took


def by_deltalake(folder: Path, batches: int) -> float:
    """One process that makes the batches and appends them in a few commits."""
    table, began = folder / uuid.uuid4().hex, time.monotonic()
    for commit in range(COMMITS):
        own = (batch(number) for number in range(commit, batches, COMMITS))
        write_deltalake(str(table), pa.RecordBatchReader.from_batches(SCHEMA, own), mode="append")
    took = time.monotonic() - began
    _require_all(table, batches)
    return batches * ROWS / took


@contextmanager
def session(setting: Setting) -> Iterator[SparkSession | None]:
    """Spark with its Delta writer; None, which is said, where that cannot be had."""
    try:
        jars = ",".join(map(str, delta_jars()))
    except (JarsUnavailable, OSError) as error:
        setting.say(f"without Spark's Delta writer: {error}")
        yield None
        return
    spark = local_session(SLOTS, "penstock-benchmarks", **SETTINGS, **{"spark.jars": jars})
    try:
        yield spark
    finally:
        spark.stop()


def by_spark(spark: SparkSession, folder: Path, batches: int) -> float:
    """``df.write.format("delta")`` into a new table, its rows made in Python tasks: one commit."""
    table = folder / uuid.uuid4().hex

    def rows(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for some in numbers:
            for number in some.column(0).to_pylist():
                yield batch(number)

    made = spark.range(0, batches, 1, SLOTS).mapInArrow(rows, "n long, carrier string, delay double")
    began = time.monotonic()
    made.write.format("delta").save(str(table))
    took = time.monotonic() - began
    _require_all(table, batches)
    return batches * ROWS / took


def figures(setting: Setting) -> Iterator[Figure]:
    batches = setting.count(BATCHES, 8)
    setting.say(f"{batches * ROWS:,} rows")
    ours: dict[int, list[float]] = {parallelism: [] for parallelism in setting.parallelisms}
    direct: list[float] = []
    sparks: list[float] = []
    with tempfile.TemporaryDirectory() as name, session(setting) as spark:
        if spark is not None:
            by_spark(spark, Path(name), batches)  # warms up
        for _ in range(setting.repeats):
            direct.append(by_deltalake(Path(name), batches))
            if spark is not None:
                sparks.append(by_spark(spark, Path(name), batches))
            for parallelism in setting.parallelisms:
                ours[parallelism].append(by_a_job(setting.bootstrap, Path(name), batches, parallelism))
    for parallelism, runs in ours.items():
        title = f"Delta table sink, {parallelism} writing"
        what = f"rows made and written, first batch to the job's end, a checkpoint every {INTERVAL_S:g} s"
        if sparks:
            beside = f'Spark\'s df.write.format("delta") ({VERSION}): the same batches in {SLOTS} tasks, one commit'
            yield Figure.of_runs(title, what, runs, "rows/s", sparks, beside)
        beside = f"write_deltalake: the same batches in one process, {COMMITS} commits"
        yield Figure.of_runs(title, what, runs, "rows/s", direct, beside)
