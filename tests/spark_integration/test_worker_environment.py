"""A task that dies because its executor's Python lacks something ends the run with one line that says what."""

from __future__ import annotations

import re
import sys

import pytest

from penstock.spark_integration.worker_environment import wrong_environment

_HEAD = "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown: Traceback\n"
_TAIL = "\n SQLSTATE: 38000\n\tat org.apache.spark.api.python.PythonRunner(PythonRunner.scala:1)\n"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "ModuleNotFoundError: No module named 'penstock'",
            r"no module 'penstock'\. Install penstock-spark .*penstock",
        ),
        ("ModuleNotFoundError: No module named 'penstock.schemas'", r"no module 'penstock'\. Install penstock-spark "),
        ("ModuleNotFoundError: No module named 'ejob'", r"no module 'ejob'\. Install what brings it .*--py-files"),
        (
            'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory',
            r"cannot start './environment/bin/python' .*--archives FILE#environment",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has"
            " different version: 3.9 than that in driver: 3.11",
            rf"another version than the driver's, {sys.version_info.major}\.{sys.version_info.minor}: .*penstock pack",
        ),
        (
            "Error from python worker:\n  penstock: node7 has no Python 3.11 for x86_64, neither /usr/bin/python3 nor"
            " on the PATH: install it there\nPYTHONPATH was:",
            r"^node7 has no Python 3\.11 for x86_64, .*install it there$",
        ),
    ],
    ids=["penstock", "a part of it", "the user's module", "no interpreter", "another version", "a packed environment"],
)
def test_what_the_executors_lack_is_one_line_with_a_way_out(reason: str, expected: str) -> None:
    advice = wrong_environment(_HEAD + reason + _TAIL)
    assert advice is not None
    assert re.search(expected, advice)
    assert "\n" not in advice


@pytest.mark.parametrize("reason", ["ValueError: No module", "ExecutorLostFailure (executor 1 exited)", ""])
def test_another_death_is_not_taken_for_a_lack(reason: str) -> None:
    assert wrong_environment(reason) is None
