"""Every example runs: in memory within a second or two, and one on real Kafka and Spark by `penstock run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.job_file import load_job
from penstock.testing import LocalJob

EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the example printed, once it has ended by itself."""
    job = load_job(str(EXAMPLES / f"{name}.py"))
    with LocalJob(job) as running:
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


def test_no_example_is_left_out_here() -> None:
    here = Path(__file__).read_text()
    assert [path.stem for path in EXAMPLES.glob("*.py") if f'ran("{path.stem}"' not in here] == []


@pytest.mark.kafka
@pytest.mark.spark
def test_an_example_runs_on_spark_by_penstock_run(kafka_broker: EmbeddedBroker) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "run", str(EXAMPLES / "hello_events.py"), "--broker",
         kafka_broker.bootstrap, "--name", "hello-on-spark"],
        capture_output=True, text=True, timeout=180, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "subtask 1 heard 20 greetings, from 'hello 0' to 'hello 19'" in finished.stdout
    assert "job hello-on-spark has finished" in finished.stdout
