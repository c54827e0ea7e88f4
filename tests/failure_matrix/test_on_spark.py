"""A real zombie: Spark has given a task up and runs it elsewhere, and then it thaws (protocol, section 11)."""

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

PROGRAM = Path(__file__).with_name("freeze_a_worker.py")


def test_a_python_worker_that_thaws_behind_its_successor_leaves_and_the_count_is_exact(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    home, goodbyes = tmp_path / "spark", tmp_path / "goodbyes"
    home.mkdir()
    goodbyes.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":  # a local cluster writes there, and this is an installed package
            (home / entry.name).symlink_to(entry)
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    ran = subprocess.run(
        [
            sys.executable,
            str(PROGRAM),
            str(os.getpid()),
            kafka_broker.bootstrap,
            str(tmp_path / "warehouse"),
            str(goodbyes),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[ran.stderr.find("Traceback") :][:8000]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["successor"]
    assert found["exact"]
    assert found["ending"] == "stopped"
