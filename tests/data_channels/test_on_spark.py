"""Three operators on Spark, over Kafka, into files: workers of each operator are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import CheckpointSettings, Context, Job, RestartStrategy, Subtask
from penstock.broker import EmbeddedBroker
from penstock.schemas.status import JobStatus
from penstock.sinks import FileSink
from penstock.spark_integration import JobHandle, local_session, run
from tests.rounds import rounds

from .jobs import Counting, FileGate, Numbers, Passing, check_counted, group_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak]

PARALLELISM = {"numbers": 2, "passing": 2, "files": 1}
LIMIT = 4000
PATIENCE_S = 360.0


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session(sum(PARALLELISM.values()))
    yield session
    session.stop()


def with_pid(subtask: Callable[[], Subtask], folder: Path) -> Subtask:
    """The subtask, which leaves word of the process that it runs in."""
    made = subtask()
    opened = made.open

    def open_(context: Context) -> None:
        (folder / f"{context.operator}-{context.subtask}.pid").write_text(str(os.getpid()))
        opened(context)

    made.open = open_  # type: ignore[method-assign]
    return made


def counted_job(name: str, folder: Path, **checkpoint: Any) -> Job:
    job = Job(
        name,
        checkpoint=CheckpointSettings(**{"interval": 0.3, **checkpoint}),
        restart=RestartStrategy(0.0, 0.05, 0.5, budget=1000),
        heartbeat_interval=0.3,
        heartbeat_timeout=10.0,
    )
    gate = FileGate(folder / "gate")
    numbers = job.operator(
        "numbers", subtask=partial(with_pid, partial(Numbers, LIMIT, 0.02, gate), folder), parallelism=2,
        output_codec="json", state_codec="json",
    )  # fmt: skip
    passing = job.operator(
        "passing", subtask=partial(with_pid, Passing, folder), coordinator=Counting, parallelism=2,
        inputs=[numbers.keyed_by(group_of)], codec="json", state_codec="json", output_codec="json",
    )  # fmt: skip
    job.operator(
        "files", subtask=partial(with_pid, partial(FileSink, folder / "out"), folder), parallelism=1,
        inputs=[passing.rebalance()],
    )  # fmt: skip
    return job


def kill(folder: Path, operator: str, index: int) -> int:
    """SIGKILL for the Spark worker that runs this subtask."""
    pid = int((folder / f"{operator}-{index}.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_for_successor(folder: Path, operator: str, index: int, pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (folder / f"{operator}-{index}.pid").read_text() in ("", str(pid)):
        assert time.monotonic() < deadline, f"nobody came for {operator}/{index}"
        time.sleep(0.05)


def wait_for_checkpoints(handle: JobHandle, more: int) -> None:
    status = handle.wait_for(lambda status: True, PATIENCE_S)
    before = status.checkpoints_completed

    def there(status: JobStatus) -> bool:
        return status.checkpoints_completed >= before + more

    handle.wait_for(there, PATIENCE_S)


@pytest.mark.parametrize("way", [{}, {"unaligned": True}], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("round_", rounds())
def test_every_record_is_in_the_files_once_whichever_worker_is_killed(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path, way: dict[str, Any], round_: int,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    """Section 9, and the two-phase commit of a sink behind it."""
    (tmp_path / "out").mkdir()
    job = counted_job(f"counted-{'un' if way else ''}aligned-{round_}", tmp_path, **way)
    with run(spark, job, broker=kafka_broker.bootstrap) as handle:
        for operator, index in (("passing", 1), ("files", 0), ("numbers", 0)):
            wait_for_checkpoints(handle, 1)
            pid = kill(tmp_path, operator, index)
            wait_for_successor(tmp_path, operator, index, pid)
        (tmp_path / "gate").touch()
        assert handle.wait(PATIENCE_S).ending == "finished"
        status = handle.status()
        assert status is not None
        record_property("deaths", 3)
        record_property("checkpoints", status.checkpoints_completed)
    records = [
        json.loads(line) for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    check_counted(records, LIMIT)
