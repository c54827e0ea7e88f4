"""Small batches come with the plan, under a real Spark: rows, tasks, and the batches that are read by tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock import Job
from penstock.broker import EmbeddedBroker
from penstock.spark_integration import stream
from penstock.spark_integration.streaming.options import SourceOptions
from penstock.spark_integration.streaming.source import PenstockSource, StreamReader

from .groups import OPERATOR, Groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SMALL, LARGE = 12, 200_000
"""Batches of a few bytes; bytes of the large one behind them."""
FAILING, LAST = 5, 2 * SMALL
"""The batch whose function raises once; the last one."""
DEADLINE_S = 450.0


def event(number: int) -> bytes:
    return b"x" * LARGE if number == SMALL else b"%d" % number


def source_that_notes(folder: Path) -> type[PenstockSource]:
    """The source, which leaves a file for each checkpoint whose batch a Python task reads; pickled by value."""

    class NotingReader(StreamReader):
        def read(self, partition: Any) -> Iterator[Any]:
            folder.joinpath(str(partition.checkpoint_id)).touch()
            return super().read(partition)

    class NotingSource(PenstockSource):
        @classmethod
        def name(cls) -> str:
            return "noting"

        def streamReader(self, schema: StructType) -> StreamReader:
            return NotingReader(SourceOptions.parse(self._options))

    return NotingSource


def test_small_batches_of_one_subtask_need_no_python_task_and_others_are_read_by_theirs(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    job = Job(f"handed-{job_name}")
    groups = [[[event(n)]] for n in range(LAST + 1)]
    job.operator(OPERATOR, coordinator=partial(Groups, groups, 1), parallelism=1, state_codec="json")
    seen: list[tuple[int, list[bytes]]] = []
    batches: dict[str, int] = {}
    noted = tmp_path / "noted"
    noted.mkdir()

    def write(rows: DataFrame, batch_id: int) -> None:
        for _ in range(2):  # whatever is done with a batch's rows, they are the same
            found = rows.collect()
            seen.append((batch_id, [bytes(row["event"]) for row in found]))
            batches.update((str(row["checkpoint_id"]), batch_id) for row in found)
        if batch_id == FAILING and len(seen) == 2 * (FAILING + 1):
            raise LookupError("fails on purpose")

    def started() -> StreamingQuery:
        frame = spark.readStream.format("noting").options(**options).load()
        return frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "query")).start()

    with stream(spark, job, broker=kafka_broker.bootstrap) as handle:
        spark.dataSource.register(source_that_notes(noted))
        options = handle._parts.source.to_options()
        with pytest.raises(StreamingQueryException, match="fails on purpose"):
            started().awaitTermination(int(DEADLINE_S))
        query = started()
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < 2 * (LAST + 2):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{len(seen)} batches: {query.status}"
            time.sleep(0.05)
        query.stop()
    ran = [*range(FAILING + 1), *range(FAILING, LAST + 1)]
    assert seen == [(n, [event(n)]) for n in ran for _ in range(2)]
    read_by_tasks = {batches[path.name] for path in noted.iterdir()}
    assert {0, FAILING, SMALL} <= read_by_tasks  # the first of each query, and the large one
    assert len(read_by_tasks) < SMALL  # a loaded machine may have missed some
