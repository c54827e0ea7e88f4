"""The whole of `penstock demo`, as its user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker

from .conftest import Cli

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def demo(*arguments: str) -> tuple[int, dict[str, Any], str]:
    finished = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "demo", "--json", *arguments],
        capture_output=True, text=True, timeout=720, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert finished.stdout.count("\n") == 1, finished.stdout + finished.stderr
    return finished.returncode, json.loads(finished.stdout), finished.stderr


@pytest.mark.smoke
def test_the_demo_survives_its_faults_and_is_exact() -> None:
    code, told, said = demo()
    assert (code, told["exact"]) == (0, True), said
    assert told["rows"] == told["expected_rows"]
    assert len(told["rows"]) == 185
    assert told["failovers"]["injected"] == {"task_raised": 1, "worker_killed": 1, "rolled_back": 1}
    assert told["failovers"]["region"] >= 2
    assert told["failovers"]["global"] >= 1
    assert told["checkpoints_completed"] >= 4
    assert 4 <= told["commits"] <= told["checkpoints_completed"]


def test_a_small_file_on_a_running_broker_under_a_name_of_its_own(
    kafka_broker: EmbeddedBroker, tmp_path: Path, cli: Cli
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("who,what\na,0.1\nb,NA\na,0.2\n")
    code, told, said = demo(
        "--input", str(file), "--group-by", "who", "--sum", "what", "--broker", kafka_broker.bootstrap,
        "--job", "my-own-demo", "--subtasks", "1",
    )  # fmt: skip
    assert (code, told["exact"], told["missing"]) == (0, True, 1), said
    assert told["rows"] == [{"who": "a", "what": "0.3"}, {"who": "b", "what": "0"}]
    listed = cli("jobs", "--broker", kafka_broker.bootstrap, "--json").json
    assert {entry["job"]: entry["status"]["state"] for entry in listed if entry["status"]}["my-own-demo"] == "finished"


def test_an_input_that_cannot_be_summed_ends_the_demo_before_spark_starts(
    kafka_broker: EmbeddedBroker, tmp_path: Path, cli: Cli
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("who,what\na,many\n")
    ran = cli(
        "demo", "--input", file, "--group-by", "who", "--sum", "what", "--broker", kafka_broker.bootstrap, "--json"
    )
    assert (ran.code, ran.out) == (2, "")
    assert "mine.csv, record 1: column 'what': 'many' is no number" in ran.err.splitlines()[-1]
