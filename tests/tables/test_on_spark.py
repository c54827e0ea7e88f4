"""Splits copied to a table on a real Spark and Kafka, with a kill at each step of an assignment and of a commit.

A kill hits the process at the step itself, or another one while that process stands there. The table is read by DuckDB.
``make soak PENSTOCK_SOAK_ROUNDS=8`` kills each victim at each step, with each kind of table: 104 kills.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from tests.rounds import rounds

from .copy_on_spark import FOLDER, IN_STATE, JOB, KIND, ROWS, write
from .jobs import Place

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("copy_on_spark.py")
PENSTOCK = Path(sys.executable).with_name("penstock")
PATIENCE_S = 180.0
KINDS = ("delta", "iceberg")
VICTIMS = ("worker", "driver", "coordinator", "coordinator and driver")
STEPS = {
    "a split has been listed": ("read", "coordinator"),
    "a split has been asked for": ("read", "worker"),
    "a split has been handed out": ("read", "driver"),
    "a split has arrived": ("read", "coordinator"),
    "half of a split has been read": ("read", "worker"),
    "a split has been read": ("read", "coordinator"),
    "a file has been closed": ("out", "worker"),
    "a subtask's files are in its snapshot": ("out", "coordinator"),
    IN_STATE: ("out", "worker"),
    "a checkpoint has completed": ("out", "coordinator"),
    "before the atomic step of a commit": ("out", "worker"),
    "after the atomic step of a commit": ("out", "coordinator and driver"),
    "a commit has returned": ("out", "coordinator"),
}
"""Each with its operator, and who is killed there in the first rounds; the later ones take the other victims."""
MORE_SPLITS = 250
"""Between the last row in the table and the end: more than are listed ahead and open."""


class OnSpark:
    """One job: its coordinator's process and its driver's, and what they have written into its folder."""

    def __init__(self, broker: str, kind: str, folder: Path) -> None:
        self.folder, self._broker, self._log = folder, broker, folder.parent
        self.place = Place(kind, folder)
        self.name = f"copy-{uuid.uuid4().hex[:12]}"
        self._own = {JOB: self.name, FOLDER: str(folder), KIND: kind}
        self.coordinator, self.driver = self._start_coordinator(), self._start_driver()

    def _start_coordinator(self) -> subprocess.Popen[bytes]:
        return self._start(str(PENSTOCK), "coordinator", str(PROGRAM), "--broker", self._broker)

    def _start_driver(self) -> subprocess.Popen[bytes]:
        return self._start(sys.executable, str(PROGRAM), self._broker)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **self._own, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
        with (self._log / "processes.log").open("ab") as told:
            return subprocess.Popen(
                command, cwd=self._log, env=environment, stdout=told, stderr=told, start_new_session=True
            )

    def wait_for(self, name: str) -> str:
        """What the file of the job's folder holds, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self.folder / name).exists():
            failed = any(process.poll() not in (None, 0) for process in (self.driver, self.coordinator))
            if failed or time.monotonic() > deadline:
                words = (self._log / "processes.log").read_text(errors="replace")[-8000:]
                raise AssertionError(f"no {name!r} within {PATIENCE_S:g} s, or a process has ended: {words}")
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def kill_at(self, number: int, step: str, victim: str) -> None:
        """Let the job commit once, and kill the victim while a process stands at the step."""
        (self.folder / "committed").unlink(missing_ok=True)
        self.wait_for("committed")
        write(self.folder / "armed", json.dumps([number, step]))
        reached = json.loads(self.wait_for(f"reached {number}"))
        if victim == "worker":
            pid = (self.folder / f"{STEPS[step][0]}-{reached['subtask']}.pid").read_text()
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if "coordinator" in victim:
            kill(self.coordinator)
        if "driver" in victim:
            kill(self.driver)
        (self.folder / f"go on {number}").touch()
        if "coordinator" in victim:
            self.coordinator = self._start_coordinator()
        if "driver" in victim:
            self.driver = self._start_driver()

    def end(self) -> int:
        """Name an end that no listing has passed yet; return how many rows there are."""
        (self.folder / "committed").unlink(missing_ok=True)
        self.wait_for("committed")
        splits = max(row["n"] for row in self.place.read().rows) // ROWS + MORE_SPLITS
        write(self.folder / "end", str(splits))
        assert self.wait_for("ended") == "finished"
        assert self.coordinator.wait(PATIENCE_S) == 0
        return splits * ROWS

    def close(self) -> None:
        for process in (self.driver, self.coordinator):
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it has started, at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.mark.parametrize("round_", rounds())
def test_whoever_is_killed_at_a_step_each_row_is_in_the_table_once(
    round_: int, kafka_broker: EmbeddedBroker, tmp_path: Path, record_property: Any
) -> None:
    kind = KINDS[round_ % len(KINDS)]
    (tmp_path / "job").mkdir()
    job = OnSpark(kafka_broker.bootstrap, kind, tmp_path / "job")
    try:
        for number, (step, (_, first)) in enumerate(STEPS.items()):
            victim = VICTIMS[(VICTIMS.index(first) + round_ // len(KINDS)) % len(VICTIMS)]
            began = time.monotonic()
            job.kill_at(number, step, victim)
            record_property("kills", 1)
            print(f"{kind}: {step}: {victim} killed after {time.monotonic() - began:.1f} s")
        rows = job.end()
    finally:
        job.close()
    seen = job.place.check(list(range(rows)))
    for name, value in (("rows", rows), ("commits", len(seen.commits))):
        record_property(name, value)
    print(f"{kind}: {rows} rows in {len(seen.commits)} commits, each once")
