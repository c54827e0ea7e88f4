"""What the page on deployment says of spark-submit, as it stands there: standalone with a SPARK_HOME, and on YARN."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.pack import DeployMode
from penstock.client.job_client import JobClient
from penstock.schemas.errors import JobError
from penstock.transport.kafka import KafkaTransport

from .jobs import executor_of
from .mini_yarn import QUICK_JVM, MiniYarn, mini_yarn
from .packed import Packed, pack
from .pod_server import pod_server
from .test_clusters import standalone_master

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
JOB = (ROOT / "cli" / "new_job" / "job.py.txt").read_text(encoding="utf-8")
SUMS = {"red: 1498500", "green: 1499500", "blue: 1500500"}
WAIT_S = 400.0
UNSET = ("PYSPARK_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
COUNTING_MAIN = """
import sys

import penstock
from job import job
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print(job.name, "ended:", penstock.spark_integration.run(spark, job, broker=sys.argv[1]).wait().ending)
spark.stop()
"""
COUNTING_JOB = """
import counting


class Teller(counting.Teller):
    def handle_request(self, limit):
        self.limit = max(self.limit, limit)
        return self.reports


counting.Teller = Teller
job = counting.counting_job("JOB_NAME", limit=0, parallelism=1)
"""
Reports = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniYarn]:
    with mini_yarn(tmp_path_factory.mktemp("yarn") / "cluster") as cluster:
        yield cluster


def environment_of(packed: Packed) -> dict[str, str]:
    """Return an environment that leads to the archive and SPARK_HOME, and to no installed package."""
    inherited = {name: value for name, value in os.environ.items() if name not in UNSET}
    return inherited | {"SPARK_HOME": str(packed.spark_home), "SPARK_LOCAL_IP": "127.0.0.1"}


def submit_command(packed: Packed, master: str, broker: str) -> list[str]:
    """The first spark-submit of the page, with this cluster's addresses and folders in the place of the page's."""
    found = re.search(r"^spark-submit --master spark://master:7077(?:.*\\\n)+.*$", PAGE, re.MULTILINE)
    assert found is not None
    ours = {
        "\\\n": " ",
        "spark://master:7077": master,
        "broker:9092": broker,
        "penstock.tar.gz": str(packed.archive),
        '"$(command -v python3)"': sys.executable,
    }
    line = functools.reduce(lambda text, pair: text.replace(*pair), ours.items(), found[0])
    command = [str(packed.spark_home / "bin" / "spark-submit"), *shlex.split(line)[1:]]
    assert command[: len(command) - 2] == packed.line(master), "what penstock pack prints"
    return command


def test_the_program_and_the_command_of_the_page_finish_a_job_on_a_standalone_cluster(
    kafka_broker: EmbeddedBroker, tmp_path: Path, packed: Packed
) -> None:
    """Its executors have no Penstock but the packed one, and PySpark from a zip in SPARK_HOME, no installed package."""
    environment = environment_of(packed)
    (program,) = re.findall(r"```python\n(# main\.py\n.*?)```", PAGE, re.DOTALL)
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "main.py").write_text(program, encoding="utf-8")
    (folder / "job.py").write_text(JOB.replace("JOB_NAME", "submitted"), encoding="utf-8")
    with standalone_master(tmp_path, environment) as master:
        ran = subprocess.run(
            submit_command(packed, master, kafka_broker.bootstrap),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-8000:]
        said = {line for file in (tmp_path / "w").rglob("stderr") for line in file.read_text().splitlines()}
    assert said >= SUMS


class Submitted:
    """A job of two operators with one subtask each; a request says how far to count, and answers who has come where."""

    def __init__(self, client: JobClient) -> None:
        self._client, self._limit = client, 0

    def _reports(self) -> Reports:
        reports = {}
        for operator in ("left", "right"):
            with suppress(JobError):  # no coordinator for the moment
                reply = self._client.request(operator, b"%d" % self._limit, timeout_s=10.0)
                assert reply.accepted, reply
                reports.update({f"{operator}/{index}": one for index, one in json.loads(reply.payload).items()})
        return reports

    def count_on(self, but_not_in: Iterable[int] = ()) -> dict[str, int]:
        """Let both subtasks count 100 further, and on until none of these processes counts; return those that do."""
        self._limit += 100
        deadline = time.monotonic() + WAIT_S
        while True:
            reports = self._reports()
            if [report["count"] for report in reports.values()] == [self._limit, self._limit]:
                processes = {name: int(report["pid"]) for name, report in reports.items()}
                if not set(processes.values()) & set(but_not_in):
                    return processes
                self._limit += 1  # executors outlive their application master for a moment
            assert time.monotonic() < deadline, f"{self._limit} were to be counted: {reports}"
            time.sleep(0.2)

    def end(self) -> None:
        assert self._client.stop(timeout_s=WAIT_S).accepted


@contextmanager
def submitted(
    name: str, line: list[str], environment: dict[str, str], broker: EmbeddedBroker, folder: Path
) -> Iterator[tuple[Submitted, subprocess.Popen[bytes], Path]]:
    """Submit the job, made small, with the printed line."""
    shutil.copy2(Path(__file__).with_name("jobs.py"), folder / "counting.py")
    (folder / "job.py").write_text(COUNTING_JOB.replace("JOB_NAME", name))
    (folder / "main.py").write_text(COUNTING_MAIN)
    small = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}
    log = folder / "submit.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*line, *settings(small), "main.py", broker.bootstrap],
            cwd=folder, env=environment | QUICK_JVM, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    transport = KafkaTransport(broker.bootstrap)
    try:
        client = JobClient(transport, name)
        deadline = time.monotonic() + WAIT_S
        while not client.exists() or client.status() is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-8000:]
            time.sleep(0.5)
        yield Submitted(client), process, log
    finally:
        transport.close()
        if process.poll() is None:
            process.kill()
        process.wait(60)


def settings(values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in ("--conf", f"{name}={value}")]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@contextmanager
def submitted_to_yarn(
    yarn: MiniYarn, packed: Packed, mode: DeployMode, broker: EmbeddedBroker, folder: Path
) -> Iterator[tuple[Submitted, subprocess.Popen[bytes], Path]]:
    """Submit the job; what is added to the printed line keeps Spark's jars in place."""
    in_place = {
        "spark.yarn.jars": f"local:{packed.spark_home}/jars/*",
        "spark.yarn.stagingDir": (folder / "staging").as_uri(),
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }
    line = [*packed.line("yarn", mode, subtasks=2), *settings(in_place)]
    if mode is DeployMode.CLUSTER:
        line += ["--py-files", f"{folder}/job.py,{folder}/counting.py"]
    environment = environment_of(packed) | {"HADOOP_CONF_DIR": str(yarn.conf)}
    with submitted(f"yarn-{mode.value}", line, environment, broker, folder) as job:
        yield job


