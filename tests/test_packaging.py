"""What is built can be installed and used without the repository beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS: dict[str, str] = dict(PYPROJECT["tool"]["setuptools"]["package-dir"])
DATA = {".avsc", ".css", ".html", ".jars", ".js", ".properties", ".txt", ".xml"}


class Built(NamedTuple):
    wheel: Path
    sdist: Path


def run(*command: str | Path, cwd: Path) -> str:
    """The command's output; a failure shows what it said."""
    # A development checkout on the path would be imported in place of what was installed.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def source_files() -> dict[str, Path]:
    """Every file that must be in the wheel, by its path there."""
    folders = {"penstock": ROOT / "penstock"}
    folders |= {name.replace(".", "/"): ROOT / folder for name, folder in FOLDERS.items()}
    return {
        f"{inside}/{path.relative_to(folder).as_posix()}": path
        for inside, folder in folders.items()
        for path in folder.rglob("*")
        if path.suffix in {".py", *DATA} or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel built from it; from a copy, so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for name in ["penstock", *FOLDERS.values(), "docs", "examples"]:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, source)
    dist = folder / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source, cwd=folder)
    return Built(next(dist.glob("*.whl")), next(dist.glob("*.tar.gz")))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed into it, and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    run(*pip, "install", "--no-deps", "--no-index", "--target", target, built.wheel, cwd=target)
    return target


def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == source_files().keys()


def test_the_wheel_holds_the_files_that_code_alone_would_not_bring(built: Built) -> None:
    """Named one by one: the rule above would hold for an empty folder as well."""
    with zipfile.ZipFile(built.wheel) as wheel:
        held = wheel.namelist()
        for name in ("penstock/py.typed", "penstock/broker/log4j2.properties", "penstock/broker/kafka-4.3.0.jars"):
            assert wheel.read(name) == source_files()[name].read_bytes()
    assert "penstock/schemas/avro/events.Start.1.avsc" in held
    assert sum(name.endswith(".avsc") for name in held) == len(list((ROOT / "schemas" / "avro").glob("*.avsc")))


def test_the_wheel_is_for_any_platform(built: Built) -> None:
    assert built.wheel.name == f"penstock_spark-{PYPROJECT['project']['version']}-py3-none-any.whl"


def test_a_package_index_takes_the_metadata_and_shows_the_description(built: Built) -> None:
    said = run(sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist, cwd=built.wheel.parent)
    assert said.count("PASSED") == 2
    with zipfile.ZipFile(built.wheel) as wheel:
        (named,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = wheel.read(named).decode()
        (licence,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in metadata
    assert "](docs/" not in metadata  # a link into the repository leads nowhere from there


def test_the_wheel_brings_the_command(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        points = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert "penstock = penstock.cli:main" in wheel.read(points).decode().splitlines()


def test_the_sdist_holds_what_the_wheel_is_built_from(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {path.relative_to(ROOT).as_posix() for path in source_files().values()}
    assert wanted - held == set()
    assert "pyproject.toml" in held


_USE = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import penstock, penstock.schemas.codec as codec
from penstock.schemas.events import Reset
assert codec.decode(codec.encode(Reset(1, 2))) == Reset(1, 2)
print(penstock.__file__)
for name in sys.argv[2:]:
    print(importlib.import_module(name).__file__)
"""


def test_what_is_installed_works_from_anywhere(installed: Path, tmp_path: Path) -> None:
    packages = sorted(PYPROJECT["tool"]["setuptools"]["packages"])
    said = run(sys.executable, "-I", "-c", _USE, installed, *packages, cwd=tmp_path).splitlines()
    assert len(said) == 1 + len(packages)
    assert [path for path in said if not Path(path).is_relative_to(installed)] == []


def test_the_same_code_is_found_in_a_zip_as_spark_workers_have_it(built: Built, tmp_path: Path) -> None:
    zipped = tmp_path / "penstock.zip"
    shutil.copy(built.wheel, zipped)
    said = run(sys.executable, "-I", "-c", _USE, zipped, "penstock.subtask_client", cwd=tmp_path).splitlines()
    assert [path for path in said if not path.startswith(str(zipped))] == []


@pytest.mark.kafka
@pytest.mark.spark
def test_the_demo_runs_from_the_wheel_in_an_empty_environment(built: Built, tmp_path: Path) -> None:
    """Its dependencies, and nothing else, come with it from the package index."""
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python, penstock = (tmp_path / "env" / "bin" / name for name in ("python", "penstock"))
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
    run(*pip, "install", "--quiet", f"{built.wheel}[demo]", cwd=tmp_path)
    run(*pip, "check", cwd=tmp_path)
    version = f"penstock {PYPROJECT['project']['version']}"
    assert run(python, "-m", "penstock", "--version", cwd=tmp_path).strip() == version
    assert "equal to the last digit" in run(penstock, "demo", "--no-faults", cwd=tmp_path)


def test_the_version_is_the_same_everywhere() -> None:
    import penstock
    from penstock.schemas.versions import RELEASE

    assert penstock.__version__ == RELEASE == PYPROJECT["project"]["version"]
