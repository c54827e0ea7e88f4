"""Every example runs: in memory within a second or two, and one on real Kafka and Spark by `penstock run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.job_file import load_job
from penstock.testing import LocalJob

EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(
    name: str, capsys: pytest.CaptureFixture[str], strike: Callable[[LocalJob], None] = lambda running: None
) -> list[str]:
    """What the example printed, once it has ended by itself."""
    job = load_job(str(EXAMPLES / f"{name}.py"))
    with LocalJob(job) as running:
        strike(running)
        assert running.wait(30).ending.value == "finished"
    return capsys.readouterr().out.splitlines()


def test_hello_events_reports_every_greeting_once_for_each_subtask(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ran("hello_events", capsys)
    assert {f"subtask {s} heard 20 greetings, from 'hello 0' to 'hello 19'" for s in (0, 1)} == set(lines)


def test_changing_rules_has_one_rule_in_every_checkpoint_and_ends_with_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ran("changing_rules", capsys)
    assert lines
    assert all(re.fullmatch(r"checkpoint \d+: \d subtasks, all under rule \d", line) for line in lines)
    assert any(line.endswith("all under rule 6") for line in lines)


def test_assign_splits_counts_every_file_of_the_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text("line\n" * number)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "assign_splits", raising=False)
    assert f"30 files with {sum(range(30))} lines in {tmp_path}" in ran("assign_splits", capsys)


def parquet_rows(folder: Path) -> dict[str, tuple[int, int]]:
    """By a reader that knows nothing of us."""
    table = pq.read_table(folder)
    return {row["carrier"]: (row["flights"], row["minutes"]) for row in table.to_pylist()}


@pytest.mark.parametrize("crash", [None, "reader", "totals", "parquet"])
def test_delays_to_parquet_counts_every_row_once_whoever_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], crash: str | None
) -> None:
    (source := tmp_path / "csv").mkdir()
    expected: dict[str, tuple[int, int]] = {}
    for number in range(30):
        lines = [(f"C{(number + i) % 7}", i) for i in range(100)]
        (source / f"{number}.csv").write_text("carrier,delay\n" + "".join(f"{c},{d}\n" for c, d in lines))
        for carrier, delay in lines:
            flights, minutes = expected.get(carrier, (0, 0))
            expected[carrier] = (flights + 1, minutes + delay)
    monkeypatch.setenv("FOLDER", str(source))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.delitem(sys.modules, "delays_to_parquet", raising=False)

    def strike(running: LocalJob) -> None:
        if crash is not None:
            running.crash_subtask(crash, 0)

    ran("delays_to_parquet", capsys, strike)
    assert parquet_rows(tmp_path / "out") == expected


def test_no_example_is_left_out_here() -> None:
    elsewhere = {"totals_to_delta"}  # tests/tables reads the table
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert {path.stem for path in EXAMPLES.glob("*.py") if f'ran("{path.stem}"' not in here} == elsewhere


@pytest.mark.kafka
@pytest.mark.spark
def test_an_example_runs_on_spark_by_penstock_run(kafka_broker: EmbeddedBroker) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "run", str(EXAMPLES / "hello_events.py"), "--broker",
         kafka_broker.bootstrap, "--name", "hello-on-spark"],
        capture_output=True, text=True, timeout=540, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "subtask 1 heard 20 greetings, from 'hello 0' to 'hello 19'" in finished.stdout
    assert "job hello-on-spark has finished" in finished.stdout
