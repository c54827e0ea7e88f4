"""The example about tables: in memory, and by ``penstock run`` on real Kafka and Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.job_file import load_job
from penstock.testing import LocalJob

from .readers import read_delta

EXAMPLE = Path(__file__).parents[2] / "examples" / "totals_to_delta.py"
FLIGHTS, CARRIERS, EVERY = 600, ("AA", "B6", "DL", "UA"), 10


def check(folder: Path) -> None:
    """Each carrier has each tenth flight once, and its last total is that of all of its rows."""
    rows = read_delta(folder).rows
    expected = []
    for index, carrier in enumerate(CARRIERS):
        numbers = range(index, FLIGHTS, len(CARRIERS))
        expected += [(carrier, flights) for flights in range(EVERY, len(numbers) + 1, EVERY)]
        last = max((row["flights"], row["minutes"]) for row in rows if row["carrier"] == carrier)
        assert last == (len(numbers), sum(n % 60 for n in numbers))
    assert sorted((row["carrier"], row["flights"]) for row in rows) == sorted(expected)


@pytest.mark.parametrize("crash", [None, "totals", "out"])
def test_the_example_commits_each_total_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str | None
) -> None:
    monkeypatch.setenv("TABLE", str(tmp_path))
    monkeypatch.delitem(sys.modules, "totals_to_delta", raising=False)
    with LocalJob(load_job(str(EXAMPLE))) as running:
        if crash is not None:
            running.crash_subtask(crash, 0)
        assert running.wait(60).ending.value == "finished"
    check(tmp_path)


@pytest.mark.kafka
@pytest.mark.spark
def test_the_example_runs_on_real_kafka_and_spark(tmp_path: Path, embedded_broker: EmbeddedBroker) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", str(EXAMPLE), "--broker", embedded_broker.bootstrap]
    environment = {**os.environ, "TABLE": str(tmp_path / "table")}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    check(tmp_path / "table")
