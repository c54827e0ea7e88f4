"""``python -m benchmarks.compare RUN.json RUN.json ...``: what several runs have measured, as one table in Markdown."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .report import document_at, number

HEAD = ("figure", "measured", "beside it", "which is", "ratio", "goal", "met")


def table(documents: Sequence[dict[str, Any]]) -> str:
    """The figures of the first run, each with what the others have of it (a dash for nothing)."""
    runs = [_by_place(document["figures"]) for document in documents]
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    lines += [_line(_cells([run.get(place) for run in runs])) for place in runs[0]]
    return "\n".join(lines)


def _by_place(figures: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """By name, and which of that name it is: a figure may stand beside several others."""
    seen, found = Counter[str](), {}
    for figure in figures:
        name = figure["figure"]
        found[name, seen[name]] = figure
        seen[name] += 1
    return found


def _cells(of_runs: Sequence[dict[str, Any] | None]) -> Sequence[str]:
    first = of_runs[0]
    assert first is not None, "the places are the first run's"
    unit = f" {first['unit']}" if first["unit"] else ""
    return (
        first["figure"],
        _joined(of_runs, "value") + unit,
        _joined(of_runs, "raw"),
        first["raw definition"],
        _joined(of_runs, "ratio", "{:.2f}".format),
        first["goal"] or "",
        " / ".join("-" if figure is None else {True: "yes", False: "no"}.get(figure["met"], "") for figure in of_runs)
        if first["met"] is not None
        else "",
    )


def rounded(value: float) -> str:
    """Large ones to three digits too: no more than they are worth."""
    return number(float(f"{value:.3g}"))


def _joined(of_runs: Sequence[dict[str, Any] | None], key: str, said: Callable[[float], str] = rounded) -> str:
    values = [None if figure is None else figure[key] for figure in of_runs]
    return "" if values[0] is None else " / ".join("-" if value is None else said(value) for value in values)


def _line(cells: Iterable[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("runs", type=document_at, nargs="+", metavar="RUN.json", help="what --json has written")
    print(table(parser.parse_args().runs))


if __name__ == "__main__":
    main()
