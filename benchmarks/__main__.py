"""Measures what Penstock costs, beside raw confluent-kafka in the same run: one table, and one JSON document."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from .parts import PARTS, PartFailed, Wish, figures_of
from .report import Report

WIDTH = 200
"""Of a table that is not written to a terminal."""


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    wish = Wish(1 if chosen.quick else chosen.repeats, chosen.quick, chosen.kafka_jars)
    report = Report(wish.repeats, wish.quick)
    interrupted = False
    for name in [part for part in PARTS if part in (chosen.only or PARTS)]:
        try:
            _measure(name, wish, report, console)
        except KeyboardInterrupt:
            interrupted = True
            break
        finally:
            if chosen.json:
                chosen.json.write_text(json.dumps(report.document(), indent=2) + "\n")
    console.print(report.table())
    console.print(report.summary())
    for name, why in report.failed.items():
        print(f"{name} has failed: {why}", file=sys.stderr)
    if chosen.plots:
        from .plots import draw

        for path in draw(report.document(), chosen.plots):
            console.print(f"drawn: {path}")
    if interrupted:
        print("interrupted: the table holds what had been measured", file=sys.stderr)
        return 130
    return 1 if report.failed else 0


def _measure(name: str, wish: Wish, report: Report, console: Console) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {name}: {text}", markup=False)

    say("begins")
    try:
        for figure in figures_of(PARTS[name], wish, say):
            report.figures.setdefault(name, []).append(figure)
    except PartFailed as failure:
        report.failed[name] = str(failure)
        say("has failed")
    finally:
        report.seconds[name] = time.monotonic() - began


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be said more than once")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side is measured (default 3)")
    parser.add_argument("--quick", action="store_true", help="only try that it runs; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="also draw them, as PNG files in this folder")
    parser.add_argument(
        "--kafka-jars", help="jars of Spark's Kafka source, by commas (default: a pinned connector, fetched once)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
