"""What a Spark session must be like before a job's tasks may run in it for long. Refuses with the way out.

Every rule reads :class:`SessionFacts`, plain data; :func:`facts_of` takes them from a live session.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from pyspark import SparkContext, SparkFiles

from ..schemas.errors import ConfigurationError, JobRefused
from ..schemas.settings import JobSettings

_log = logging.getLogger(__name__)

FAILURES_MIN = 1_000
"""Least number of failures of one task that Spark must tolerate: the restart budget is the coordinator's, and a killed
executor counts against each of its tasks."""
FAILURES_ADVISED = 1_000_000
EXECUTORS_TIMEOUT_S = 120.0
"""YARN and Kubernetes start executors on demand: containers, an archive to unpack, a queue."""
_SAY_AFTER_S = 15.0
_LOOK_AGAIN_S = 0.1
_IMPORT_TIMEOUT_S = 60.0

_REFUSED = {
    "spark.speculation": "a second copy of a slow task would fence the first, again and again",
    "spark.dynamicAllocation.enabled": "executors would be taken from under tasks that run for as long as the job",
    "spark.excludeOnFailure.enabled": "an excluded executor can leave a subtask without a slot for ever",
    "spark.excludeOnFailure.application.enabled": "an excluded executor can leave a subtask without a slot for ever",
    "spark.excludeOnFailure.taskAndStage.enabled": "an excluded executor can leave a subtask without a slot for ever",
}

_LOCAL = re.compile(r"local(?:\[\s*(?P<threads>[0-9]+|\*)\s*(?:,\s*(?P<failures>[0-9]+)\s*)?\])?\Z")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<workers>[0-9]+)\s*,\s*(?P<cores>[0-9]+)\s*,\s*[0-9]+\s*\]\Z")


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What the rules look at."""

    master: str
    conf: Mapping[str, str]
    processors: int
    """How many the driver's JVM sees: what ``*`` stands for."""
    executor_cores: Callable[[], list[int]]
    """Cores of each executor that has registered, without the driver."""

    @property
    def task_cpus(self) -> Decimal:
        text = self.conf.get("spark.task.cpus", "1")
        try:
            cpus = Decimal(text)
        except InvalidOperation:
            cpus = Decimal(0)
        if not cpus.is_finite() or cpus <= 0:
            raise ConfigurationError(f"spark.task.cpus is {text!r}; it must be a number above 0")
        return cpus

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the driver's JVM, and not on executors."""
        return _LOCAL.match(self.master) is not None

    def slots(self, cores: int) -> int:
        """How many tasks run at once on so many cores of one process."""
        return int(Decimal(cores) // self.task_cpus)


def classic_context(spark: Any) -> SparkContext:
    """The session's SparkContext. Raises JobRefused where it has none: Spark Connect, or a stopped session."""
    try:
        context = spark.sparkContext
    except Exception as error:  # Connect raises one of several errors, by version
        raise JobRefused(
            f"this session is a {type(spark).__module__}.{type(spark).__qualname__} without a SparkContext (Spark"
            " Connect): long-running tasks need classic Spark. Make the session with .master(...), without .remote(...)"
            " and with SPARK_REMOTE unset"
        ) from error
    if getattr(context, "_jsc", None) is None:
        raise JobRefused("the Spark session has been stopped: make a new one (SparkSession.builder.getOrCreate())")
    assert isinstance(context, SparkContext)
    return context


def facts_of(context: SparkContext) -> SessionFacts:
    """What a live session is like."""
    jvm: Any = context._jvm
    return SessionFacts(
        str(context.master),
        dict(context.getConf().getAll()),
        int(jvm.java.lang.Runtime.getRuntime().availableProcessors()),
        lambda: _executor_cores(context),
    )


def _executor_cores(context: SparkContext) -> list[int]:
    executors = context._jsc.sc().statusStore().executorList(True)
    found = (executors.apply(i) for i in range(executors.size()))
    return [int(executor.totalCores()) for executor in found if executor.id() != "driver"]


def check_session(facts: SessionFacts, settings: JobSettings, executors_timeout_s: float = EXECUTORS_TIMEOUT_S) -> None:
    """Raises ConfigurationError or JobRefused where the job's tasks could not run, or not be restarted.

    On a local master that does not retry tasks, as notebooks have it, the job runs and a warning says what ends it.
    """
    refuse_settings(facts)
    require_retries(facts)
    if (warning := without_retries(facts)) is not None:
        _log.warning("job=%s: %s", settings.name, warning)
    require_slots(facts, settings, executors_timeout_s)


def refuse_settings(facts: SessionFacts) -> None:
    """Settings under which Spark moves, doubles or withholds tasks."""
    for name, why in _REFUSED.items():
        value = facts.conf.get(name, "false")
        if value.strip().lower() == "true":
            raise ConfigurationError(f"{name} is {value!r}: {why}. Set it to 'false' for the session")


def refused_settings() -> list[str]:
    """The settings that must not be 'true'."""
    return list(_REFUSED)


def require_retries(facts: SessionFacts) -> None:
    """Raise ConfigurationError where a cluster would give up on a task before the coordinator does."""
    if facts.is_local:
        return
    value = facts.conf.get("spark.task.maxFailures", "4")
    if not value.isdigit() or int(value) < FAILURES_MIN:
        raise ConfigurationError(
            f"spark.task.maxFailures is {value!r}: each restart of a subtask and each lost executor counts against it."
            f" Set it to {FAILURES_ADVISED}; what limits restarts is the job's RestartStrategy"
        )


def without_retries(facts: SessionFacts) -> str | None:
    """Say what ends a job on a local master that does not retry tasks; None on any other master."""
    local = _LOCAL.match(facts.master)
    if local is None or (failures := int(local["failures"] or 1)) >= FAILURES_MIN:
        return None
    return (
        f"on master {facts.master} a task may fail {failures} time(s) at most, so a killed or silent Python worker ends"
        " the job; what user code raises does not, and a later start goes on. To survive killed workers, make the"
        f" session with .master('local[{local['threads'] or 1},{FAILURES_ADVISED}]')"
    )


def require_slots(facts: SessionFacts, settings: JobSettings, executors_timeout_s: float) -> None:
    """Each subtask keeps a slot for as long as the job runs; one without a slot would wait for it in silence."""
    needed = len(settings.subtasks())
    available, where = announced_slots(facts)
    if available is None:
        available, where = _registered_slots(facts, needed, executors_timeout_s)
    if available < needed:
        parts = ", ".join(f"{operator.name} {operator.parallelism}" for operator in settings.operators)
        cpus = "" if facts.task_cpus == 1 else f", spark.task.cpus is {facts.task_cpus}"
        raise JobRefused(
            f"job {settings.name!r} needs {needed} task slots at once ({parts}), and there are {available} ({where}"
            f"{cpus}): give Spark more cores, lower the parallelism, or set spark.task.cpus below 1 (0.25 packs four"
            " subtasks onto a core)"
        )


def announced_slots(facts: SessionFacts) -> tuple[int | None, str]:
    """What the master string says, where it says it."""
    if (local := _LOCAL.match(facts.master)) is not None:
        threads = local["threads"] or "1"
        return facts.slots(facts.processors if threads == "*" else int(threads)), f"master {facts.master}"
    if (cluster := _LOCAL_CLUSTER.match(facts.master)) is not None:
        return int(cluster["workers"]) * facts.slots(int(cluster["cores"])), f"master {facts.master}"
    return None, ""


def _registered_slots(facts: SessionFacts, needed: int, timeout_s: float) -> tuple[int, str]:
    """What has registered, as soon as it is enough."""
    began = time.monotonic()
    deadline, say_at = began + timeout_s, began + _SAY_AFTER_S
    while True:
        cores = facts.executor_cores()
        available = sum(facts.slots(count) for count in cores)
        if available >= needed or time.monotonic() >= deadline:
            where = f"master {facts.master}, {len(cores)} executors with {sum(cores)} cores after {timeout_s:g} s"
            return available, where
        if time.monotonic() >= say_at:
            say_at = deadline
            _log.warning("waiting, %g s at most, for executors on %s: there are %d task slots, and %d are needed",
                         timeout_s, facts.master, available, needed)  # fmt: skip
        time.sleep(_LOOK_AGAIN_S)


_SOURCE_MODULE = "penstock.spark_integration.streaming.source"
_SOURCE_NEEDS = {"pyarrow": "pyarrow", "pandas": "pandas", _SOURCE_MODULE: "penstock"}
"""What a Python data source imports, and what to install for it."""


def require_source_modules(context: SparkContext) -> None:
    """What Spark's Python workers must be able to import for a Python data source.

    Where they cannot, Spark says that a "Python worker failed to connect back", and no more. Looks with the
    interpreter, and on the paths, that the planner's worker will have in this driver; executors have their own.
    """
    folder = SparkFiles.getRootDirectory()
    shipped = [folder, *(str(Path(folder) / name) for name in context._python_includes or [])]
    missing = missing_modules(context.pythonExec, shipped, list(_SOURCE_NEEDS))
    if missing:
        packages = ", ".join(sorted({_SOURCE_NEEDS[name] for name in missing}))
        raise ConfigurationError(
            f"Spark's Python workers ({context.pythonExec}) cannot import {packages}, which a streaming source needs:"
            " pip install 'penstock-spark[streaming]' into that Python, on every machine of the"
            " cluster, or set PYSPARK_PYTHON to one that has it"
        )


def missing_modules(python: str, paths: list[str], modules: list[str]) -> list[str]:
    """Those of ``modules`` that the interpreter ``python`` does not find. It is not asked to run them.

    Raises ConfigurationError where there is no such interpreter, or it does not answer.
    """
    check = (
        "import importlib.util, sys\n"
        "def there(name):\n"
        "    try: return importlib.util.find_spec(name) is not None\n"
        "    except ImportError: return False\n"
        "print(*(name for name in sys.argv[1:] if not there(name)), sep='\\n')"
    )
    path = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))
    try:
        asked = subprocess.run(
            [python, "-c", check, *modules],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"Spark's Python workers cannot be started as {python!r} ({type(error).__name__}): set PYSPARK_PYTHON to a"
            " Python that has pyspark and penstock-spark[streaming]"
        ) from error
    return asked.stdout.split()
