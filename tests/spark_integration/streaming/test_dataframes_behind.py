"""Ordinary DataFrame code behind the source: a join, windows behind a watermark, state of each key.

Each query fails once in the middle of its life and goes on from its Spark checkpoint.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from penstock import Job
from penstock.broker import EmbeddedBroker
from penstock.spark_integration import QueryHandle, stream

from .groups import OPERATOR, PARALLELISM, Groups
from .test_queries import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

DEADLINE_S = 150
MINUTE = 60
FLIGHTS = [
    [[("AA", 0, 5), ("DL", 1, 7)], [("AA", 2, 11), ("ZZ", 3, 1)]],
    [[("DL", 4, 2), ("AA", 11, 3)], [("DL", 12, 4)]],
    [[("AA", 25, 6)], [("AA", 27, 1000), ("DL", 26, 8)]],
]
"""Carrier, minute and delay: by batch and subtask."""
NAMES = {"AA": "American", "DL": "Delta"}
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""transformWithState wants it."""


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    spark.conf.unset("spark.sql.shuffle.partitions")
    spark.conf.unset(STATE_STORE)


@pytest.fixture
def handle(session: SparkSession, job_name: str, kafka_broker: EmbeddedBroker) -> Iterator[QueryHandle]:
    groups = [[[json.dumps(flight).encode() for flight in sent] for sent in group] for group in FLIGHTS]
    job = Job(f"behind-{job_name}")
    job.operator(OPERATOR, coordinator=partial(Groups, groups), parallelism=PARALLELISM, state_codec="json")
    with stream(session, job, broker=kafka_broker.bootstrap) as handle:
        yield handle


def flights(handle: QueryHandle) -> DataFrame:
    parsed = F.from_json(F.col("event").cast("string"), "array<string>")
    return handle.read_stream(maxWait=0.1).select(
        parsed[0].alias("carrier"),
        F.timestamp_seconds(parsed[1].cast("int") * MINUTE).alias("at"),
        parsed[2].cast("int").alias("delay"),
    )


class Output:
    """What each batch wrote, each time that it ran. The first one behind batch 0 that has rows fails, behind them."""

    def __init__(self) -> None:
        self.runs: dict[int, list[list[tuple[Any, ...]]]] = defaultdict(list)
        self.failed_in = -1

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        written = sorted(map(tuple, rows.collect()))
        self.runs[batch_id].append(written)
        if batch_id and written and self.failed_in < 0:
            self.failed_in = batch_id
            raise LookupError("fails on purpose")

    def batches(self) -> list[list[tuple[Any, ...]]]:
        """The rows of each batch that has any."""
        return [runs[-1] for _, runs in sorted(self.runs.items()) if runs[-1]]

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for batch in self.batches() for row in batch]


def run_through(frame: DataFrame, folder: Path, mode: str, rows: int) -> Output:
    """A query until it fails, and another one from its checkpoint until there are so many rows."""
    write = Output()
    writer = frame.writeStream.foreachBatch(write).outputMode(mode).option("checkpointLocation", str(folder))
    with pytest.raises(StreamingQueryException, match="fails on purpose"):
        writer.start().awaitTermination(DEADLINE_S)
    query = writer.start()
    wait_for(lambda: len(write.rows()) >= rows, query, f"{rows} rows")
    query.stop()
    assert {batch_id for batch_id, runs in write.runs.items() if len(runs) > 1} == {write.failed_in}
    first, second = write.runs[write.failed_in]
    assert first == second
    return write


def test_a_join_with_a_table_and_windows_behind_a_watermark_go_on_from_the_checkpoint(
    session: SparkSession, handle: QueryHandle, tmp_path: Path
) -> None:
    names = session.createDataFrame(list(NAMES.items()), "carrier string, name string")
    windows = (
        flights(handle)
        .join(names, "carrier")
        .withWatermark("at", "1 minute")
        .groupBy(F.window("at", "10 minutes"), "name")
        .agg(F.count("*"), F.sum("delay"))
        .select((F.unix_timestamp("window.start") / MINUTE).cast("int"), "name", "count(1)", "sum(delay)")
    )
    write = run_through(windows, tmp_path, "append", 4)
    assert write.rows() == [
        (0, "American", 2, 16), (0, "Delta", 2, 9), (10, "American", 1, 3), (10, "Delta", 1, 4),
    ]  # fmt: skip


EXPECTED_TOTALS = [
    [("AA", 2, 16), ("DL", 1, 7), ("ZZ", 1, 1)],
    [("AA", 3, 19), ("DL", 3, 13)],
    [("AA", 5, 1025), ("DL", 4, 21)],
]
"""Of each carrier so far: how many, and the sum of their delays."""


def test_a_shuffle_and_the_state_of_each_key_go_on_from_the_checkpoint(handle: QueryHandle, tmp_path: Path) -> None:
    totals = flights(handle).repartition(2, "carrier").groupBy("carrier").applyInPandasWithState(
        _totals, "carrier string, count long, delays long", "count long, delays long", "update",
        GroupStateTimeout.NoTimeout,
    )  # fmt: skip
    write = run_through(totals, tmp_path, "update", 7)
    assert write.batches() == EXPECTED_TOTALS


def _totals(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    count, delays = state.get if state.exists else (0, 0)
    for frame in frames:
        count, delays = count + len(frame), delays + int(frame["delay"].sum())
    state.update((count, delays))
    yield pd.DataFrame({"carrier": [key[0]], "count": [count], "delays": [delays]})


def test_transform_with_state_goes_on_from_the_checkpoint(
    session: SparkSession, handle: QueryHandle, tmp_path: Path
) -> None:
    pytest.importorskip("google.protobuf", reason="transformWithState needs protobuf")
    session.conf.set(STATE_STORE, ROCKS_DB)
    totals = flights(handle).groupBy("carrier").transformWithState(
        Totals(), "carrier string, count long, delays long", "update", "none"
    )  # fmt: skip
    write = run_through(totals, tmp_path, "update", 7)
    assert write.batches() == EXPECTED_TOTALS


class Totals(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("totals", "count long, delays long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count, delays = self.state.get() if self.state.exists() else (0, 0)
        for row in rows:
            count, delays = count + 1, delays + row["delay"]
        self.state.update((count, delays))
        yield Row(carrier=key[0], count=count, delays=delays)

    def close(self) -> None:
        pass
