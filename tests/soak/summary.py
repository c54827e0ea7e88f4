"""What ``make soak`` came to: a line for every test that it repeated."""

from __future__ import annotations

import os
from collections import defaultdict
from statistics import median

import pytest

from tests.rounds import ROUNDS_VARIABLE


def write_soak_summary(reporter: pytest.TerminalReporter) -> None:
    """Rounds, failures, seconds; sum and median of whatever numbers a test has told with ``record_property``."""
    if ROUNDS_VARIABLE not in os.environ:
        return
    reports = [r for many in reporter.stats.values() for r in many if isinstance(r, pytest.TestReport)]
    lines = lines_of([report for report in reports if "soak" in report.keywords])
    if lines:
        reporter.section("what the soak tests came to")
        for line in lines:
            reporter.write_line(line)


def lines_of(reports: list[pytest.TestReport]) -> list[str]:
    rounds: dict[str, list[pytest.TestReport]] = defaultdict(list)
    broken: dict[str, set[str]] = defaultdict(set)
    """Rounds that failed, in their setup or behind their end too."""
    for report in reports:
        test = report.nodeid.partition("[")[0]
        if report.when == "call" and not report.skipped:
            rounds[test].append(report)
        if report.failed:
            broken[test].add(report.nodeid)
    return [_line(test, rounds[test], len(broken[test])) for test in sorted({*rounds, *broken})]


def _line(test: str, rounds: list[pytest.TestReport], failed: int) -> str:
    seconds = [report.duration for report in rounds]
    told: dict[str, list[float]] = defaultdict(list)
    for report in rounds:
        for name, value in report.user_properties:
            if isinstance(value, int | float):
                told[name].append(value)
    said = [f"{len(rounds)} rounds", f"{failed} failed"]
    if seconds:
        said.append(f"{median(seconds):.1f} s each (median), {max(seconds):.1f} s at most")
    said += [f"{sum(values):g} {name} (median {median(values):g})" for name, values in told.items()]
    return f"{test}: {', '.join(said)}"
