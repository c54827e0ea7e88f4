"""Spark's own Delta writer: its jars, pinned, since no build for Spark 4.3 can be had from Maven Central.

That of Spark 4.2 writes a new table under 4.3.0. It cannot read one back there, nor append.
"""

from __future__ import annotations

from pathlib import Path

from penstock.broker.pinned_jars import Pin

from .spark_jars import cached_jars

VERSION = "4.4.0"
PINS = (
    Pin("io.delta", "delta-spark_4.2_2.13", VERSION,
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead", 9_515_916),
    Pin("io.delta", "delta-storage", VERSION,
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc", 113_863),
)  # fmt: skip
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta_jars() -> list[Path]:
    """Return their paths (10 MB). Raises JarsUnavailable, or OSError."""
    return cached_jars(f"spark-delta-{VERSION}", PINS)
