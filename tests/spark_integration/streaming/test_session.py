"""What is checked of a session and a job before a query may read it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock import Job, OperatorCoordinator
from penstock.schemas.errors import ConfigurationError
from penstock.spark_integration.session_checks import missing_modules
from penstock.spark_integration.streaming.query import stream


def test_modules_that_workers_lack_are_found_without_importing_them(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("raise SystemExit('imported')")
    assert missing_modules(
        sys.executable, [str(tmp_path)], ["json", "only_there", "not_there", "not_there.at_all"]
    ) == [
        "not_there",
        "not_there.at_all",
    ]


def test_a_python_that_cannot_be_started_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be started as 'no-such-python' .*set PYSPARK_PYTHON"):
        missing_modules("no-such-python", [], ["json"])


def job_of(*operators: str, codec: object = None) -> Job:
    job = Job("flights")
    for name in operators:
        job.operator(name, coordinator=OperatorCoordinator, parallelism=1, codec=codec)  # type: ignore[arg-type]
    return job


def test_a_job_that_no_query_can_read_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigurationError, match="needs exactly one operator, with a coordinator"):
        stream(None, job_of("one", "two"), broker="127.0.0.1:1")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="coordinator is 'here'; use 'driver' or 'elsewhere'"):
        stream(None, job_of("one"), broker="127.0.0.1:1", coordinator="here")  # type: ignore[arg-type]
    union = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]}
    with pytest.raises(ConfigurationError, match="field 'x' of the event is a union of int, string"):
        stream(None, job_of("one", codec=union), broker="127.0.0.1:1")  # type: ignore[arg-type]
