"""Spark reads a sink's folder while hidden files lie in it: its own Parquet and JSON readers, which are not Arrow's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.sinks import FileSink, Format, JsonLines, Parquet
from penstock.spark_integration import local_session

from .driving import hidden, opened, snapshot, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("carrier", pa.string(), nullable=False), pa.field("delay", pa.int64())])


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session(2)
    yield session
    session.stop()


@pytest.mark.parametrize("format", [Parquet(SCHEMA), JsonLines()], ids=repr)
def test_spark_sees_what_has_completed_and_nothing_else(spark: SparkSession, tmp_path: Path, format: Format) -> None:
    sink = opened(tmp_path, sink=FileSink(tmp_path, format))
    for n in (1, 2):
        write(sink, {"carrier": "ÜA", "delay": n}, {"carrier": "B6", "delay": None})
        snapshot(sink, n)
        sink.notify_checkpoint_complete(n)
    write(sink, {"carrier": "not yet", "delay": 3})
    snapshot(sink, 3)
    write(sink, {"carrier": "not even closed", "delay": 4})
    (tmp_path / ".interrupted.probe").touch()
    assert len(hidden(tmp_path)) == 3
    name = "parquet" if isinstance(format, Parquet) else "json"
    rows = spark.read.format(name).load(str(tmp_path)).select("carrier", "delay").collect()
    assert sorted(map(tuple, rows), key=str) == [("B6", None), ("B6", None), ("ÜA", 1), ("ÜA", 2)]
