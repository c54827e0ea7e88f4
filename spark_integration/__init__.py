"""Subtasks as long-running Spark tasks. The only package that knows pyspark."""

if __name__ != "penstock.spark_integration":
    raise ImportError(f"import this package as penstock.spark_integration, not as {__name__}")
