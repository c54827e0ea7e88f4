"""The compose file, from its first container to its exact result."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rounds import rounds

from .engine import ROOT, load_builder, refuse

FILE = ROOT / "docker" / "compose.yaml"
DEADLINE_S = 300.0

KILL_THE_COORDINATOR = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    if b"/opt/penstock/bin/penstock" in (folder / "cmdline").read_bytes().split(b"\\0")[1:]:
        if int(folder.name) != 1:
            os.kill(int(folder.name), signal.SIGKILL)
            break
else:
    raise SystemExit("there is no coordinator")
"""


class Compose:
    """One project of the compose file, with a name of its own."""

    def __init__(self, project: str, images: dict[str, str]) -> None:
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
        if not plugin and shutil.which("docker-compose") is None:
            refuse("there is neither `docker compose` nor docker-compose: install docker-compose")
        command = ["docker", "compose"] if plugin else ["docker-compose"]
        self.command = [*command, "--file", str(FILE), "--project-name", project]
        self.environment = {
            **os.environ,
            **{f"PENSTOCK_{name.upper()}_IMAGE": image for name, image in images.items()},
            "NUMBERS": "500000",
            "SUBTASKS": "3",
        }

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stdout[-6000:]}"
        return done.stdout

    def container(self, service: str) -> str:
        return self("ps", "--quiet", service).strip()


@pytest.fixture
def compose(images: dict[str, str], tmp_path: Path) -> Iterator[Compose]:
    project = Compose(f"penstock-test-{os.getpid()}", images)
    try:
        yield project
    finally:
        project("down", "--volumes", "--remove-orphans", "--timeout", "20")


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.containers
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("round_", rounds())
def test_the_compose_file_restarts_a_coordinator_that_dies_and_ends_with_an_exact_result(
    compose: Compose, round_: int
) -> None:
    compose("up", "--detach", "coordinator")
    coordinator = compose.container("coordinator")
    wait_until_logged(coordinator, "coordinating job squares", 1)
    # No exit code counts: the container may be gone before the command in it has returned.
    subprocess.run(["docker", "exec", coordinator, "python", "-c", KILL_THE_COORDINATOR], check=False)
    wait_until_logged(coordinator, "coordinating job squares", 2)

    said = compose("run", "--rm", "-T", "job")
    assert said.rstrip().splitlines()[-1] == "exact", said
    ended = json.loads(docker("inspect", coordinator))[0]
    assert ended["RestartCount"] == 1
    assert docker("wait", coordinator).strip() == "0", "it ends with its job, and is not restarted"


def wait_until_logged(container: str, text: str, times: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        done = subprocess.run(
            ["docker", "logs", container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
        if done.stdout.count(text) >= times:
            return
        assert time.monotonic() < deadline, f"{text!r} was not logged {times} times:\n{done.stdout[-4000:]}"
        time.sleep(0.1)


def test_the_compose_file_names_the_images_that_are_built() -> None:
    defaults = set(re.findall(r"image: \$\{\w+:-([^}]+)\}", FILE.read_text()))
    assert defaults == set(load_builder().IMAGES.values())
