"""Jobs on Spark: subtasks as long-running tasks, or a Structured Streaming query. The only package that knows pyspark.

::

    spark = penstock.spark_integration.local_session(slots=4)
    with penstock.spark_integration.run(spark, job, broker="127.0.0.1:9092") as handle:
        handle.wait()

    with penstock.spark_integration.stream(spark, job, broker="127.0.0.1:9092") as handle:
        query = handle.read_stream().writeStream.foreachBatch(write).option("checkpointLocation", folder).start()
        query.awaitTermination()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "penstock.spark_integration":
    raise ImportError(f"import this package as penstock.spark_integration, not as {__name__}")

if TYPE_CHECKING:
    from .dataframe_input import DataFrameInput, spread
    from .handle import JobHandle
    from .result_files import read_results
    from .results import JobResult
    from .runner import run
    from .session import local_session
    from .streaming.foreach_batch import Batch, exactly_once
    from .streaming.query import stream
    from .streaming.query_handle import QueryHandle
    from .streaming.registration import register_source

__all__ = [
    "Batch",
    "DataFrameInput",
    "JobHandle",
    "JobResult",
    "QueryHandle",
    "exactly_once",
    "local_session",
    "read_results",
    "register_source",
    "run",
    "spread",
    "stream",
]

_HOMES = {
    "Batch": "streaming.foreach_batch",
    "DataFrameInput": "dataframe_input",
    "JobHandle": "handle",
    "JobResult": "results",
    "QueryHandle": "streaming.query_handle",
    "exactly_once": "streaming.foreach_batch",
    "local_session": "session",
    "read_results": "result_files",
    "register_source": "streaming.registration",
    "run": "runner",
    "spread": "dataframe_input",
    "stream": "streaming.query",
}


def __getattr__(name: str) -> Any:
    # Workers import this package for its task alone, and need nothing of the driver's side.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
