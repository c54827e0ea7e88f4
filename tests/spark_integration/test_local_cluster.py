"""Executors of their own, in their own JVMs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.broker import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PROGRAM = Path(__file__).with_name("kill_an_executor.py")


def spark_home_with_its_own_work_folder(folder: Path) -> Path:
    """Local clusters write below SPARK_HOME, which here is an installed package."""
    home = folder / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def test_the_subtasks_of_a_killed_executor_come_back_and_count_on(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), kafka_broker.bootstrap, str(tmp_path / "warehouse")],
        cwd=tmp_path,
        env={
            **os.environ,
            "SPARK_HOME": str(spark_home_with_its_own_work_folder(tmp_path)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-8000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["counts"] == [1000]
    assert found["ending"] == "stopped"
    assert 1 <= len(found["moved"]) <= 3, "those of one executor have moved, and the others have not"
