"""The pytest plugin as a user's pytest loads it: by its entry point, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Pytest = Callable[..., str]

JOB = """
import random
import penstock
import pytest
from penstock.testing.records import Heartbeat


class Sender(penstock.OperatorCoordinator):
    def execution_attempt_ready(self, subtask, attempt, gateway):
        gateway.send_event(b"hello")


class Listener(penstock.Subtask):
    def handle_operator_event(self, event):
        pass

    def snapshot_state(self, checkpoint_id):
        return b""


def make_job():
    job = penstock.Job("mine", checkpoint=penstock.CheckpointSettings(interval=0.05), heartbeat_interval=0.1)
    job.operator("op", coordinator=Sender, subtask=Listener, parallelism=1)
    return job
"""


@pytest.fixture
def run_pytest(tmp_path: Path) -> Pytest:
    """Runs pytest on one file of tests behind ``JOB``; what it printed."""

    def run(tests: str, *options: str, ending: int = 0) -> str:
        (tmp_path / "test_mine.py").write_text(JOB + tests)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_mine.py"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=360, check=False,
        )  # fmt: skip
        assert done.returncode == ending, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_job_runs_until_the_test_ends_and_its_threads_are_gone_then(run_pytest: Pytest) -> None:
    printed = run_pytest(
        """
import threading

def test_it_runs(local_job, penstock_faults):
    running = local_job(make_job())
    assert running.faults is penstock_faults
    running.wait_for(lambda status: status.checkpoints_completed > 0, timeout=20)
    running.freeze_subtask("op", 0)
    penstock_faults.hold(Heartbeat)

def test_nothing_is_left():
    assert [t.name for t in threading.enumerate() if "penstock" in t.name] == []

def test_jobs_of_one_test_share_what_they_are_told_to(local_job):
    first = local_job(make_job())
    first.wait_for(lambda status: status.checkpoints_completed > 0, timeout=20)
    assert first.client.stop().accepted
    second = local_job(make_job(), first.transport)
    second.wait_for(lambda status: status.epoch == 2, timeout=20)
""",
        "-q",
    )
    assert "3 passed" in printed
    assert "penstock: seed" not in printed, "nobody asked"


def test_a_failure_says_what_the_job_was_doing_what_was_injected_and_how_to_repeat_it(run_pytest: Pytest) -> None:
    printed = run_pytest(
        """
@pytest.mark.parametrize("kind", ["a-b"])
def test_that_fails(local_job, penstock_faults, penstock_seed, kind):
    penstock_faults.drop(Heartbeat)
    penstock_faults.hold(Heartbeat, subtask=99)
    running = local_job(make_job())
    running.wait_for(lambda status: status.checkpoints_completed > 0, timeout=20)
    penstock_faults.watch(Heartbeat).wait_until_caught(times=2)
    running.crash_coordinator()
    assert penstock_seed != 8
""",
        "--penstock-seed", "7", "--penstock-seeds", "3", ending=1,
    )  # fmt: skip
    assert "penstock: seeds 7 to 9" in printed
    assert "1 failed, 2 passed" in printed
    assert "job mine, faults with seed 8" in printed
    assert "op/0: running, attempt" in printed
    assert "injected drop: Heartbeat" in printed
    assert "injected crash: the process [coordinator]" in printed
    assert "NOT injected: hold of Heartbeat(subtask=99)" in printed
    assert "processes: coordinator (dead), op/0 (running)" in printed
    assert 'again: pytest "test_mine.py::test_that_fails[a-b]" --penstock-seed 8' in printed


def test_what_a_checkpoint_waits_for_is_in_the_report(run_pytest: Pytest) -> None:
    printed = run_pytest(
        """
from penstock.testing.records import CheckpointAck

def test_that_fails(local_job, penstock_faults):
    penstock_faults.drop(CheckpointAck, times=None)
    running = local_job(make_job())
    running.wait_for(lambda s: s.pending and "op/0" in s.pending[0].waits_for, timeout=20)
    raise AssertionError
""",
        ending=1,
    )
    assert "waits for op/0" in printed


def test_the_command_that_a_failure_names_runs_the_same_test_under_the_same_seed(run_pytest: Pytest) -> None:
    test = """
