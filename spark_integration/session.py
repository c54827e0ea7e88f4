"""A Spark session for one machine, with everything as long-running tasks need it."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from ..schemas.errors import ConfigurationError
from .session_checks import FAILURES_ADVISED

_log = logging.getLogger(__name__)

DAEMON_MODULE = f"{__package__}.daemon"
_LOOPBACK = "127.0.0.1"
_IMPORT_TIMEOUT_S = 60.0


def local_session(slots: int, app_name: str = "penstock", **conf: str) -> SparkSession:
    """A new session with ``slots`` task slots in this machine's driver process, each for one subtask.

    Dead tasks are started again, no web UI, little on stderr, nothing in the current folder, nothing but loopback.
    ``conf`` are Spark settings by name, over these: ``local_session(4, **{"spark.ui.enabled": "true"})``.

    Workers run this process's Python, are forked from one that has loaded what they need, and end with their task
    (``spark.python.worker.reuse`` is off: a subtask leaves nothing behind). Raises ConfigurationError where a session
    exists already, or where ``slots`` is no number above 0.
    """
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise ConfigurationError(f"slots is {slots!r}; it must be a whole number above 0")
    active = SparkContext._active_spark_context
    if active is not None:
        raise ConfigurationError(
            f"there is a Spark session in this process already (master {active.master}), whose settings cannot be"
            " changed any more: stop() it first, or use it"
        )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log_settings().as_uri()}",
        "spark.log.structuredLogging.enabled": "false",
        "spark.python.task.killTimeout": "100ms",
        "spark.python.worker.reuse": "false",
        "spark.pyspark.python": sys.executable,
        "spark.sql.warehouse.dir": _temporary_folder(),
        **_daemon_settings(),
        **conf,
    }
    # Not from the JVM that an earlier session of this process has left: its master would win over ours.
    base = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    builder = SparkSession.builder.master(f"local[{slots},{FAILURES_ADVISED}]").appName(app_name).config(conf=base)
    return builder.getOrCreate()


def _daemon_settings() -> dict[str, str]:
    """Our daemon, where workers can import it: they have this interpreter, and not this process's ``sys.path``."""
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({DAEMON_MODULE!r}) is None)"
    try:
        found = subprocess.run(
            [sys.executable, "-c", check], capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        found = None
    if found is None or found.returncode != 0:
        raise ConfigurationError(
            f"Spark's workers cannot import {DAEMON_MODULE}: {sys.executable} does not find it outside of this process."
            " Install penstock into that Python (pip install), or put its folder on PYTHONPATH"
        )
    return {"spark.python.daemon.module": DAEMON_MODULE}


def _log_settings() -> Path:
    spec = importlib.util.find_spec(str(__package__))
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))).resolve() / "log4j2.properties"


def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
