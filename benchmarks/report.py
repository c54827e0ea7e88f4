"""What a run has come to: one document for programs, one table for people."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from .figures import Figure


def document_at(path: str) -> dict[str, Any]:
    """Read the document that ``--json`` wrote. A type for argparse, which prints in one line why it cannot be read."""
    try:
        document = json.loads(Path(path).read_text())
        if isinstance(document, dict) and isinstance(document.get("figures"), list):
            return document
        why = "it has no list of figures"
    except (OSError, ValueError) as error:
        why = str(error)
    raise argparse.ArgumentTypeError(f"{path} is no document of python -m benchmarks --json: {why}")


@dataclass
class Report:
    """Figures by part, and what happened meanwhile."""

    repeats: int
    quick: bool
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by part."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each part took."""
    load_before: tuple[float, float, float] = field(default_factory=os.getloadavg)
    began: float = field(default_factory=time.time)

    def document(self) -> dict[str, Any]:
        return {
            "machine": platform.platform(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
            "load average before": self.load_before,
            "load average behind": os.getloadavg(),
            "repeats": self.repeats,
            "quick": self.quick,
            "seconds": {part: round(taken, 1) for part, taken in self.seconds.items()},
            "failed": self.failed,
            "figures": [{"part": part, **figure.as_json()} for part, found in self.figures.items() for figure in found],
        }

    def table(self) -> Table:
        title = "Penstock, tried out: these figures mean nothing" if self.quick else "Penstock, measured"
        table = Table("figure", "definition", title=title)
        for name in ("measured", "beside it"):
            table.add_column(name, justify="right")
        table.add_column("which is")
        table.add_column("ratio", justify="right", no_wrap=True)
        table.add_column("goal")
        table.add_column("")
        for found in self.figures.values():
            table.add_section()
            above: Figure | None = None
            for figure in found:
                table.add_row(*_row(figure, above))
                above = figure
        return table

    def summary(self) -> str:
        """How many goals are met, how long it took, and on what machine."""
        met = [f.met for found in self.figures.values() for f in found if f.met is not None]
        took = ", ".join(f"{part} {taken:.0f} s" for part, taken in self.seconds.items())
        before, behind = (", ".join(f"{load:.1f}" for load in loads) for loads in (self.load_before, os.getloadavg()))
        return (
            f"{sum(met)} of {len(met)} goals met; {took}. Load average (1, 5, 15 minutes) before: {before}; behind: "
            f"{behind}. Beside other work these figures are worthless."
        )


def _row(figure: Figure, above: Figure | None) -> tuple[str, ...]:
    """Cells that say what the row above says stay empty."""
    same_name = above is not None and above.name == figure.name
    same_raw = above is not None and above.raw_definition == figure.raw_definition
    same_definition = above is not None and above.definition == figure.definition
    same_value = same_name and same_definition and above is not None and above.value == figure.value
    met = figure.met
    return (
        "" if same_name else figure.name,
        "" if same_definition else figure.definition,
        "" if same_value else f"{number(figure.value)} {figure.unit}",
        "" if figure.raw is None else number(figure.raw),
        "" if same_raw else figure.raw_definition,
        _held(figure),
        "" if figure.goal is None else figure.goal.text,
        "" if met is None else "met" if met else "missed",
    )


def _held(figure: Figure) -> str:
    """How the two sides compare: as the goal says, or as a ratio."""
    if figure.raw is None or figure.ratio is None:
        return ""
    if figure.goal is not None and figure.goal.of == "difference":
        return f"{figure.value - figure.raw:+.3g} {figure.unit}"
    return f"{figure.ratio:.2f}"


def number(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
