"""The source, with points in the planner's process and in tasks, where a driver under test is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from penstock.spark_integration.streaming.options import SourceOptions
from penstock.spark_integration.streaming.source import PenstockSource, StreamReader

from . import struck
from .numbered_job import PARALLELISM
from .struck import COLUMNS, await_, ordered, orders, record, strike


def plain(batch: pa.RecordBatch) -> list[list[Any]]:
    columns = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in COLUMNS]
    columns[2] = [bytes(event).decode() for event in columns[2]]
    return [list(row) for row in zip(*columns, strict=True)]


class StruckSource(PenstockSource):
    def streamReader(self, schema: StructType) -> StreamReader:
        super().streamReader(schema)
        return StruckReader(SourceOptions.parse(self._options))


class StruckReader(StreamReader):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        batch = orders().committed() + 1
        strike(struck.BEFORE_PLANNING, batch)
        if any(ordered(point, batch - 1) for point in (struck.COMMITTED, struck.TOLD)):
            await_(struck.driver_gone, "the listener kills the driver")  # until then nobody plans, and so says the same
        end = super().latestOffset(start, limit)
        if end != start:
            for point in (struck.PLANNED, struck.STORED):
                self._record_planned(point, batch, start, end)
            strike(struck.PLANNED, batch)
        return end

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        strike(struck.STORED, orders().stored())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        if start != end and orders().stored() > orders().committed():
            self._record_planned(struck.NOT_BEGUN, orders().stored(), start, end)
            strike(struck.NOT_BEGUN, orders().stored())
        return super().partitions(start, end)

    def _record_planned(self, point: str, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        """No task will have read anything by then: what the batch's offsets name is read here."""
        if ordered(point, batch):
            read = super().read
            parts = super().partitions(start, end)
            record(batch, "planner", [row for part in parts for rows in read(part) for row in plain(rows)])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        rows = []
        for batch in super().read(partition):
            if orders().record:
                rows += plain(batch)
            yield batch
        if orders().record:
            _read_in_a_task(partition.subtask, rows)


def _read_in_a_task(subtask: int, rows: list[list[Any]]) -> None:
    context = TaskContext.get()
    assert context is not None
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    record(batch, f"task.{subtask}.{context.taskAttemptId()}", rows)
    if subtask == 0 and ordered(struck.WORKER, batch) and context.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if subtask == 0 and ordered(struck.IN_A_TASK, batch):
        folder = struck.recording(batch, "").parent
        for other in range(PARALLELISM):
            await_(lambda s=other: list(folder.glob(f"{batch}.task.{s}.*")), "the other tasks have read")  # type: ignore[misc]
        strike(struck.IN_A_TASK, batch)
