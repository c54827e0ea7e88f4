"""The summary of a soak counts every round, also one that never began."""

from __future__ import annotations

from typing import Any

import pytest

from .summary import lines_of


def report(test: str, when: str, outcome: str, duration: float = 1.0, **told: Any) -> pytest.TestReport:
    return pytest.TestReport(
        f"tests/x.py::{test}", ("tests/x.py", 1, test), {"soak": 1}, outcome, None, when,  # type: ignore[arg-type]
        duration=duration, user_properties=list(told.items()),
    )  # fmt: skip


def test_rounds_of_one_test_make_one_line_with_sums_and_medians() -> None:
    reports = [
        report("test_a[0-aligned]", "call", "passed", 1.0, deaths=1, faults=2),
        report("test_a[0-unaligned]", "call", "passed", 2.0, deaths=3, faults=2),
        report("test_a[1-aligned]", "call", "failed", 9.0),
        report("test_b", "setup", "failed"),
        report("test_c", "call", "skipped"),
    ]
    assert lines_of(reports) == [
        "tests/x.py::test_a: 3 rounds, 1 failed, 2.0 s each (median), 9.0 s at most, 4 deaths (median 2),"
        " 4 faults (median 2)",
        "tests/x.py::test_b: 0 rounds, 1 failed",
    ]
