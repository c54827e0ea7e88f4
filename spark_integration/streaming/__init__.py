"""Operators driven by a Structured Streaming query: a micro-batch is a checkpoint (protocol, section 10).

:mod:`.source` is the Python data source ``penstock``; Spark's own processes plan with it (:mod:`.planner`) and read
with it (:mod:`.reading`). :mod:`.query` and :mod:`.query_handle` are the driver's side.
"""

from __future__ import annotations

if __name__ != "penstock.spark_integration.streaming":
    raise ImportError(f"import this package as penstock.spark_integration.streaming, not as {__name__}")
