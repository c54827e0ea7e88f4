"""`penstock run` as its user runs it: Ctrl-C stops the job by message, and running it again resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.exits import Exit
from penstock.client.job_client import JobClient
from penstock.transport.kafka import KafkaTransport

from .conftest import Cli

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

JOB_FILE = """
import penstock

class Endless(penstock.Subtask):
    def open(self, context):
        self.steps = 0
    def poll(self):
        self.steps += 1
        return penstock.Idle(0.01)
    def snapshot_state(self, checkpoint_id):
        return self.steps
    def restore_state(self, checkpoint_id, state):
        assert state > 0
        self.steps = state

def endless():
    job = penstock.Job("named-in-the-file", checkpoint=penstock.CheckpointSettings(interval=0.2))
    job.operator("endless", subtask=Endless, parallelism=2, state_codec="json")
    return job
"""


def wait_for(condition: object, what: str, timeout_s: float = 360.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def test_ctrl_c_stops_the_job_in_order(
    kafka_broker: EmbeddedBroker, transport: KafkaTransport, tmp_path: Path, cli: Cli
) -> None:
    file = tmp_path / "endless_for_cli.py"
    file.write_text(JOB_FILE)
    client = JobClient(transport, "endless-on-spark")
    running = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "run", f"{file}:endless", "--name", "endless-on-spark",
         "--broker", kafka_broker.bootstrap],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip

    def has_checkpoints() -> bool:
        assert running.poll() is None, running.stdout and running.stdout.read()
        status = client.status() if client.exists() else None
        return status is not None and status.checkpoints_completed >= 2

    try:
        wait_for(has_checkpoints, "two checkpoints")
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == Exit.INTERRUPTED, said
    assert "stopping the job in order" in said
    status = client.status()
    assert status is not None
    assert status.state == "stopped"
    refused = cli(
        "run", f"{file}:endless", "--name", "endless-on-spark", "--broker", kafka_broker.bootstrap,
        "--from-checkpoint", status.last_completed + 1_000,
    )  # fmt: skip
    assert refused.code == Exit.USAGE
    assert str(status.last_completed) in refused.err