@pytest.mark.parametrize(
    ("mode", "master"),
    [
        pytest.param(DeployMode.CLIENT, "deploy.yarn.ExecutorLauncher", id="client"),
        pytest.param(DeployMode.CLUSTER, "deploy.yarn.ApplicationMaster", id="cluster: it is the driver"),
    ],
)
def test_on_yarn_an_executor_and_the_application_master_are_killed(
    yarn: MiniYarn, packed: Packed, kafka_broker: EmbeddedBroker, tmp_path: Path, mode: DeployMode, master: str
) -> None:
    with submitted_to_yarn(yarn, packed, mode, kafka_broker, tmp_path) as (job, process, log):
        first = job.count_on()
        kill(executor_of(first["left/0"]))
        second = job.count_on(but_not_in=first.values())
        (pid,) = yarn.processes(master)
        kill(pid)
        job.count_on(but_not_in=second.values())
        job.end()
        assert process.wait(WAIT_S) == 0, log.read_text()[-8000:]
        said = log.read_text() + yarn.said()
        assert f"yarn-{mode.value} ended: stopped" in said
        assert "AssertionError" not in said, "each number came once, in order"


def test_on_kubernetes_an_executor_is_killed(packed: Packed, kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Spark's Kubernetes backend starts pods, hears that one has failed, and starts another."""
    with pod_server(tmp_path / "pods", packed.spark_home, QUICK_JVM) as (url, pods):
        local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        line = [*packed.line(f"k8s://{url}", subtasks=2), *settings(local)]
        with submitted("pods", line, environment_of(packed), kafka_broker, tmp_path) as (job, process, log):
            first = job.count_on()
            kill(executor_of(first["left/0"]))
            job.count_on(but_not_in=first.values())
            job.end()
            assert process.wait(WAIT_S) == 0, log.read_text()[-8000:]
            assert "pods ended: stopped" in log.read_text()
        assert len(pods.created) >= 2
        assert not pods.pods, "the driver has deleted them"
