"""A run of the ledger job: its coordinators in containers, its subtasks in a Spark on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from testcontainers.core.container import DockerContainer

from penstock.client.job_client import JobClient
from penstock.schemas.errors import PenstockError
from penstock.schemas.status import JobStatus
from penstock.transport.kafka import KafkaTransport

from .engine import KafkaInContainer

HERE = Path(__file__).parent
JOB_FILE = HERE / "job" / "ledger.py"
NUMBERS = 1200
"""As in the job file."""
DEADLINE_S = 360.0


class LedgerRun:
    """As a context manager it leaves no container and no process behind."""

    def __init__(self, kafka: KafkaInContainer, image: str, name: str, folder: Path) -> None:
        self.kafka, self.image, self.name, self.folder = kafka, image, name, folder
        self.coordinators: list[DockerContainer] = []
        self.driver: subprocess.Popen[str] | None = None
        self.transport = KafkaTransport(kafka.bootstrap)
        self.client = JobClient(self.transport, name)

    def __enter__(self) -> LedgerRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        print(self.told())  # pytest shows it where the test has failed
        if self.driver is not None and self.driver.poll() is None:
            self.driver.terminate()  # its Spark ends with it
            try:
                self.driver.wait(30)
            except subprocess.TimeoutExpired:
                self.driver.kill()
                self.driver.wait()
        for container in self.coordinators:
            container.stop()
        self.transport.close()

    def start_coordinator(self) -> DockerContainer:
        """Another container with a coordinator of this job."""
        container = (
            DockerContainer(self.image)
            .with_network(self.kafka.network)
            .with_env("PENSTOCK_BROKER", self.kafka.bootstrap_inside)
            .with_copy_into_container(JOB_FILE, "/job/ledger.py")
            .with_command(["/job/ledger.py", "--name", self.name, "--json"])
            .with_kwargs(init=True)
        )
        self.coordinators.append(container)
        return container.start()

    def start_driver(self) -> None:
        with (self.folder / "driver.log").open("w") as log:
            self.driver = subprocess.Popen(
                [sys.executable, str(HERE / "driver.py"), str(JOB_FILE), self.name, self.kafka.bootstrap],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
            )

    def answers(self, request: dict[str, Any] | None = None) -> list[list[int]]:
        """What each subtask has answered, as the coordinator knows it: asked until one answers."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.driver_runs()
            try:
                reply = self.client.request("clerks", json.dumps(request or {}).encode(), 2.0)
                if reply.accepted:
                    answers: list[list[int]] = json.loads(reply.payload)
                    return answers
                why = reply.outcome
            except PenstockError as error:
                why = str(error)
            assert time.monotonic() < deadline, f"no coordinator answered: {why}"

    def wait_until_answered(self, count: int) -> list[list[int]]:
        deadline = time.monotonic() + DEADLINE_S
        while sum(map(len, found := self.answers())) < count:
            assert time.monotonic() < deadline, f"{list(map(len, found))} answers instead of {count}: {self.status()}"
            time.sleep(0.02)
        return found

    def status(self) -> JobStatus:
        found = self.client.status()
        assert found is not None
        return found

    def wait_for_status(self, condition: Callable[[JobStatus], bool], what: str) -> JobStatus:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.driver_runs()
            status, why = None, "no status"
            try:
                status = self.client.status()
            except PenstockError as error:
                why = repr(error)
            if status is not None and condition(status):
                return status
            assert time.monotonic() < deadline, f"{what}: {status or why}"
            time.sleep(0.05)

    def finish_exactly(self) -> None:
        """Deals the rest, compares, and ends the job; every coordinator that is left and the driver end well."""
        self.answers({"open_to": NUMBERS})
        answered = self.wait_until_answered(NUMBERS)
        assert sorted(number for answers in answered for number in answers) == list(range(NUMBERS))
        assert all(answers == sorted(answers) for answers in answered), "in the order they were sent"
        reply = self.client.stop(timeout_s=60.0)
        assert reply.accepted, reply.outcome
        assert self.driver is not None
        out, _ = self.driver.communicate(timeout=60)
        assert self.driver.returncode == 0, self.told()
        assert json.loads(out.splitlines()[-1])["ending"] == "stopped"
        assert exit_code(self.coordinators[-1]) == 0, self.told()

    def driver_runs(self) -> None:
        assert self.driver is None or self.driver.poll() is None, f"the driver has ended: {self.told()}"

    def told(self) -> str:
        """What everybody wrote, for a failure's message."""
        log = self.folder / "driver.log"
        parts = [f"---- driver\n{log.read_text()[-4000:]}" if log.exists() else "---- no driver"]
        for number, container in enumerate(self.coordinators):
            out, err = container.get_logs()
            parts.append(f"---- coordinator {number}\n{(out + err).decode(errors='replace')[-3000:]}")
        return "\n".join(parts)


def exit_code(container: DockerContainer) -> int:
    """The code that the container has ended with, or ends with."""
    code: int = container.get_wrapped_container().wait(timeout=60)["StatusCode"]
    return code
