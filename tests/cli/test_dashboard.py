"""`penstock dashboard` and `--dashboard-port`: what they say, where they listen, how they end."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.dashboard import dashboard_served
from penstock.cli.exits import Exit, UsageError
from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport
from tests.coordinator.jobs import wait_until
from tests.dashboard.statuses import status

from .conftest import Cli

JOB_FILE = """
import penstock

job = penstock.Job("served", checkpoint=penstock.CheckpointSettings(interval=0.1))
job.operator("op", coordinator=penstock.OperatorCoordinator, subtask=penstock.Subtask, parallelism=1)
"""


def no_logs() -> MemoryTransport:
    return MemoryTransport(MemoryBroker())


def shown(url: str) -> Any:
    with urllib.request.urlopen(f"{url}api/status", timeout=10) as answer:
        return json.load(answer)


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *arguments],
        cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def url_in(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "http://" in line:
            return "http://" + line.partition("http://")[2].split()[0].strip('",}')
    raise AssertionError("it ended without saying where it serves")


@pytest.fixture
def no_starlette(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("penstock.cli.dashboard.find_spec", lambda name: None if name == "starlette" else found(name))


@pytest.mark.usefixtures("no_starlette")
def test_without_the_extra_the_error_says_what_to_install() -> None:
    with (
        pytest.raises(UsageError, match=r"needs starlette.*pip install 'penstock-spark\[dashboard\]'"),
        dashboard_served(0, lambda: None, print, "flights", "penstock", no_logs),
    ):
        pass


@pytest.mark.usefixtures("no_starlette")
def test_without_a_port_nothing_is_served_and_nothing_is_needed() -> None:
    with dashboard_served(None, lambda: None, pytest.fail, "flights", "penstock", no_logs):
        pass


def test_a_coordinators_own_page_shows_its_status_while_it_runs() -> None:
    said: list[str] = []
    with dashboard_served(0, lambda: status(1), said.append, "flights", "penstock", no_logs):
        url = said[0].removeprefix("dashboard at ")
        assert wait_until(lambda: shown(url)["view"], "its status")["job"] == "flights"
    with pytest.raises(OSError, match="refused"):
        shown(url)


@pytest.mark.parametrize("option", ["--dashboard-port", "--metrics-port"])
def test_a_taken_port_is_refused_before_spark_is_started(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    transport = MemoryTransport(MemoryBroker())
    where = SimpleNamespace(bootstrap="in memory", client_settings={}, transport=lambda: transport)
    monkeypatch.setattr("penstock.cli.run_job.connection", lambda *_, **__: where)
    monkeypatch.setattr("penstock.cli.run_display.local_session", lambda *_, **__: pytest.fail("Spark was started"))
    file = tmp_path / "served.py"
    file.write_text(JOB_FILE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = cli("run", file, option, port)
    assert ran.code == Exit.USAGE
    assert str(port) in ran.err and "Address already in use" in ran.err


@pytest.mark.kafka
def test_the_port_being_taken_is_a_usage_error(cli: Cli, kafka_broker: EmbeddedBroker, running_job: LocalJob) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = cli("dashboard", running_job.job.name, "--broker", kafka_broker.bootstrap, "--port", port)
    assert ran.code == Exit.USAGE
    assert f"the dashboard cannot listen on 127.0.0.1 port {port}: Address already in use" in ran.err


@pytest.mark.kafka
def test_an_unknown_job_is_a_usage_error(cli: Cli, kafka_broker: EmbeddedBroker) -> None:
    ran = cli("dashboard", "nobody", "--broker", kafka_broker.bootstrap, "--port", 0)
    assert (ran.code, "there is no job 'nobody'" in ran.err) == (Exit.USAGE, True)


@pytest.mark.kafka
def test_a_job_is_shown_from_another_process_also_when_it_has_ended(
    kafka_broker: EmbeddedBroker, running_job: LocalJob, tmp_path: Path
) -> None:
    arguments = ("dashboard", running_job.job.name, "--broker", kafka_broker.bootstrap, "--port", "0", "--json")
    process = started(*arguments, cwd=tmp_path)
    try:
        url = url_in(process)
        wait_until(lambda: (shown(url)["view"] or {}).get("state") == "running", "the job to run")
        running_job.client.stop()
        wait_until(lambda: shown(url)["view"]["state"] == "stopped", "the job's end")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == Exit.INTERRUPTED
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.kafka
def test_the_coordinator_serves_its_jobs_page(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(JOB_FILE)
    arguments = ("coordinator", "served.py", "--broker", kafka_broker.bootstrap, "--dashboard-port", "0")
    process = started(*arguments, cwd=tmp_path)
    try:
        url = url_in(process)
        view = wait_until(lambda: shown(url)["view"], "the status")
        assert (view["job"], view["subtasks"], view["running"]) == ("served", 1, 0)
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == Exit.INTERRUPTED
    finally:
        process.kill()
        process.wait(10)