@pytest.mark.penstock_seeds(4)
def test_by_chance(penstock_faults, penstock_seed):
    assert penstock_faults.seed == penstock_seed != 2
"""
    printed = run_pytest(test, ending=1)
    assert "1 failed, 3 passed" in printed
    assert "test_by_chance[seed2]" in printed
    assert 'again: pytest "test_mine.py::test_by_chance" --penstock-seed 2' in printed
    again = run_pytest(test, "--penstock-seed", "2", ending=1)
    assert "1 failed" in again
    assert "passed" not in again


def test_seeds_are_for_tests_that_use_them_and_a_test_may_name_its_own(run_pytest: Pytest) -> None:
    printed = run_pytest(
        """
def test_without():
    pass

def test_with(local_job):
    pass

@pytest.mark.parametrize("penstock_seed", [41, 42])
def test_with_its_own(penstock_faults):
    assert penstock_faults.seed in (41, 42)

def test_default(penstock_seed):
    pass
""",
        "-v", "--penstock-seeds", "2",
    )  # fmt: skip
    assert "7 passed" in printed
    assert run_pytest("def test_it(penstock_seed):\n    assert penstock_seed == 0", "-q").count("1 passed") == 1


def test_a_number_of_seeds_below_one_is_refused(run_pytest: Pytest) -> None:
    printed = run_pytest("def test_it(penstock_seed): pass", "--penstock-seeds", "0", ending=2)
    assert "must be at least 1" in printed


def test_a_job_that_does_not_end_fails_the_test_and_the_others_are_ended_all_the_same(run_pytest: Pytest) -> None:
    printed = run_pytest(
        """
import threading
release = threading.Event()

class Stuck(penstock.Subtask):
    def handle_operator_event(self, event):
        release.wait(60)

def test_stuck(local_job, monkeypatch):
    from penstock.testing import LocalJob
    job = penstock.Job("stuck")
    job.operator("op", coordinator=Sender, subtask=Stuck, parallelism=1)
    other = local_job(make_job())
    running = local_job(job)
    running.wait_for(lambda s: s.operators[0].subtasks and s.operators[0].subtasks[0].sent == 1, timeout=20)
    close = LocalJob.close
    monkeypatch.setattr(LocalJob, "close", lambda self, timeout=0.5: close(self, timeout))

def test_after():
    assert [t.name for t in threading.enumerate() if t.name == "penstock-coordinator"] == []
    release.set()
""",
        ending=1,
    )
    assert "threads of job stuck did not end" in printed
    assert "2 passed, 1 error" in printed


def test_the_plugin_can_be_left_out(run_pytest: Pytest) -> None:
    assert "fixture 'local_job' not found" in run_pytest("def test_it(local_job): pass", "-p", "no:penstock", ending=1)


def test_loading_the_plugin_imports_neither_spark_nor_kafka_nor_the_rest_of_penstock() -> None:
    """Every run of pytest of everybody who has Penstock installed pays for it."""
    code = "import pytest, sys, penstock.testing.plugin; print(' '.join(sys.modules))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    loaded = set(printed.split())
    assert {
        m for m in loaded if m.split(".")[0] in ("pyspark", "py4j", "confluent_kafka", "fastavro", "fsspec")
    } == set()
    assert {m for m in loaded if m.startswith("penstock")} == {
        "penstock",
        "penstock.testing",
        "penstock.testing.plugin",
    }


@pytest.mark.kafka
def test_the_embedded_broker_serves_jobs_of_several_tests_apart_from_one_another(run_pytest: Pytest) -> None:
    printed = run_pytest(
        """
@pytest.mark.parametrize("round_", [1, 2])
def test_over_kafka(local_job, embedded_broker, round_):
    running = local_job(make_job(), broker=embedded_broker)
    first = running.wait_for(lambda status: status.checkpoints_completed > 0, timeout=60).epoch
    assert running.client.stop().accepted
    again = local_job(make_job(), broker=embedded_broker.bootstrap)
    again.wait_for(lambda status: status.epoch > first and status.checkpoints_completed > 0, timeout=60)
"""
    )
    assert "2 passed" in printed
