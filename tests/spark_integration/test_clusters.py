"""Executors of their own, in their own JVMs: one of them is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from penstock.broker import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PROGRAM = Path(__file__).with_name("kill_an_executor.py")
UP_S = 180.0


@pytest.fixture
def spark_environment(tmp_path: Path) -> dict[str, str]:
    """Local clusters write below SPARK_HOME, which here is an installed package: they get a home of their own."""
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


def run_program(
    master: str, broker: EmbeddedBroker, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), broker.bootstrap, str(folder / "warehouse"), master],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=720,
        check=False,
    )


def kill_an_executor(master: str, broker: EmbeddedBroker, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    ran = run_program(master, broker, folder, environment)
    assert ran.returncode == 0, ran.stderr[-8000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


@contextmanager
def standalone_master(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A master and one worker with four cores, from the pip package."""
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_class = str(Path(environment["SPARK_HOME"], "bin", "spark-class"))
    deploy = "org.apache.spark.deploy"
    host = ["--host", "127.0.0.1", "--webui-port"]
    commands = [
        [f"{deploy}.master.Master", *host, str(page), "--port", str(port)],
        [f"{deploy}.worker.Worker", *host, "0", "--cores", "4", "--memory", "2g", "--work-dir", str(folder / "w"), url],
    ]
    with (folder / "standalone.log").open("w") as log:
        processes = [
            subprocess.Popen([spark_class, *command], env=environment, stdout=log, stderr=log) for command in commands
        ]
        try:
            deadline = time.monotonic() + UP_S
            while not worker_is_up(page):
                if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                    raise TimeoutError(f"no worker registered: {(folder / 'standalone.log').read_text()[-4000:]}")
                time.sleep(0.1)
            yield url
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(30)


def worker_is_up(page: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return bool(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):  # nobody there yet, or a page that is not ready
        return False


def check_exact(found: dict[str, Any]) -> None:
    assert found["counts"] == [1000]
    assert found["ending"] == "stopped"
    assert 1 <= len(found["moved"]) <= 3, "those of one executor have moved, and the others have not"


def test_on_a_local_cluster_the_subtasks_of_a_killed_executor_come_back_and_count_on(
    kafka_broker: EmbeddedBroker, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    check_exact(kill_an_executor("local-cluster[2,2,1024]", kafka_broker, tmp_path, spark_environment))


def test_under_a_standalone_master_the_subtasks_of_a_killed_executor_come_back_and_count_on(
    kafka_broker: EmbeddedBroker, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    with standalone_master(tmp_path, spark_environment) as master:
        check_exact(kill_an_executor(master, kafka_broker, tmp_path, spark_environment))


def test_workers_without_penstock_end_the_run_at_once_with_one_line_of_advice(
    kafka_broker: EmbeddedBroker, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    bare = tmp_path / "python-without-packages"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    environment = {**spark_environment, "PYSPARK_PYTHON": str(bare)}
    ran = run_program("local-cluster[2,2,1024]", kafka_broker, tmp_path, environment)
    assert ran.returncode != 0
    assert "cannot run on Spark: the workers' Python has no module 'penstock'. Install" in ran.stderr
    assert 1 <= ran.stderr.count(" died: ") <= 4, "it does not wait for eight deaths of a subtask"
