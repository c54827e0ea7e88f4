"""Spark's own Kafka source: its jars, pinned, since no connector of PySpark 4.3.0 can be had from Maven Central.

The connector is of 4.2.0, its token provider of 4.0.0 (the next one that is there); the rest is what its POM names.
"""

from __future__ import annotations

from pathlib import Path

from penstock.broker.pinned_jars import Pin

from .spark_jars import cached_jars

CONNECTOR = "4.2.0"
PINS = (
    Pin("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR,
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705", 494_879),
    Pin("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767", 64_975),
    Pin("org.apache.kafka", "kafka-clients", "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8", 9_220_052),
    Pin("org.apache.commons", "commons-pool2", "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f", 156_457),
    Pin("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0",
        "4eae6e68cf44e9f709970355590ae981883edf6484608d747376a56cbb285432", 1_120_803),
)  # fmt: skip


def kafka_source_jars() -> list[Path]:
    """Return their paths (11 MB). Raises JarsUnavailable, or OSError."""
    return cached_jars(f"spark-kafka-{CONNECTOR}", PINS)
