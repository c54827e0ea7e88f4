"""Makes the data source known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..session_checks import require_source_modules
from .source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_source(spark: SparkSession) -> None:
    """Make ``spark.readStream.format("penstock")`` and ``df.writeStream.format("penstock")`` known to a session.

    It is all that a query needs whose job's coordinator runs elsewhere.

    Raises ConfigurationError where Spark's Python workers lack what a Python data source needs.
    """
    context: Any = getattr(spark, "_sc", None)  # none with Spark Connect, whose workers are the server's
    if context is not None:
        require_source_modules(context)
    spark.dataSource.register(PenstockSource)
