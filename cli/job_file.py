"""Finds the job in a user's file: `FILE.py` or `FILE.py:name`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..job import Job
from ..schemas.errors import PenstockError
from .exits import UsageError

DEFAULT_NAME = "job"

_loaded: set[str] = set()
"""Names of the job files that this process has run: another one may take the name of an earlier one."""


def load_job(where: str) -> Job:
    """Runs the file and returns the Job of that name, or what the function of that name returns.

    What stands beside the file can be imported by it. UsageError for everything that is wrong with it, and for what its
    own code raises, with the file's own lines in the traceback (--debug).
    """
    file, colon, name = where.rpartition(":")
    if not colon or not name.isidentifier():
        file, name = where, DEFAULT_NAME
    path = Path(file)
    try:
        exists, is_file = path.exists(), path.is_file()
    except OSError as error:  # a name that no file can have
        raise UsageError(f"{file} cannot be a job file: {error.strerror}") from None
    if not exists:
        raise UsageError(f"there is no job file {file}")
    if path.suffix != ".py" or not is_file:
        raise UsageError(f"{file} is no Python file: penstock run FILE.py, or FILE.py:NAME")
    path = path.resolve()
    found = getattr(_module(path), name, None)
    if found is None:
        raise UsageError(f"{file} defines no {name!r}: name the variable that holds the job, as in {file}:my_job")
    job = found
    if callable(found) and not isinstance(found, Job):
        with _told(path):
            job = found()
    if not isinstance(job, Job):
        raise UsageError(
            f"{name!r} in {file} is a {type(job).__name__}, not a penstock.Job or a function returning one"
        )
    return job


def _module(path: Path) -> object:
    stem = path.stem
    if stem in sys.modules and stem not in _loaded:
        raise UsageError(f"{path}: a module named {stem!r} is loaded already: give the file another name")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _loaded.add(stem)
    sys.modules[stem] = module  # dataclasses look there for the module they stand in
    with _told(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the file's own code raises into a UsageError that names the line."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        line = _line_in(path, error)
        raise UsageError(f"{path}{line}: {type(error).__name__}: {error} (penstock --debug ... shows where)") from error


def _line_in(path: Path, error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f", line {error.lineno}"
    line, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
