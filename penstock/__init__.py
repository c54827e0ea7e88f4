"""Operator coordinators for Spark: exactly-once events between one coordinator and many subtasks, over Kafka."""

__version__ = "0.1.0"
