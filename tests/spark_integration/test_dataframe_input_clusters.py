"""A DataFrame as an input where executors have JVMs of their own: one of them is killed in the middle of the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker

from .test_clusters import spark_environment, standalone_master
from .test_dataframe_input import NEARLY, check_exact

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

__all__ = ["spark_environment"]

PROGRAM = Path(__file__).with_name("dataframe_input_on_a_cluster.py")


def test_under_a_standalone_master_the_rows_of_a_killed_executor_go_on_where_its_checkpoint_stood(
    kafka_broker: EmbeddedBroker,
    tmp_path: Path,
    spark_environment: dict[str, str],
) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    with standalone_master(tmp_path, spark_environment) as master:
        ran = subprocess.run(
            [sys.executable, str(PROGRAM), kafka_broker.bootstrap, str(gates), master],
            cwd=tmp_path, env=spark_environment, capture_output=True, text=True, timeout=840, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-8000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["ending"] == "finished"
    check_exact(found["reports"])
    assert "1" in found["moved"]
    assert found["reports"]["1"]["restored_at"] >= NEARLY
