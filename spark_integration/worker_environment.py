"""The executors' Python: what it lacks, in one line, when a task has died of that. No retry cures it."""

from __future__ import annotations

import re
import sys

_PACK = "pack an environment with penstock pack and submit it with the spark-submit line that it prints"
_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
_NO_PYTHON = re.compile(r"penstock: (.* has no Python .*)")


def wrong_environment(reason: str) -> str | None:
    """Return what is wrong and the way out; None if the task has died of something else."""
    if (found := _NO_PYTHON.search(reason)) is not None:
        return found[1]
    if (found := _MODULE.search(reason)) is not None:
        name = found[1].partition(".")[0]
        install = "penstock-spark" if name == "penstock" else "what brings it"
        return (
            f"the workers' Python has no module {name!r}. Install {install} into the Python that the executors run"
            f" (spark.pyspark.python), or {_PACK}; modules of your own also travel with spark-submit --py-files"
        )
    if (found := _NO_PROGRAM.search(reason)) is not None:
        return (
            f"the executors cannot start {found[1]!r} as Python (spark.pyspark.python, or PYSPARK_PYTHON): install it"
            f" there, or {_PACK}: --archives FILE#environment goes with ./environment/bin/python"
        )
    if "PYTHON_VERSION_MISMATCH" in reason:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"the workers' Python has another version than the driver's, {here}: set spark.pyspark.python to a Python"
            f" {here} that the executors have, or {_PACK}"
        )
    return None
