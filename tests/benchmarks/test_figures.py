"""Figures, goals and what is printed of them."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from benchmarks.figures import Figure, Goal, quantile
from benchmarks.report import Report


def figure(value: float, raw: float | None, goal: Goal | None) -> Figure:
    return Figure("checkpoint, 1 subtask", "to complete", value, "ms", raw, "raw, a transaction", goal)


@pytest.mark.parametrize(
    ("value", "raw", "goal", "met"),
    [
        (10.0, None, Goal("<= 10 ms", at_most=10), True),
        (10.1, None, Goal("<= 10 ms", at_most=10), False),
        (6.0, 10.0, Goal(">= 60 %", "ratio", at_least=0.6), True),
        (5.9, 10.0, Goal(">= 60 %", "ratio", at_least=0.6), False),
        (250.0, 200.0, Goal("<= Spark's + 50 ms", "difference", at_most=50), True),
        (251.0, 200.0, Goal("<= Spark's + 50 ms", "difference", at_most=50), False),
        (5.9, None, Goal(">= 60 %", "ratio", at_least=0.6), None),
        (5.9, None, Goal("<= Spark's + 50 ms", "difference", at_most=50), None),
        (5.9, 10.0, None, None),
    ],
)
def test_a_goal_is_met_missed_or_cannot_be_held_against_anything(
    value: float, raw: float | None, goal: Goal | None, met: bool | None
) -> None:
    assert figure(value, raw, goal).met is met


def test_a_figure_of_runs_is_their_median_on_both_sides() -> None:
    found = Figure.of_runs("events", "all", [3.0, 1.0, 2.0], "events/s", [9.0, 4.0], "raw")
    assert (found.value, found.raw, found.ratio) == (2.0, 6.5, 2.0 / 6.5)
    assert found.runs == (3.0, 1.0, 2.0)


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (51.0, 100.0, 7.0)


def test_the_document_and_the_table_say_figure_counterpart_ratio_and_goal() -> None:
    report = Report(repeats=3, quick=False)
    report.figures["checkpoints"] = [
        figure(12.0, None, Goal("<= 10 ms", at_most=10)),
        figure(8.0, 4.0, Goal("<= 3 times", "ratio", at_most=3)),
    ]
    report.failed["events"] = "no end within 300 s"
    document = json.loads(json.dumps(report.document()))
    assert [(f["part"], f["value"], f["ratio"], f["met"]) for f in document["figures"]] == [
        ("checkpoints", 12.0, None, False),
        ("checkpoints", 8.0, 2.0, True),
    ]
    assert document["failed"] == {"events": "no end within 300 s"}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table())
    printed = console.export_text()
    for words in ("12 ms", "missed", "<= 10 ms", "raw, a transaction", "2.00", "met"):
        assert words in printed
    assert "1 of 2 goals met" in report.summary()
