"""``python -m benchmarks.plots RUN.json --into FOLDER``: draw what ``python -m benchmarks --json`` measured."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from .report import document_at

Row: TypeAlias = dict[str, Any]
"""A figure, as the document has it."""
Draw: TypeAlias = Callable[[Picture, Sequence[Row], Sequence[Row]], None]
"""Draws the figures, and beside them those of peers."""

OURS, RAW, GOAL = "#1f6f8b", "#b0b0b0", "#c0392b"
PEERS = ("#e0a030", "#8a6d3b", "#5c4a8a")
_STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
_SIDES = re.compile(r", (\d+ subtasks?|\d+ to \d+(?: by key)?)(?:, )?")
_SUBTASKS = re.compile(r"checkpoint, ([\d,]+) subtasks?")
_BOUNDED = re.compile(r"events, (\d+ subtasks?), at most 4,096 unhandled")
_PARTITIONS = re.compile(r"(\d+ partitions?): (\w+)$")


@dataclass(frozen=True)
class Shown:
    """A picture: the parts that it shows, its size in inches, and who draws it."""

    parts: tuple[str, ...]
    size: tuple[float, float]
    draw: Draw


def draw(document: dict[str, Any], folder: Path, peers: dict[str, Any] | None = None) -> list[Path]:
    """Draw the pictures for whose parts the document has figures, as files in the folder.

    ``peers`` is a document of other systems' figures: each has the name of ours, and says by ``peer`` whose it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, shown in PICTURES.items():
        rows, beside = (_of_parts(one, shown.parts) for one in (document, peers or {"figures": []}))
        if {row["part"] for row in rows} == set(shown.parts):
            with mpl.rc_context(_STYLE):
                picture = Picture(figsize=shown.size, layout="constrained")
                shown.draw(picture, rows, beside)
                drawn.append(folder / f"benchmark-{name}.png")
                picture.savefig(drawn[-1], dpi=120)
    return drawn


def _of_parts(document: dict[str, Any], parts: tuple[str, ...]) -> list[Row]:
    return [row for row in document["figures"] if row["part"] in parts]


def _overview(picture: Picture, rows: Sequence[Row], peers: Sequence[Row]) -> None:
    """Draw what most users ask for first: events per second, and checkpoint time over the number of subtasks."""
    left, right = picture.subplots(1, 2)
    _throughput(left, rows, peers)
    _over_subtasks(right, rows, peers)


def _throughput(axes: Axes, rows: Sequence[Row], peers: Sequence[Row]) -> None:
    """Draw events per second with a bound on the unhandled ones, in groups by the number of subtasks."""
    # A figure stands beside one record per event first, then beside frames: the first one counts.
    found = {row["figure"]: row for row in reversed(rows) if _BOUNDED.fullmatch(row["figure"])}
    groups = sorted(found)
    sides = [("Penstock", OURS, {name: row["value"] for name, row in found.items()})]
    sides += [(peer, colour, {row["figure"]: row["value"] for row in of}) for peer, colour, of in _each_of(peers)]
    sides.append(("raw Kafka, a record per event", RAW, {name: row["raw"] for name, row in found.items()}))
    drawn = [(side, colour, values) for side, colour, values in sides if values.keys() & found.keys()]
    for at, (side, colour, values) in enumerate(drawn):
        places = [(n + 0.8 * at / len(drawn), values[name]) for n, name in enumerate(groups) if name in values]
        bars = axes.barh(*zip(*places, strict=True), 0.8 / len(drawn), color=colour, label=side)
        axes.bar_label(bars, fmt=_short, padding=3)
    middle = 0.4 * (1 - 1 / len(drawn)) if drawn else 0
    axes.set_yticks([n + middle for n in range(len(groups))], [_BOUNDED.sub(r"\1", name) for name in groups])
    axes.margins(x=0.15)
    axes.set_xlabel("events/s, at most 4,096 unhandled")
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(drawn))


def _each_of(peers: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Return each peer with a colour and its figures."""
    names = dict.fromkeys(row["peer"] for row in peers)
    coloured = zip(names, cycle(PEERS), strict=False)
    return [(name, colour, [row for row in peers if row["peer"] == name]) for name, colour in coloured]


def _bars(picture: Picture, rows: Sequence[Row], _: Sequence[Row]) -> None:
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


def _pairs(picture: Picture, rows: Sequence[Row], _: Sequence[Row]) -> None:
    """Ours and raw side by side."""
    axes, places = picture.subplots(), range(len(rows))
    for shift, side, colour, label in ((-0.2, "value", OURS, "Penstock"), (0.2, "raw", RAW, "raw")):
        drawn = axes.bar([at + shift for at in places], [row[side] for row in rows], 0.4, color=colour, label=label)
        axes.bar_label(drawn, fmt=_short, padding=2)
    axes.margins(y=0.1)
    axes.set_xticks(list(places), [row["figure"].replace(" to ", "\nto ").replace(", ", "\n") for row in rows])
    axes.set_ylabel(rows[0]["unit"])
    axes.legend(frameon=False)


def _over_subtasks(axes: Axes, rows: Sequence[Row], peers: Sequence[Row]) -> None:
    """Draw checkpoint time, log-log, with the goals."""
    points = _by_subtasks(rows)
    lines = [("Penstock", OURS, "value", points), ("a raw round over Kafka", RAW, "raw", points)]
    lines += [(peer, colour, "value", _by_subtasks(of_peer)) for peer, colour, of_peer in _each_of(peers)]
    for label, colour, side, of_line in lines:
        if seen := sorted((count, row[side]) for count, row in of_line if row[side] is not None):
            axes.loglog(*zip(*seen, strict=True), "o-", color=colour, label=label)
    bounds = [(n, float(b[1])) for n, row in points if (b := re.search(r"<= ([\d.]+) ms", row["goal"] or ""))]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "v", color=GOAL, label="goal")
    ticks = sorted({count for count, _ in points})
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("subtasks")
    axes.set_ylabel("ms of a checkpoint of an idle job")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, alpha=0.2)
    axes.legend(frameon=False)


def _by_subtasks(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    return [(int(found[1].replace(",", "")), row) for row in rows if (found := _SUBTASKS.fullmatch(row["figure"]))]


def _parts_of_a_batch(picture: Picture, rows: Sequence[Row], _: Sequence[Row]) -> None:
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


PICTURES = {
    "overview": Shown(("events", "checkpoints"), (11, 4), _overview),
    "events": Shown(("events",), (11, 3.6), _bars),
    "latency": Shown(("latency",), (6.5, 3.6), _pairs),
    "channels": Shown(("channels",), (11, 3.2), _bars),
    "micro-batches": Shown(("streaming",), (7.5, 4), _parts_of_a_batch),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("run", type=document_at, metavar="RUN.json", help="what --json has written")
    parser.add_argument("--into", type=Path, default=Path("docs"), metavar="FOLDER", help="(default docs)")
    parser.add_argument("--peers", type=document_at, metavar="PEERS.json", help="figures of other systems, beside ours")
    chosen = parser.parse_args()
    for path in draw(chosen.run, chosen.into, chosen.peers):
        print(path)


if __name__ == "__main__":
    main()
