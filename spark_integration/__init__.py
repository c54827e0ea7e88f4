"""Subtasks as long-running Spark tasks. The only package that knows pyspark.

::

    spark = penstock.spark_integration.local_session(slots=4)
    with penstock.spark_integration.run(spark, job, broker="127.0.0.1:9092") as handle:
        handle.wait()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "penstock.spark_integration":
    raise ImportError(f"import this package as penstock.spark_integration, not as {__name__}")

if TYPE_CHECKING:
    from .handle import JobHandle
    from .results import JobResult
    from .runner import run
    from .session import local_session

__all__ = ["JobHandle", "JobResult", "local_session", "run"]

_HOMES = {"JobHandle": "handle", "JobResult": "results", "run": "runner", "local_session": "session"}


def __getattr__(name: str) -> Any:
    # Workers import this package for its task alone, and need nothing of the driver's side.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
