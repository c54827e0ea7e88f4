"""Of what Spark tells of a dead task, a failure's cause is the part that helps."""

from __future__ import annotations

import pytest

from penstock.spark_integration.supervisor import _summary

RAISED = """org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown: \
Traceback (most recent call last):
  File "pyspark/worker.py", line 4222, in process
    serializer.dump_stream(out_iter, outfile)
  File "job.py", line 6, in handle_operator_event
    raise ValueError("two lines")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: two
lines
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""
CRASHED = """org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
"""
LOST = """ExecutorLostFailure (executor 2 exited) Reason: Container from a bad node: c_3. Exit status: 137.
[10:00]Container exited with a non-zero exit code 137.
.
"""


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (RAISED, "ValueError: two lines"),
        (CRASHED, "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."),
        ("ExecutorLostFailure (executor 1 exited)", "ExecutorLostFailure (executor 1 exited)"),
        (LOST, " ".join(LOST.splitlines()[:2])),
        ("", ""),
    ],
    ids=["a task that raised", "a worker that crashed", "an executor that was lost", "one that YARN lost", "nothing"],
)
def test_the_error_itself_is_the_cause(reason: str, cause: str) -> None:
    assert _summary(reason) == cause
