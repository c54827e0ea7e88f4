"""Files read on a real Spark over a real Kafka, while a Python worker gets SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.broker import EmbeddedBroker
from penstock.sinks import FileSink
from penstock.sources import FileReader, Files
from penstock.sources.split_reader import TURN_S
from penstock.spark_integration import local_session, run

from .driving import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

FILES, ROWS = 24, 500


class Copy(FileReader):
    """Writes each row with a file sink, and says in which process; slow until ``go`` is there."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def open(self) -> None:
        self.sink = FileSink(self.folder / "out")
        self.sink.open(self.context)
        (self.folder / "pids" / str(os.getpid())).touch()

    def handle(self, record: Any) -> None:
        self.sink.write(record)
        if not (self.folder / "go").exists():
            threading.Event().wait(TURN_S)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.sink.snapshot_state(checkpoint_id).decode()

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.sink.restore_state(checkpoint_id, state)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.sink.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        self.sink.close()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session(3)
    yield session
    session.stop()


def read_back(folder: Path) -> list[int]:
    """All rows that are visible, by a reader that knows nothing of us."""
    return sorted(
        json.loads(line)["n"] for path in (folder / "out").glob("*.jsonl") for line in path.read_text().splitlines()
    )


def test_each_row_is_read_once_although_a_worker_is_killed_in_the_middle_of_a_file(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    for name in ("in", "out", "pids"):
        (tmp_path / name).mkdir()
    for number in range(FILES):
        rows = [{"n": number * ROWS + n} for n in range(ROWS)]
        if number % 2:
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{number}.parquet", row_group_size=100)
        else:
            (tmp_path / "in" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = penstock.Job("sources-on-spark", checkpoint=penstock.CheckpointSettings(interval=0.2))
    files = Files(f"{tmp_path}/in")
    job.operator("copy", **files.read_by(partial(Copy, tmp_path)), parallelism=3)
    handle = run(spark, job, broker=kafka_broker.bootstrap)
    wait_until(lambda: len(read_back(tmp_path)) > 0, "rows of a completed checkpoint")
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: len(list((tmp_path / "pids").iterdir())) > len(pids), "the successor of the killed worker")
    (tmp_path / "go").touch()
    assert handle.wait(120).ending.value == "finished"
    assert read_back(tmp_path) == list(range(FILES * ROWS))
