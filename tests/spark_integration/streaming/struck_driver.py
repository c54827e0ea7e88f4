"""A driver under test: runs the query of :mod:`.numbered_job` until it is killed, or until everything has come back."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from penstock.spark_integration import Batch, QueryHandle, exactly_once, local_session, stream
from penstock.spark_integration.streaming import query_handle as handle_module
from penstock.spark_integration.streaming.batch_events import BatchOutbox
from penstock.spark_integration.streaming.batch_files import BatchFolder
from penstock.spark_integration.streaming.query_listener import BatchListener
from tests.failure_matrix.zygote import die_with

from . import struck
from .numbered_job import OPERATOR, PARALLELISM, job_of
from .struck import await_, kill_driver, orders, record, strike
from .struck_source import StruckSource, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTINGS = {
    "spark.python.worker.reuse": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # each batch would compile code that runs once
    "spark.sql.streaming.stateStore.maintenanceInterval": "600s",
}
_live: list[QueryHandle] = []


def write(rows: DataFrame, batch: Batch) -> None:
    """The function under test: files, then events back."""
    batch_id = batch.batch_id
    if orders().record:
        shown = rows.select(*struck.COLUMNS)
        record(batch_id, "function", [r for read in shown.toArrow().to_batches() for r in plain(read)])
    strike(struck.BEFORE_FUNCTION, batch_id)
    if struck.ordered(struck.WHILE_IT_RUNS, batch_id):
        _kill_coordinator()
    number = F.get_json_object(F.col("event").cast("string"), "$.number").cast("long").alias("number")
    checkpoint = F.col("checkpoint_id").alias("checkpoint")
    if not orders().record:
        rows = rows.persist()  # quick: read once for both
    files = rows.select(*struck.COLUMNS, number, F.lit(batch_id).alias("batch_id"))
    batch.write_files(files, Path(orders().folder, "out"))
    strike(struck.BEHIND_FILES, batch_id)
    batch.send_to_coordinator(rows.select("subtask", F.to_json(F.struct(number, checkpoint)).alias("event")))
    if not orders().record:
        rows.unpersist()


def _kill_coordinator() -> None:
    """Returns when another one is at work."""
    pid = int(orders().coordinator_pid.read_text())
    os.kill(pid, signal.SIGKILL)
    await_(lambda: int(orders().coordinator_pid.read_text() or pid) != pid, "another coordinator")


class StruckListener(BatchListener):
    def onQueryProgress(self, event: Any) -> None:
        batch = event.progress.batchId if event.progress.numInputRows else -1
        strike(struck.COMMITTED, batch)
        super().onQueryProgress(event)
        if struck.ordered(struck.TOLD, batch):
            end = json.loads(event.progress.sources[0].endOffset)["checkpoint"]
            await_(lambda: (said := _live[0].status()) and said.last_completed >= end, "the coordinator completes it")
            strike(struck.TOLD, batch)


class StruckFolder(BatchFolder):
    def _decide(self, staged: Path) -> None:
        strike(struck.STAGED, self._token.batch_id)
        super()._decide(staged)
        strike(struck.DECIDED, self._token.batch_id)


class StruckOutbox(BatchOutbox):
    def finish(self) -> None:
        strike(struck.NOT_NAMED, _running_batch[0])
        super().finish()


_running_batch = [-1]


def install() -> None:
    from penstock.spark_integration.streaming import foreach_batch

    handle_module.BatchListener = StruckListener  # type: ignore[attr-defined]
    foreach_batch.BatchFolder = StruckFolder  # type: ignore[attr-defined]
    foreach_batch.BatchOutbox = StruckOutbox  # type: ignore[attr-defined]


def for_each_batch(rows: DataFrame, batch_id: int) -> None:
    _running_batch[0] = batch_id
    exactly_once(write)(rows, batch_id)
    strike(struck.DONE, batch_id)
    strike(struck.WORKER, batch_id)
    if orders().point in struck.OF_THE_COORDINATOR and batch_id == orders().batch:
        assert not orders().armed.exists(), f"the coordinator has not been killed: {orders().point}"
        kill_driver()


def main() -> None:
    die_with(os.getppid())
    os.environ[struck.DRIVER_VARIABLE] = str(os.getpid())
    spark = local_session(PARALLELISM, **SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    await_(Path(os.environ[struck.ORDERS_VARIABLE]).exists, "orders", struck.SPARE_S)
    install()
    told = orders()
    if told.point in struck.OF_THE_COORDINATOR and told.point != struck.WHILE_IT_RUNS:
        told.armed.write_text(told.point)
    coordinator: Any = told.coordinator
    with stream(spark, job_of(told.name), broker=told.broker, coordinator=coordinator) as handle:
        _live.append(handle)
        spark.dataSource.register(StruckSource)
        started = handle.read_stream(maxWait=0.2).writeStream.foreachBatch(for_each_batch)
        query = started.option("checkpointLocation", f"{told.folder}/checkpoint").start()

        def running(condition: bool) -> bool:
            if not query.isActive:
                raise AssertionError(f"the query has ended: {query.exception()}")
            return condition

        while not told.over():
            query.awaitTermination(1)
            running(True)
            assert not told.missed(), f"nothing has struck at the point: {told.point}"
        handle.request(OPERATOR, "stop")

        def all_back() -> bool:
            said = handle.request(OPERATOR, "how far")
            return running(bool(said["received"] == said["sent"]))

        await_(all_back, "everything back")
        await_(lambda: running(told.committed() == told.stored()), "every batch committed")
        print(json.dumps(handle.request(OPERATOR, "how far")), flush=True)
    spark.stop()


if __name__ == "__main__":
    from tests.spark_integration.streaming.struck_driver import main as run

    run()  # by its name: what is sent to workers is then imported there, as the same module
