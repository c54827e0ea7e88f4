"""Finding the job in a user's file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.exits import UsageError
from penstock.cli.job_file import load_job
from penstock.schemas.errors import ConfigurationError

HEAD = """
import penstock
def made(name):
    job = penstock.Job(name)
    job.operator('a', subtask=penstock.Subtask, parallelism=1)
    return job
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_variable_named_job_is_the_default_and_any_other_can_be_named(folder: Path) -> None:
    file = folder / "two_jobs.py"
    file.write_text(HEAD + "job = made('one')\nother = made('two')\n")
    assert load_job(str(file)).name == "one"
    assert load_job(f"{file}:other").name == "two"


def test_a_function_that_returns_a_job_will_do(folder: Path) -> None:
    file = folder / "by_function.py"
    file.write_text(HEAD + "def job():\n    return made('late')\n")
    assert load_job(str(file)).name == "late"


def test_what_stands_beside_the_file_can_be_imported(folder: Path) -> None:
    (folder / "beside_it.py").write_text("NAME = 'from-beside'\n")
    file = folder / "imports_beside.py"
    file.write_text(HEAD + "import beside_it\njob = made(beside_it.NAME)\n")
    assert load_job(str(file)).name == "from-beside"


@pytest.mark.parametrize(
    ("source", "where", "said"),
    [
        ("x = 1\n", "", "defines no 'job'"),
        ("job = 3\n", "", "'job' in {file} is a int"),
        ("job = None\n", ":nothing", "defines no 'nothing'"),
        ("x = 1\ny = x / 0\n", "", "{file}, line 2: ZeroDivisionError"),
        ("x = (\n", "", "{file}, line 1: SyntaxError"),
        ("import penstock\njob = penstock.Job('Not Allowed')\n", "", "'Not Allowed' cannot be part of a topic name"),
    ],
)
def test_a_file_that_is_wrong_is_told_with_its_line(folder: Path, source: str, where: str, said: str) -> None:
    file = folder / "wrong_job.py"
    file.write_text(source)
    with pytest.raises(ConfigurationError) as raised:
        load_job(f"{file}{where}")
    assert said.format(file=file) in str(raised.value)


def test_a_name_that_would_hide_a_loaded_module_is_refused(folder: Path) -> None:
    file = folder / "json.py"
    file.write_text("")
    with pytest.raises(UsageError, match="give the file another name"):
        load_job(str(file))


def test_a_file_that_is_no_python_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="is no Python file"):
        load_job(str(folder))


def test_what_a_job_function_raises_is_told_with_its_line(folder: Path) -> None:
    file = folder / "raises.py"
    file.write_text("def job():\n    return {}['nothing']\n")
    with pytest.raises(UsageError, match=r"raises\.py, line 2: KeyError: 'nothing'"):
        load_job(str(file))


def test_a_name_that_no_file_can_have_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be a job file: File name too long"):
        load_job(f"{folder / ('x' * 300)}.py")
