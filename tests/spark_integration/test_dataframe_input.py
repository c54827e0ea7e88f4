"""A DataFrame's rows in long-running subtasks: real tasks, a real broker, real deaths; not a row lost or doubled.

The rows of each partition are 0, 1, 2, ... of a thousand, so any that is missing or comes twice is noticed where it
happens. A gate lets the second half through once a test says so: what has to happen in the middle, does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from penstock import CheckpointSettings, Context, Finished, Job, OperatorCoordinator, Subtask
from penstock.broker import EmbeddedBroker
from penstock.coordinator.runtime import CoordinatorRuntime
from penstock.coordinator.service import CoordinatorService
from penstock.schemas.errors import JobFailed
from penstock.sinks import FileSink, Parquet
from penstock.spark_integration import DataFrameInput, JobHandle, read_results, run, spread
from penstock.transport.kafka import KafkaTransport

from .jobs import gone, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PER_PARTITION = 1000
HALF = PER_PARTITION // 2
NEARLY = HALF - 200
"""What has certainly arrived while the gate is shut: Spark writes to its workers 64 KiB at a time."""
SUBTASKS = 2
DEADLINE_S = 360.0


@pytest.fixture(autouse=True)
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows leave Spark as soon as there are fifty."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.unset("spark.sql.adaptive.enabled")


def gated(spark: SparkSession, folder: Path, partitions: int = SUBTASKS) -> DataFrame:
    """Partition i is ``id`` from i * 1000 on, four kilobytes each; its second half waits for the file ``go-i``.

    With a file ``changed`` partition 1 has its first two rows the other way round.
    """

    def wait_at_the_gate(batches: Any) -> Any:
        for batch in batches:
            if batch.column("id")[0].as_py() == PER_PARTITION and (folder / "changed").exists():
                batch = batch.take([1, 0, *range(2, batch.num_rows)])
            for begin in range(0, batch.num_rows, 50):
                piece = batch.slice(begin, 50)
                first = piece.column("id")[0].as_py()
                gate = folder / f"go-{first // PER_PARTITION}"
                deadline = time.monotonic() + 3 * DEADLINE_S
                while first % PER_PARTITION >= HALF and not gate.exists():
                    assert time.monotonic() < deadline, f"{gate} stayed shut"
                    time.sleep(0.01)
                yield piece

    rows = spark.range(0, partitions * PER_PARTITION, 1, partitions).selectExpr("id", "repeat('x', 4000) AS text")
    return rows.mapInArrow(wait_at_the_gate, rows.schema)


def open_gates(folder: Path) -> None:
    for i in range(SUBTASKS):
        (folder / f"go-{i}").touch()


class Asker(OperatorCoordinator):
    """Keeps the newest report of each subtask, and tells each, once, something in the middle."""

    def __init__(self) -> None:
        self.reports: dict[str, Any] = {}
        self.asked: list[int] = []
        self.gateways: dict[int, Any] = {}

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        self.gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
        self.reports[str(subtask)] = event
        if event["rows"] >= NEARLY and subtask not in self.asked:
            self.asked.append(subtask)
            self.gateways[subtask].send_event("now")

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        result.complete(self.asked)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.reports, self.asked, self.gateways = {}, list(state or []), {}

    def handle_request(self, request: Any) -> Any:
        return self.reports


class RowCounter(Subtask):
    """Raises where a row is missing or comes twice. Tells how far it is, and at which row each event came."""

    def __init__(self, folder: Path, *, raises_at: int = -1, opens_its_gate: bool = False) -> None:
        self.folder, self.raises_at, self.opens_its_gate = folder, raises_at, opens_its_gate
        self.rows, self.total, self.events, self.restored_at = 0, 0, [], -1
        self.ended = False

    def open(self, context: Context) -> None:
        self.context = context

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.rows, self.total, self.events = state
        self.restored_at = self.rows

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return [self.rows, self.total, self.events]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.report()

    def handle_operator_event(self, event: Any) -> None:
        self.events.append(self.rows)
        if self.opens_its_gate:
            (self.folder / f"go-{self.context.subtask}").touch()

    def process_rows(self, batch: Any) -> None:
        first = self.context.subtask * PER_PARTITION + self.rows
        ids = batch.column("id").to_pylist()
        assert ids == list(range(first, first + batch.num_rows)), f"expected {first} and so on, got {ids}"
        assert batch.num_rows <= 20
        self.rows += batch.num_rows
        self.total += sum(ids)
        if 0 <= self.raises_at <= self.rows and self.context.subtask == 1:
            try:
                (self.folder / "raised").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                raise ValueError("once")
        self.report()

    def end_inputs(self) -> None:
        self.ended = True
        self.report()

    def report(self) -> None:
        task = TaskContext.get()
        assert task is not None
        self.context.send_event_to_coordinator(
            {"rows": self.rows, "total": self.total, "events": self.events, "ended": self.ended, "pid": os.getpid(),
             "task": task.taskAttemptId(), "restored_at": self.restored_at}
        )  # fmt: skip


class EndsAtOnce(Subtask):
    def poll(self) -> Finished:
        return Finished()


def row_job(name: str, subtask: Callable[[], Subtask], **settings: Any) -> Job:
    """An operator without an input stands before the one that has one, so partitions are not subtasks' indexes."""
    checkpoint = CheckpointSettings(interval=0.2)
    job = Job(name, **{"checkpoint": checkpoint, "heartbeat_interval": 0.3, **settings})
    job.operator("plain", subtask=EndsAtOnce, parallelism=1)
    job.operator(
        "reader", subtask=subtask, coordinator=Asker, parallelism=SUBTASKS, codec="json", state_codec="json"
    )  # fmt: skip
    return job


