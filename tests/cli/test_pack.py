"""`penstock pack`: what it refuses, the line it prints, and the interpreter of the archive.

An archive itself is made, shipped and run in tests/spark_integration/test_spark_submit.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import packed_environment
from penstock.cli.doctor_spark import spark_findings
from penstock.cli.exits import UsageError
from penstock.cli.pack import DeployMode, shown, submit_line

from .conftest import Cli


def settings_of(line: list[str]) -> dict[str, str]:
    """Return what the line sets, as a session would have it."""
    confs = [line[at + 1] for at, word in enumerate(line) if word == "--conf"]
    return {"spark.master": line[line.index("--master") + 1], **dict(conf.split("=", 1) for conf in confs)}


@pytest.mark.parametrize(
    ("master", "mode"),
    [
        ("spark://m:7077", DeployMode.CLIENT),
        ("yarn", DeployMode.CLIENT),
        ("yarn", DeployMode.CLUSTER),
        ("k8s://https://m:6443", DeployMode.CLUSTER),
    ],
)
@pytest.mark.parametrize("subtasks", [1, 4, 6])
def test_doctor_finds_nothing_to_change_in_the_printed_line(master: str, mode: DeployMode, subtasks: int) -> None:
    line = submit_line(Path("a b/env.tar.gz"), "main.py", master, mode, subtasks)
    found = {
        check: state
        for check, state, _, _ in spark_findings(settings_of(line), subtasks)
        if not check.endswith("Spark")
    }
    assert set(found.values()) == {"ok"}, found
    assert shlex.split(shown(line).replace("\\\n", " ")) == line, "a shell takes the words as they are"
    assert "a b/env.tar.gz#environment" in line


def test_a_driver_in_the_cluster_runs_the_packed_python_too_and_is_started_again() -> None:
    client = settings_of(submit_line(Path("e.tgz"), "main.py", "yarn", DeployMode.CLIENT, 2))
    cluster = settings_of(submit_line(Path("e.tgz"), "main.py", "yarn", DeployMode.CLUSTER, 2))
    assert client["spark.pyspark.driver.python"] == sys.executable
    assert "spark.pyspark.driver.python" not in cluster
    assert int(cluster["spark.yarn.maxAppAttempts"]) > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.py"], "there is no module gone.py"),
        (["empty"], "empty is no package"),
        (["a-b.py"], "a-b.py cannot be imported"),
        (["pyspark.py"], "would take the place of pyspark"),
        (["-r", "gone.txt"], "there is no requirements file gone.txt"),
        (["-o", "env.zip"], "must end in .tar.gz or .tgz"),
        (["-o", "no/such/folder/env.tgz"], "cannot be written"),
        (["--master", "local[4]"], "to yarn or to k8s://URL"),
        (["--deploy-mode", "cluster"], "a standalone cluster runs no Python driver"),
    ],
)
def test_what_cannot_be_packed_is_refused_before_anything_is_installed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packed_environment, "_install", lambda *_: pytest.fail("it installs"))
    (tmp_path / "empty").mkdir()
    for name in ("a-b.py", "pyspark.py"):
        (tmp_path / name).touch()
    ran = cli("pack", *arguments)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())
    assert not list(tmp_path.glob("*.t*gz"))


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "packed_with_it.py").touch()
    packed_environment._write_launcher(tmp_path / "bin" / "python")
    return tmp_path / "bin" / "python"


def launched(launcher: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "PYTHONPATH": ""}
    return subprocess.run(
        [launcher, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_packed_interpreter_is_the_machines_own_with_the_packed_libraries(launcher: Path) -> None:
    ran = launched(launcher, "-c", "import packed_with_it, sys; print(sys.argv)", "a b", path=os.environ["PATH"])
    assert (ran.returncode, ran.stdout) == (0, "['-c', 'a b']\n"), ran.stderr


def test_the_packed_interpreter_is_looked_for_on_the_path(launcher: Path, tmp_path: Path) -> None:
    text = launcher.read_text()
    moved = [line if not line.startswith("first=") else "first=/no/such/python" for line in text.splitlines()]
    launcher.write_text("\n".join(moved) + "\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / f"python3.{sys.version_info.minor}").symlink_to(os.path.realpath(sys.executable))
    path = f"{tools}:/usr/bin:/bin"
    ran = launched(launcher, "-c", "import packed_with_it", path=path)
    assert ran.returncode == 0, ran.stderr


def test_a_machine_without_that_python_is_named_with_the_way_out(launcher: Path) -> None:
    text = launcher.read_text().replace(f"{sys.version_info.major}, {sys.version_info.minor}", "3, 99")
    launcher.write_text(text)
    ran = launched(launcher, "-c", "pass", path=os.environ["PATH"])
    assert ran.returncode == 127
    assert "has no Python" in ran.stderr and "run penstock pack with a Python" in ran.stderr


def test_a_module_that_lacks_what_it_imports_is_refused_with_its_name(launcher: Path) -> None:
    (launcher.parent.parent / "lib" / "mine.py").write_text("import not_to_be_had\n")
    with pytest.raises(UsageError, match=r"module mine cannot be imported .*not_to_be_had.*requirements"):
        packed_environment._check_module(launcher.parent.parent, "mine", [])


@pytest.mark.parametrize(
    ("begins", "master", "mode", "subtasks", "added"),
    [
        ("spark-submit --master spark://", "spark://master:7077", DeployMode.CLIENT, 4, []),
        ("spark-submit --master yarn", "yarn", DeployMode.CLUSTER, 8, ["--py-files", "job.py"]),
    ],
    ids=["standalone", "yarn"],
)
def test_the_page_on_deployment_has_the_line_that_is_printed(
    begins: str, master: str, mode: DeployMode, subtasks: int, added: list[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{re.escape(begins)}(?:.*\\\n)+.*$", page, re.MULTILINE)
    there = shlex.split(found.replace("\\\n", " ").replace('"$(command -v python3)"', sys.executable))
    assert set(added) <= set(there)
    line = submit_line(Path("penstock.tar.gz"), "main.py", master, mode, subtasks)
    assert sorted([*line, *added, "broker:9092"]) == sorted(there)
