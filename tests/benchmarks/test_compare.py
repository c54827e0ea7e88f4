"""Several runs of the benchmark side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare, plots
from benchmarks.compare import rounded, table
from benchmarks.figures import Figure, Goal

LATENCY = Figure(
    "send to handled", "one at a time", 0.8312, "ms", 0.5, "raw", Goal("<= 1.5 times", "ratio", at_most=1.5)
)
MEMORY = Figure("memory", "of the process", 51_234.0, "kB")


def document(*figures: Figure) -> dict[str, Any]:
    return {"figures": [figure.as_json() for figure in figures]}


def test_each_figure_has_what_every_run_says_of_it() -> None:
    lines = table([document(LATENCY, MEMORY), document(replace(LATENCY, value=0.7), MEMORY)]).splitlines()
    assert lines[0] == "| figure | measured | beside it | which is | ratio | goal | met |"
    assert lines[2] == "| send to handled | 0.831 / 0.7 ms | 0.5 / 0.5 | raw | 1.66 / 1.40 | <= 1.5 times | no / yes |"
    assert lines[3] == "| memory | 51,200 / 51,200 kB | | | | | |"


def test_figures_of_one_name_are_told_apart_by_their_order() -> None:
    other = replace(LATENCY, raw=0.6, raw_definition="something else")
    lines = table([document(LATENCY, other), document(LATENCY, replace(other, raw=0.4))]).splitlines()
    assert [line.split(" | ")[2] for line in lines[2:]] == ["0.5 / 0.5", "0.6 / 0.4"]


def test_what_a_run_has_not_is_a_dash() -> None:
    lines = table([document(LATENCY, MEMORY), document(MEMORY)]).splitlines()
    assert lines[2] == "| send to handled | 0.831 / - ms | 0.5 / - | raw | 1.66 / - | <= 1.5 times | no / - |"


def test_numbers_have_three_digits_that_count() -> None:
    assert [rounded(value) for value in (1_234_567.0, 123.4, 12.34, 0.012345)] == ["1,230,000", "123", "12.3", "0.0123"]


@pytest.mark.parametrize("tool", [compare.main, plots.main])
@pytest.mark.parametrize("text", [None, "no json", '{"figures": 1}'], ids=["missing", "no-json", "no-figures"])
def test_a_document_that_cannot_be_read_is_said_in_one_line(
    tool: Callable[[], None],
    text: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "run.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["tool", str(file)])
    with pytest.raises(SystemExit, match="2"):
        tool()
    said = capsys.readouterr().err.splitlines()
    assert f"{file} is no document of python -m benchmarks --json: " in said[-1]
    assert not any("Traceback" in line for line in said)
