"""Stateful queries that are killed around ``write_files``: each goes on at its first restart, with exact rows.

A run of a batch ends here as a killed one does: nothing of it is cleaned up, and Spark commits nothing of the batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from penstock import Job
from penstock.broker import EmbeddedBroker
from penstock.spark_integration import Batch, exactly_once, stream
from penstock.spark_integration.streaming.batch_files import BatchFolder

from .groups import OPERATOR, PARALLELISM, Groups
from .test_queries import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

BEFORE_FILES, STAGED, DECIDED, VISIBLE, RETURNED = POINTS = (
    "before the files", "the files are staged", "the manifest stands", "they are visible", "the function has returned",
)  # fmt: skip
"""Where a run ends: batch 1 at the first point, batch 2 at the second, and so on."""
GROUPS = len(POINTS) + 2
DEADLINE_S = 150


def events_of(group: int) -> list[tuple[str, int]]:
    """Side and key. Each key comes on the left, a group later on the right, and a group after that again."""
    return [("left", group), ("right", group - 1), ("left", group - 2)]


Rows = list[tuple[int, ...]]


def joined(rows: DataFrame) -> DataFrame:
    left = rows.where("side = 'left'").select(F.col("key").alias("left"), F.col("group").alias("left_group"))
    right = rows.where("side = 'right'").select(F.col("key").alias("right"), F.col("group").alias("right_group"))
    return left.join(right, F.expr("left = right")).select("left", "left_group", "right_group")


def expected_joined(group: int) -> Rows:
    """A right key meets the same key on the left one group before it and one group after it."""
    return [(group - 1, group - 1, group), (group - 2, group, group - 1)] if group else []


def deduplicated(rows: DataFrame) -> DataFrame:
    return rows.select("side", "key").dropDuplicates().select(F.length("side"), "key")


def expected_deduplicated(group: int) -> Rows:
    earlier = {event for g in range(group) for event in events_of(g)}
    return [(len(side), key) for side, key in events_of(group) if (side, key) not in earlier]


def aggregated(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*")).select("key", F.col("count(1)").cast("int"))


def expected_aggregated(group: int) -> Rows:
    so_far = Counter(key for g in range(group + 1) for _, key in events_of(g))
    return [(key, so_far[key]) for key in {key for _, key in events_of(group)}]


class Killed(Exception):
    """A run ends here."""


class Kills:
    """Ends the first run of each batch behind batch 0 at its point."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due = list(POINTS)
        self.batch_id = 0
        for name, point in (("_decide", STAGED), ("_made_visible", DECIDED)):
            monkeypatch.setattr(BatchFolder, name, self._reached(point, getattr(BatchFolder, name)))

    def _reached(self, point: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self.strike(point)
            return real(*args)

        return wrapped

    def strike(self, point: str) -> None:
        if self.due[:1] == [point] and self.batch_id == 1 + POINTS.index(point):
            self.due.pop(0)
            raise Killed(f"ended when {point}")


@pytest.mark.parametrize(
    ("made", "expected", "mode"),
    [
        pytest.param(joined, expected_joined, "append", id="join"),
        pytest.param(deduplicated, expected_deduplicated, "append", id="deduplication"),
        pytest.param(aggregated, expected_aggregated, "update", id="aggregation"),
    ],
)
@pytest.mark.timeout(900)
def test_a_stateful_query_goes_on_at_the_first_restart_wherever_it_was_killed(
    spark: SparkSession,
    kafka_broker: EmbeddedBroker,
    tmp_path: Path,
    job_name: str,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[DataFrame], DataFrame],
    expected: Callable[[int], Rows],
    mode: str,
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    kills = Kills(monkeypatch)

    def write(rows: DataFrame, batch: Batch) -> None:
        kills.batch_id = batch.batch_id
        kills.strike(BEFORE_FILES)
        batch.write_files(rows.withColumn("batch_id", F.lit(batch.batch_id)), tmp_path / "out")
        kills.strike(VISIBLE)

    function = exactly_once(write)

    def for_each_batch(rows: DataFrame, batch_id: int) -> None:
        function(rows, batch_id)
        kills.strike(RETURNED)

    groups = [[[json.dumps([g, *e]).encode() for e in events_of(g)], []] for g in range(GROUPS)]
    job = Job(f"stateful-{job_name}")
    job.operator(OPERATOR, coordinator=partial(Groups, groups), parallelism=PARALLELISM, state_codec="json")
    with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        parsed = F.from_json(F.col("event").cast("string"), "array<string>")
        rows = handle.read_stream(maxWait=0.1).select(
            parsed[0].cast("int").alias("group"), parsed[1].alias("side"), parsed[2].cast("int").alias("key")
        )
        frame = made(rows).writeStream.foreachBatch(for_each_batch).outputMode(mode)
        frame = frame.option("checkpointLocation", str(tmp_path / "checkpoint"))
        for point in POINTS:
            with pytest.raises(StreamingQueryException, match=f"ended when {point}"):
                frame.start().awaitTermination(DEADLINE_S)
        query = frame.start()
        last_commit = tmp_path / "checkpoint" / "commits" / str(GROUPS - 1)
        wait_for(last_commit.exists, query, "every batch committed")
        query.stop()
    files = ds.dataset(tmp_path / "out", format="parquet").to_table().to_pylist()
    written: dict[int, Rows] = {}
    for row in files:
        *values, batch_id = row.values()
        written.setdefault(batch_id, []).append(tuple(values))
    expected_rows = {group: sorted(expected(group)) for group in range(GROUPS)}
    assert {group: sorted(written.get(group, [])) for group in range(GROUPS)} == expected_rows
    assert written.keys() <= expected_rows.keys()
