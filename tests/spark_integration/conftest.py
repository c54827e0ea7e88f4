"""A Spark session for each file; jobs get names of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.spark_integration import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS = 4


@pytest.fixture(scope="module")  # not longer: other tests of this process start sessions with settings of their own
def spark() -> Iterator[SparkSession]:
    session = local_session(SLOTS)
    yield session
    session.stop()


@pytest.fixture
def job_name() -> str:
    """Unique among the tests' jobs."""
    return f"spark-{next(_numbers)}"


_numbers = itertools.count()
