"""Each part of the benchmark runs, in seconds, and yields its figures. What they are is nobody's business here."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks.__main__
from benchmarks.figures import Figure
from benchmarks.parts import PARTS, Part, PartFailed, Wish, figures_of

SPARK = {"recovery-on-spark", "streaming", "kafka-source", "tables"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.spark if name in SPARK else pytest.mark.kafka) for name in PARTS]
)
def test_each_part_yields_its_figures(name: str) -> None:
    said: list[str] = []
    found = list(figures_of(PARTS[name], Wish(repeats=1, quick=True), said.append))
    assert found
    for figure in found:
        numbers = [figure.value, *figure.runs, *([] if figure.raw is None else [figure.raw, *figure.raw_runs])]
        assert all(math.isfinite(number) and number >= 0 for number in numbers), figure
        assert figure.definition and (figure.raw is None or figure.raw_definition), figure
    assert len({(figure.name, figure.raw_definition) for figure in found}) == len(found)


@pytest.mark.kafka
def test_a_part_that_raises_fails_with_what_it_raised() -> None:
    with pytest.raises(PartFailed, match="no_such_part"):
        list(figures_of(Part("no_such_part", bound_s=60), Wish(), print))


@pytest.mark.kafka
def test_a_part_is_ended_at_its_bound() -> None:
    with pytest.raises(PartFailed, match="no end within"):
        list(figures_of(Part("events", bound_s=0.5), Wish(), print))


@pytest.mark.parametrize(("ends", "code"), [(PartFailed("no end within 1 s"), 1), (KeyboardInterrupt(), 130)])
def test_what_was_measured_is_told_when_a_part_fails_or_is_interrupted(
    ends: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    begun: list[Part] = []

    def one_figure(part: Part, *_: object) -> Iterator[Figure]:
        begun.append(part)
        yield Figure("one way", "measured before the end", 12.5, "ms")
        raise ends

    monkeypatch.setattr(benchmarks.__main__, "figures_of", one_figure)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "events", "--only", "latency", "--json", f"{tmp_path}/f"])
    assert benchmarks.__main__.main() == code
    printed = capsys.readouterr()
    assert printed.out.count("12.5 ms") == len(begun) == (1 if code == 130 else 2)
    assert ("interrupted" if code == 130 else "events has failed: no end within 1 s") in printed.err
    document = json.loads((tmp_path / "f").read_text())
    assert [figure["figure"] for figure in document["figures"]] == ["one way"] * len(begun)
