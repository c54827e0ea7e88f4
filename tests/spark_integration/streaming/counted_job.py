"""A job whose every event can be counted: in files behind the query, and in the coordinator that gets them back.

Run as a program it is the driver of such a query, with its coordinator, and may kill itself on the way.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from penstock import CheckpointResult, EventContext, Gateway, Job, OperatorCoordinator, Subtask
from penstock.spark_integration import Batch, exactly_once, local_session, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPERATOR = "reader"
PARALLELISM = 2
EVENTS = 1_000
PER_BATCH = 200
DEADLINE_S = 450.0


class Counter(OperatorCoordinator):
    """Sends the numbers once, some for each batch, and keeps what comes back with the checkpoint it belongs to."""

    newest: Counter

    def __init__(self) -> None:
        self.sent = 0
        self.gateways: dict[int, Gateway] = {}
        self.received: list[list[int]] = []
        Counter.newest = self

    def send(self) -> None:
        for number in range(self.sent, min(self.sent + PER_BATCH, EVENTS)):
            self.gateways[number % PARALLELISM].send_event({"number": number})
            self.sent = number + 1

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self.gateways[subtask] = gateway
        if len(self.gateways) == PARALLELISM:
            self.send()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if len(self.gateways) == PARALLELISM:
            self.send()

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.gateways.pop(subtask, None)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        self.received.append([event["number"], subtask, context.belongs_to])

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete({"sent": self.sent, "received": self.received})

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any | None) -> None:
        self.gateways.clear()
        self.sent, self.received = (state["sent"], list(state["received"])) if state else (0, [])


def job_of(name: str) -> Job:
    job = Job(name)
    job.operator(
        OPERATOR, coordinator=Counter, subtask=Subtask, parallelism=PARALLELISM, codec="json", state_codec="json"
    )
    return job


def numbers(rows: DataFrame) -> DataFrame:
    return rows.select(
        F.get_json_object(F.col("event").cast("string"), "$.number").cast("int").alias("number"),
        "subtask",
        "checkpoint_id",
    )


def writer(out: Path, strike: Callable[[str, Batch], None] = lambda point, batch: None) -> Any:
    """The function under test: files, then events back; ``strike`` is told where it is."""

    def write(rows: DataFrame, batch: Batch) -> None:
        strike("before the files", batch)
        batch.write_files(numbers(rows).withColumn("batch_id", F.lit(batch.batch_id)), out)
        strike("behind the files", batch)
        batch.send_to_coordinator(rows.select("event", "subtask"))
        strike("behind the events", batch)

    return exactly_once(write)


def wait_for(condition: Callable[[], bool], query: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if not query.isActive:
            raise AssertionError(f"{what}: the query has ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}; {query.status}")
        time.sleep(0.05)


def newest(log: Path) -> int:
    """The newest batch that is in this log of Spark's; -1 where there is none."""
    return max((int(path.name) for path in log.glob("*") if path.name.isdigit()), default=-1)


def main(name: str, broker: str, folder: str, point: str, batch_id: str) -> None:
    """Runs the query until every number has come back, or to ``point`` in that batch: then SIGKILL."""

    def strike(here: str, batch: Batch) -> None:
        if (here, str(batch.batch_id)) == (point, batch_id):
            os.kill(os.getpid(), signal.SIGKILL)

    spark = local_session(2)
    with stream(spark, job_of(name), broker=broker) as handle:
        rows = handle.read_stream(maxWait=0.2)
        started = rows.writeStream.foreachBatch(writer(Path(folder, "out"), strike))
        query = started.option("checkpointLocation", f"{folder}/checkpoint").start()
        wait_for(lambda: len(Counter.newest.received) >= EVENTS, query, "every number back")
        logs = [Path(folder, "checkpoint", log) for log in ("commits", "offsets")]
        wait_for(lambda: newest(logs[0]) == newest(logs[1]), query, "every batch committed")
        print("received", sorted(number for number, _, _ in Counter.newest.received) == list(range(EVENTS)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
