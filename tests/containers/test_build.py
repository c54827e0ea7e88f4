"""docker/build.py without an engine: a docker command that writes down what it is asked, and answers as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from . import engine
from .engine import load_builder

FAKE = f"""#!{sys.executable}
import json, os, sys
folder = os.environ["FAKE_DOCKER"]
with open(folder + "/asked", "a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\\n")
with open(folder + "/answers") as answers:
    for begin, code, out in json.load(answers):
        if sys.argv[1 : 1 + len(begin)] == begin:
            (sys.stderr if code else sys.stdout).write(out + "\\n")
            sys.exit(code)
"""


class FakeDocker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[tuple[list[str], int, str]] = []
        self.answer()

    def answer(self, *command: str, code: int = 0, out: str = "") -> None:
        """What a command that begins like this is answered; the newest counts."""
        self.answers.insert(0, (list(command), code, out))
        (self.folder / "answers").write_text(json.dumps(self.answers))

    def asked(self, *command: str) -> list[list[str]]:
        written = self.folder / "asked"
        lines = written.read_text().splitlines() if written.exists() else []
        return [asked for line in lines if (asked := json.loads(line))[: len(command)] == list(command)]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    command = tmp_path / "docker"
    command.write_text(FAKE)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_BASE_IMAGE", raising=False)
    return FakeDocker(tmp_path)


@pytest.fixture
def builder(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = load_builder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return module


def quiet(_: str) -> None:
    pass


def test_an_engine_that_does_not_answer_is_an_error_that_says_what_to_do(
    builder: ModuleType, docker: FakeDocker
) -> None:
    docker.answer("info", code=1, out="Cannot connect to the Docker daemon")
    with pytest.raises(builder.CannotBuild, match=r"no container engine answers: start it [^!]*Cannot connect"):
        builder.build(["kafka"], quiet)


def test_a_machine_without_docker_is_told_what_to_install(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(builder.CannotBuild, match=r"no docker command: install Docker"):
        builder.build(["kafka"], quiet)


def test_an_unknown_image_is_named_with_those_there_are(builder: ModuleType) -> None:
    with pytest.raises(builder.CannotBuild, match=r"no image kafak; there are: kafka, coordinator, spark"):
        builder.build(["kafak"], quiet)


def test_the_base_that_is_named_is_pulled_where_it_is_not_there(
    builder: ModuleType, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BASE_IMAGE", "python:3.11-slim")
    assert builder.base_image(quiet) == "python:3.11-slim"
    assert docker.asked("pull") == [["pull", "--quiet", "python:3.11-slim"]]
    docker.answer("image", "ls", out="0123456789ab")
    assert builder.base_image(quiet) == "python:3.11-slim"
    assert len(docker.asked("pull")) == 1


def test_without_registry_root_and_debootstrap_it_says_what_would_help(
    builder: ModuleType, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer("pull", code=1, out="no such host")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(builder.CannotBuild, match=r"no such host.*PENSTOCK_BASE_IMAGE.*debootstrap"):
        builder.base_image(quiet)


def test_without_registry_root_makes_a_debian(
    builder: ModuleType, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer("pull", code=1, out="no such host")
    made: list[str] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(builder.shutil, "which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(builder, "bootstrap", lambda: made.append("debian"))
    assert builder.base_image(quiet) == builder.LOCAL_BASE
    assert made == ["debian"]


def test_an_image_is_built_once_and_again_when_what_it_is_made_from_has_changed(
    builder: ModuleType, docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "ROOT", tmp_path)
    monkeypatch.setattr(builder, "HERE", tmp_path)
    (tmp_path / "some.Dockerfile").write_text("FROM scratch")
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("1")

    def built() -> int:
        builder.made(builder.Recipe("penstock/some:1", "some", "base", ["a need", source]), quiet)
        builds = docker.asked("build")
        docker.answer("image", "ls", out="0123456789ab")
        label = builds[-1][builds[-1].index("--label") + 1]
        docker.answer("image", "inspect", "--format", '{{index .Config.Labels "penstock.made-from"}}',
                      out=label.partition("=")[2])  # fmt: skip
        return len(builds)

    assert [built(), built()] == [1, 1]
    (source / "a.py").write_text("2")
    assert [built(), built()] == [2, 2]
    (source / "b.py").write_text("")
    assert [built(), built()] == [3, 3]
    (tmp_path / "some.Dockerfile").write_text("FROM other")
    assert [built(), built()] == [4, 4]
    docker.answer("image", "inspect", "--format", "{{.Id}}", out="sha256:another base")
    assert [built(), built()] == [5, 5]
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "a.pyc").write_text("")
    assert built() == 5


def test_a_build_that_fails_shows_the_end_of_what_it_said(builder: ModuleType, docker: FakeDocker) -> None:
    docker.answer("build", code=1, out="E: Unable to fetch some archives")
    with pytest.raises(builder.CannotBuild, match="Unable to fetch some archives"):
        builder.made(builder.Recipe("penstock/some:1", "system", "base", []), quiet)


def test_the_program_ends_with_1_and_the_reason(builder: ModuleType, docker: FakeDocker) -> None:
    docker.answer("info", code=1, out="Cannot connect")
    ran = subprocess.run(
        [sys.executable, str(builder.HERE / "build.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert "no container engine answers" in ran.stderr and "Traceback" not in ran.stderr


def test_where_no_engine_answers_container_tests_are_skipped_and_where_one_is_required_they_fail(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer("info", code=1, out="Cannot connect to the Docker daemon")
    monkeypatch.delenv(engine.REQUIRED_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"install one \(docker.io.*Cannot connect"):
        engine.require_engine()
    monkeypatch.setenv(engine.REQUIRED_VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="PENSTOCK_REQUIRE_ENGINE"):
        engine.require_engine()
    docker.answer("info", out="Server:")
    engine.require_engine()