def started(
    spark: SparkSession, broker: EmbeddedBroker, job: Job, df: DataFrame, kept_bytes: int = 1 << 26, **options: Any
) -> JobHandle:
    given = DataFrameInput(df, rows_per_batch=20, kept_bytes=kept_bytes)
    return run(spark, job, broker=broker.bootstrap, inputs={"reader": given}, **options)


def wait_at_gate(handle: JobHandle) -> dict[str, Any]:
    """The reports once every subtask stands before its gate, and a checkpoint contains rows of each."""

    def reached(reports: dict[str, Any]) -> bool:
        return len(reports) == SUBTASKS and all(r["rows"] >= NEARLY for r in reports.values())

    wait_until(lambda: reached(handle.request("reader", "reports")), DEADLINE_S, "everybody stands at the gate")
    status = handle.status()
    assert status is not None
    done = status.checkpoints_completed
    handle.wait_for(lambda status: status.checkpoints_completed >= done + 2, DEADLINE_S)
    return dict(handle.request("reader", "reports"))


class Kept(Asker):
    """Its reports outlive it. Completes no checkpoint while a test holds its state back."""

    def __init__(self, into: dict[str, Any], held: Callable[[], bool]) -> None:
        super().__init__()
        self.into, self.held = into, held

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        if not self.held():
            super().checkpoint_coordinator(checkpoint_id, result)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
        super().handle_event_from_operator(subtask, attempt, event, context)
        self.into[str(subtask)] = event


