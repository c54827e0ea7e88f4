"""Each part of the benchmark runs, in seconds, and yields its figures. What they are is nobody's business here."""

from __future__ import annotations

import math

import pytest

from benchmarks.parts import PARTS, Part, PartFailed, Wish, figures_of

SPARK = {"recovery-on-spark", "streaming"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.spark if name in SPARK else pytest.mark.kafka) for name in PARTS]
)
def test_each_part_yields_its_figures(name: str) -> None:
    said: list[str] = []
    found = figures_of(PARTS[name], Wish(repeats=1, quick=True), said.append)
    assert found
    for figure in found:
        numbers = [figure.value, *figure.runs, *([] if figure.raw is None else [figure.raw, *figure.raw_runs])]
        assert all(math.isfinite(number) and number >= 0 for number in numbers), figure
        assert figure.definition and (figure.raw is None or figure.raw_definition), figure
    assert len({(figure.name, figure.raw_definition) for figure in found}) == len(found)


@pytest.mark.kafka
def test_a_part_that_raises_fails_with_what_it_raised() -> None:
    with pytest.raises(PartFailed, match="no_such_part"):
        figures_of(Part("no_such_part", bound_s=60), Wish(), print)


@pytest.mark.kafka
def test_a_part_is_ended_at_its_bound() -> None:
    with pytest.raises(PartFailed, match="no end within"):
        figures_of(Part("events", bound_s=0.5), Wish(), print)
