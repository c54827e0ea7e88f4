"""How a user's classes reach the workers: by name where workers have the module too, else by value.

A job's own file is loaded by path, and so is what stands beside it: workers cannot import either. So modules that are
not installed travel by value, with the functions and classes that they refer to.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import logging
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import py4j
import pyspark.cloudpickle

from ..job import Job, Operator
from ..schemas.errors import ConfigurationError
from .task import OperatorParts

_log = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0]
_registering = threading.Lock()
_cloudpickle: Any = pyspark.cloudpickle
"""Spark's own copy, which is untyped."""
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")
# By name: a dataclass that travels by value would else have fields whose missing defaults are defaults.


def pickled_operators(job: Job, shipped: Iterable[Path] = ()) -> dict[str, bytes]:
    """Each operator's subtask factory and codecs, for :class:`TaskPlan`.

    ``shipped`` are folders whose modules Spark itself brings to the workers (``addPyFile``). Raises
    ConfigurationError for what cannot be pickled.
    """
    modules = user_modules(shipped)
    return {name: _pickled(job, operator, modules) for name, operator in job.operators.items()}


def _pickled(job: Job, operator: Operator, modules: list[ModuleType]) -> bytes:
    parts = OperatorParts(
        operator.subtask,
        operator.codec,
        operator.state_codec,
        operator.output_codec,
        operator.input_codecs,
        operator.keys,
    )
    try:
        with _by_value(modules):
            return bytes(_cloudpickle.dumps(parts))
    except Exception as error:
        reason = error
    try:  # a module may hold what cannot travel (a lock, a connection); perhaps the workers can import it
        by_name = bytes(_cloudpickle.dumps(parts))
    except Exception:
        raise ConfigurationError(
            f"operator {operator.name!r} of job {job.name!r} cannot be sent to Spark's workers:"
            f" {type(reason).__name__}: {reason}. Its subtask, codecs and key functions must not refer to open"
            " files, locks or clients: make those in Subtask.open()"
        ) from reason
    _log.warning(
        "operator %r of job %r travels by the names of its modules, because their contents cannot be pickled (%s: %s):"
        " Spark's workers must be able to import them (spark-submit --py-files, or addPyFile)",
        operator.name,
        job.name,
        type(reason).__name__,
        reason,
    )
    return by_name


def user_modules(shipped: Iterable[Path] = ()) -> list[ModuleType]:
    """Loaded modules that are neither installed, nor ours, nor brought to the workers by Spark."""
    installed = _installed_folders() | set(shipped)
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and name == module.__name__ != "__main__"
        and name.partition(".")[0] != _PACKAGE
        and (file := getattr(module, "__file__", None)) is not None
        and not any(folder in Path(file).parents for folder in installed)
    ]


def _installed_folders() -> set[Path]:
    """Return where installed packages lie, Spark's own included: spark-submit imports these from SPARK_HOME."""
    paths = sysconfig.get_paths()
    folders = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    folders += [str(Path(package.__path__[0]).parent) for package in (pyspark, py4j)]
    return {way for folder in folders for way in (Path(folder), Path(folder).resolve())}


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    with _registering:
        known = _cloudpickle.cloudpickle.list_registry_pickle_by_value()
        new = [module for module in modules if module.__name__ not in known]
        for module in new:
            _cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in new:
                _cloudpickle.unregister_pickle_by_value(module)
