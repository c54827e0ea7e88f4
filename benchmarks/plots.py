"""``python -m benchmarks.plots RUN.json --into FOLDER``: draw what ``python -m benchmarks --json`` measured."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from .report import document_at

Row: TypeAlias = dict[str, Any]
"""A figure, as the document has it."""
Draw: TypeAlias = Callable[[Picture, Sequence[Row]], None]

OURS, RAW, GOAL = "#1f6f8b", "#b0b0b0", "#c0392b"
_STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
_SIDES = re.compile(r", (\d+ subtasks?|\d+ to \d+(?: by key)?)(?:, )?")
_SUBTASKS = re.compile(r"([\d,]+) subtasks?$")
_PARTITIONS = re.compile(r"(\d+ partitions?): (\w+)$")


def draw(document: dict[str, Any], folder: Path) -> list[Path]:
    """The pictures for which the document has figures, as files in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (part, size, draw_one) in PICTURES.items():
        if rows := [row for row in document["figures"] if row["part"] == part]:
            with mpl.rc_context(_STYLE):
                picture = Picture(figsize=size, layout="constrained")
                draw_one(picture, rows)
                drawn.append(folder / f"benchmark-{name}.png")
                picture.savefig(drawn[-1], dpi=120)
    return drawn


def _bars(picture: Picture, rows: Sequence[Row]) -> None:
    """For each number of subtasks the figures from the slowest to the fastest, ours and raw."""
    sides: dict[str, dict[str, tuple[float, str]]] = {}
    for row in rows:
        if found := _SIDES.search(row["figure"]):
            bars = sides.setdefault(found[1], {})
            bars[_SIDES.sub("\n", row["figure"], count=1).strip()] = row["value"], OURS
            if row["raw definition"].startswith("raw"):
                bars[", ".join(row["raw definition"].split(", ")[:2])] = row["raw"], RAW
    for axes, (side, bars) in zip(picture.subplots(1, len(sides), squeeze=False)[0], sides.items(), strict=True):
        ordered = sorted(bars.items(), key=lambda bar: bar[1][0])
        drawn = axes.barh(
            [name for name, _ in ordered], [value for _, (value, _) in ordered], color=[c for _, (_, c) in ordered]
        )
        axes.bar_label(drawn, fmt=_short, padding=3)
        axes.margins(x=0.15)
        axes.set_title(side)
        axes.set_xlabel(rows[0]["unit"])
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _pairs(picture: Picture, rows: Sequence[Row]) -> None:
    """Ours and raw side by side."""
    axes, places = picture.subplots(), range(len(rows))
    for shift, side, colour, label in ((-0.2, "value", OURS, "Penstock"), (0.2, "raw", RAW, "raw")):
        drawn = axes.bar([at + shift for at in places], [row[side] for row in rows], 0.4, color=colour, label=label)
        axes.bar_label(drawn, fmt=_short, padding=2)
    axes.margins(y=0.1)
    axes.set_xticks(list(places), [row["figure"].replace(" to ", "\nto ").replace(", ", "\n") for row in rows])
    axes.set_ylabel(rows[0]["unit"])
    axes.legend(frameon=False)


def _over_subtasks(picture: Picture, rows: Sequence[Row]) -> None:
    """Ours and raw, log-log, with the goals."""
    axes = picture.subplots()
    points = [(int(found[1].replace(",", "")), row) for row in rows if (found := _SUBTASKS.search(row["figure"]))]
    for side, colour, label in (("value", OURS, "Penstock"), ("raw", RAW, "raw")):
        if seen := sorted((count, row[side]) for count, row in points if row[side] is not None):
            axes.loglog(*zip(*seen, strict=True), "o-", color=colour, label=label)
    bounds = [(n, float(b[1])) for n, row in points if (b := re.search(r"<= ([\d.]+) ms", row["goal"] or ""))]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "v", color=GOAL, label="goal")
    ticks = sorted({count for count, _ in points})
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("subtasks")
    axes.set_ylabel("ms")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, alpha=0.2)
    axes.legend(frameon=False)


def _parts_of_a_batch(picture: Picture, rows: Sequence[Row]) -> None:
    """Ours and what stands beside it, for each number of partitions, one part on top of the other."""
    axes, tops = picture.subplots(), dict[str, float]()
    colours: dict[str, str] = {}
    for row in rows:
        if not (found := _PARTITIONS.search(row["figure"])):
            continue
        partitions, part = found.groups()
        colour = colours.setdefault(part, f"C{len(colours)}")
        label = part if not tops or part not in axes.get_legend_handles_labels()[1] else None
        for side, of in (("value", "Penstock"), ("raw", row["raw definition"])):
            bar = f"{of.replace(' (', chr(10) + '(')}\n{partitions}"
            axes.bar(bar, row[side], 0.6, bottom=tops.get(bar, 0.0), color=colour, label=label)
            tops[bar], label = tops.get(bar, 0.0) + row[side], None
    axes.set_ylabel("ms of a micro-batch of one event")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


PICTURES: dict[str, tuple[str, tuple[float, float], Draw]] = {
    "events": ("events", (11, 3.6), _bars),
    "latency": ("latency", (6.5, 3.6), _pairs),
    "checkpoints": ("checkpoints", (6.5, 4), _over_subtasks),
    "channels": ("channels", (11, 3.2), _bars),
    "micro-batches": ("streaming", (7.5, 4), _parts_of_a_batch),
}
"""Picture to the part that it shows, its size in inches, and who draws it."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("run", type=document_at, metavar="RUN.json", help="what --json has written")
    parser.add_argument("--into", type=Path, default=Path("docs"), metavar="FOLDER", help="(default docs)")
    chosen = parser.parse_args()
    for path in draw(chosen.run, chosen.into):
        print(path)


if __name__ == "__main__":
    main()
