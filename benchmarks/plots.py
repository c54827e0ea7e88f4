"""``python -m benchmarks.plots FILE --into FOLDER``: pictures of what ``python -m benchmarks --json FILE`` measured."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

Document: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
"""A figure, as the document has it."""

OURS, RAW, GOAL = "#1f6f8b", "#b8b8b8", "#c0392b"
_SUBTASKS = re.compile(r"(?P<what>.*?checkpoint.*?), (?P<count>[\d,]+) subtasks?(?:, (?P<where>.*))?$")


def draw(document: Document, folder: Path) -> list[Path]:
    """The pictures for which the document has figures, as files in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (part, width, height, draw_one) in PICTURES.items():
        rows = [row for row in document["figures"] if row["part"] == part]
        if not rows:
            continue
        with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
            picture = Picture(figsize=(width, height), layout="constrained")
            draw_one(picture.subplots(), rows)
            path = folder / f"benchmark-{name}.png"
            picture.savefig(path, dpi=120)
        drawn.append(path)
    return drawn


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    """One bar for each figure, and one for each of its counterparts."""
    bars: dict[str, tuple[float, str]] = {}
    for row in rows:
        bars.setdefault(row["figure"], (row["value"], OURS))
    for row in rows:
        if row["raw definition"].startswith("raw"):
            bars.setdefault(f"{row['raw definition'].split(',')[0]}, {_short(row)}", (row["raw"], RAW))
    names, values = list(bars), [value for value, _ in bars.values()]
    drawn = axes.barh(names, values, color=[colour for _, colour in bars.values()])
    axes.bar_label(drawn, fmt=_engineering, padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(rows[0]["unit"])
    axes.xaxis.set_major_formatter(lambda value, _: _engineering(value))


def _short(row: Row) -> str:
    """What kind of counterpart it is, and for which parallelism."""
    kind = row["raw definition"].split(",")[1].strip()
    return f"{kind} ({', '.join(word for word in row['figure'].split(', ') if re.match(r'[0-9]', word))})"


def _engineering(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _pairs(axes: Axes, rows: Sequence[Row]) -> None:
    """Ours and raw side by side, and the goal as a mark."""
    places = range(len(rows))
    axes.bar([at - 0.2 for at in places], [row["value"] for row in rows], 0.4, color=OURS, label="Penstock")
    axes.bar([at + 0.2 for at in places], [row["raw"] for row in rows], 0.4, color=RAW, label="raw")
    axes.set_xticks(list(places), [row["figure"].replace(", ", "\n") for row in rows])
    axes.set_ylabel(rows[0]["unit"])
    axes.legend(frameon=False)


def _over_subtasks(axes: Axes, rows: Sequence[Row]) -> None:
    """Log-log, with the goals."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if found := _SUBTASKS.match(row["figure"]):
            count = int(found["count"].replace(",", ""))
            lines.setdefault(found["what"], []).append((count, row["value"]))
            if row["goal"] and (bound := re.search(r"<= ([\d,.]+) ms", row["goal"])):
                label = None if axes.get_legend_handles_labels()[1].count("goal") else "goal"
                axes.plot(count, float(bound[1].replace(",", "")), "v", color=GOAL, label=label)
    for what, points in lines.items():
        axes.loglog(*zip(*sorted(points), strict=True), "o-", label=what)
    axes.set_xlabel("subtasks")
    axes.set_ylabel("ms")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(frameon=False)


PICTURES: dict[str, tuple[str, float, float, Callable[[Axes, Sequence[Row]], None]]] = {
    "events": ("events", 9, 5, _bars),
    "latency": ("latency", 6, 3.5, _pairs),
    "checkpoints": ("checkpoints", 6, 4, _over_subtasks),
    "channels": ("channels", 9, 4, _bars),
}
"""Picture to the part that it shows, its size in inches, and who draws it."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("file", type=Path, help="what --json has written")
    parser.add_argument("--into", type=Path, default=Path("docs"), metavar="FOLDER", help="(default docs)")
    chosen = parser.parse_args()
    for path in draw(json.loads(chosen.file.read_text()), chosen.into):
        print(path)


if __name__ == "__main__":
    main()