def with_reports(job: Job, held: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """What subtasks report last, also when the job has ended. No checkpoint completes while ``held`` is true."""
    into: dict[str, Any] = {}
    operator = job.operators["reader"]
    object.__setattr__(operator, "coordinator", partial(Kept, into, held))
    return into


def check_exact(reports: dict[str, Any]) -> None:
    assert {name: (r["ended"], r["rows"]) for name, r in reports.items()} == {
        str(i): (True, PER_PARTITION) for i in range(SUBTASKS)
    }
    for i in range(SUBTASKS):
        assert reports[str(i)]["total"] == sum(range(i * PER_PARTITION, (i + 1) * PER_PARTITION))


def test_rows_are_exact_and_an_event_is_handled_among_them(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    """The second half of the rows comes only when the event has been handled."""
    job = row_job(job_name, partial(RowCounter, tmp_path, opens_its_gate=True))
    reports = with_reports(job)
    handle = started(spark, kafka_broker, job, gated(spark, tmp_path))
    assert handle.wait(DEADLINE_S).ending == "finished"
    check_exact(reports)
    for report in reports.values():
        assert len(report["events"]) == 1 and NEARLY <= report["events"][0] <= HALF


def test_a_killed_worker_goes_on_where_the_checkpoint_stood(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    job = row_job(job_name, partial(RowCounter, tmp_path))
    reports = with_reports(job)
    handle = started(spark, kafka_broker, job, gated(spark, tmp_path))
    before = wait_at_gate(handle)
    os.kill(before["1"]["pid"], signal.SIGKILL)
    handle.wait_for(lambda status: status.failovers_region >= 1, DEADLINE_S)
    open_gates(tmp_path)
    assert handle.wait(DEADLINE_S).ending == "finished"
    check_exact(reports)
    assert reports["1"]["task"] != before["1"]["task"]
    assert reports["1"]["restored_at"] >= NEARLY, "not from the first row"
    assert reports["0"]["task"] == before["0"]["task"] and reports["0"]["restored_at"] == -1


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not-kept"])
def test_a_subtask_that_raises_gets_its_rows_again_in_place_or_by_a_new_task(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path, kept: bool
) -> None:
    """No checkpoint completes between the gate and the error: it would contain the rows before the error."""
    job = row_job(job_name, partial(RowCounter, tmp_path, raises_at=HALF + 300))
    at_gate, held = threading.Event(), threading.Event()

    def hold() -> bool:
        if not at_gate.is_set() or (tmp_path / "raised").exists():
            return False
        held.set()
        return True

    reports = with_reports(job, hold)
    handle = started(spark, kafka_broker, job, gated(spark, tmp_path), kept_bytes=1 << 26 if kept else 0)
    before = wait_at_gate(handle)
    at_gate.set()
    assert held.wait(DEADLINE_S)
    open_gates(tmp_path)
    assert handle.wait(DEADLINE_S).ending == "finished"
    check_exact(reports)
    assert (tmp_path / "raised").exists()
    assert (reports["1"]["task"] == before["1"]["task"]) is kept
    assert reports["1"]["restored_at"] >= NEARLY


def test_another_coordinator_takes_over_in_the_middle(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    job = row_job(job_name, partial(RowCounter, tmp_path))
    reports = with_reports(job)
    transport = KafkaTransport(kafka_broker.bootstrap)

    def coordinator() -> CoordinatorService:
        return CoordinatorService(
            lambda _: CoordinatorRuntime(job.settings, job.coordinators, transport), job.restart
        ).start()

    first = coordinator()
    handle = started(spark, kafka_broker, job, gated(spark, tmp_path), coordinator="elsewhere")
    before = wait_at_gate(handle)
    first.leave()
    first.wait(20)
    second = coordinator()
    try:
        wait_until(lambda: (s := second.status()) is not None and s.checkpoints_completed, DEADLINE_S, "it took over")
        open_gates(tmp_path)
        assert handle.wait(DEADLINE_S).ending == "finished"
    finally:
        second.leave()
        second.wait(20)
        transport.close()
    check_exact(reports)
    for name, report in reports.items():
        assert report["task"] == before[name]["task"], "rolled back in place"
        assert report["restored_at"] >= NEARLY


def test_a_later_run_resumes_at_the_row_where_a_savepoint_stopped_the_first(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    """The first run ends while rows are still to come. Spark does not listen to its workers meanwhile: it is told."""
    job = row_job(job_name, partial(RowCounter, tmp_path))
    reports = with_reports(job)
    handle = started(spark, kafka_broker, job, gated(spark, tmp_path), stop_timeout=2.0)
    before = wait_at_gate(handle)
    assert handle.stop(savepoint=True).ending == "stopped"
    wait_until(lambda: all(gone(report["pid"]) for report in before.values()), 30, "the first run's workers end")
    open_gates(tmp_path)
    handle = started(spark, kafka_broker, job, gated(spark, tmp_path))
    assert handle.wait(DEADLINE_S).ending == "finished"
    check_exact(reports)
    assert all(report["restored_at"] >= NEARLY for report in reports.values())


def test_rows_that_have_changed_since_fail_the_job_and_say_whose_they_are(
    spark: SparkSession, kafka_broker: EmbeddedBroker, job_name: str, tmp_path: Path
) -> None:
    """Spark takes the word of whoever wrote the function for it that it gives the same rows each time."""
    job = row_job(job_name, partial(RowCounter, tmp_path))
    handle = started(spark, kafka_broker, job, gated(spark, tmp_path))
    before = wait_at_gate(handle)
    (tmp_path / "changed").touch()
    os.kill(before["1"]["pid"], signal.SIGKILL)
    with pytest.raises(JobFailed) as failed:
        handle.wait(DEADLINE_S)
    for part in ("reader/1", "'reader' has changed", "subtask 1's partition", "rows 0 to ", "checkpoint()"):
        assert part in str(failed.value)
    assert "Traceback" not in str(failed.value)


class Copying(FileSink):
    """Writes every row, and dies once when all of them are in a checkpoint and its files may not be visible yet."""

    def __init__(self, folder: Path, marker: Path) -> None:
        import pyarrow

        super().__init__(folder, Parquet(pyarrow.schema([("id", pyarrow.int64())])))
        self.marker, self.ended = marker, False

    def process_rows(self, batch: Any) -> None:
        for number in batch.column("id").to_pylist():
            self.write({"id": number})

    def end_inputs(self) -> None:
        self.ended = True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self.ended:
            try:
                self.marker.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        super().notify_checkpoint_complete(checkpoint_id)


@pytest.mark.parametrize("shuffled", [False, True], ids=["as-it-is", "shuffled"])
def test_results_are_files_that_appear_once_and_read_back_as_a_dataframe(
    spark: SparkSession,
    kafka_broker: EmbeddedBroker,
    job_name: str,
    tmp_path: Path,
    shuffled: bool,
) -> None:
    """More partitions than subtasks; a subtask dies when it is told that the checkpoint with its end has completed.

    Without adaptive execution the shuffle is a stage of the run's own Spark job: its tasks are no subtasks.
    """
    job = Job(job_name, checkpoint=CheckpointSettings(interval=0.2), heartbeat_interval=0.3)
    sink = partial(Copying, tmp_path / "out", tmp_path / "killed")
    job.operator("out", subtask=sink, parallelism=SUBTASKS)
    df = spark.range(0, 3000, 1, 5)
    if shuffled:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        df = spread(df, SUBTASKS)
    handle = run(spark, job, broker=kafka_broker.bootstrap, inputs={"out": df})
    assert handle.wait(DEADLINE_S).ending == "finished"
    assert (tmp_path / "killed").exists()
    result = read_results(spark, str(tmp_path / "out"), job=job_name, operator="out")
    assert sorted(row.id for row in result.collect()) == list(range(3000))
