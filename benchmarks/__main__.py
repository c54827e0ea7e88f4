"""``python -m benchmarks [--only PART] [--events N] [--repeats N] [--json FILE]``: tables, and JSON where asked."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.broker import EmbeddedBroker

from .alignment import HeldUp, hold_up
from .data_channels import channel_figures
from .events import Figure, latency_figures, throughput_figures
from .streaming import PARTS as BATCH_PARTS
from .streaming import Floor, streaming_figures

PARTS = ("events", "channels", "alignment", "latency", "streaming")
HELD_UP_RECORDS = 1_002_000
"""A million, in whole frames."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be said more than once")
    parser.add_argument("--events", type=int, default=1_000_000, help="events, or records, per throughput run")
    parser.add_argument("--latencies", type=int, default=500, help="round trips per latency run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--kafka-jars", help="jars of Spark's Kafka source, by commas; without them Maven is asked")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    began, load_before = time.monotonic(), os.getloadavg()
    figures, held_up, floors = measured(chosen, console)
    if figures:
        console.print(_table(figures))
    for run in held_up:
        console.print(_memory_table(run))
    if floors:
        console.print(_floor_table(floors))
    document = {
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "load average before": load_before,
        "load average behind": os.getloadavg(),
        "seconds": round(time.monotonic() - began),
        "figures": [{**asdict(f), "ratio": f.ratio} for f in figures],
        "alignment": [_as_json(run) for run in held_up],
        "micro-batches": [asdict(floor) for floor in floors],
    }
    console.print(f"load average before: {load_before}; beside other work these figures are worthless")
    if chosen.json:
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


def measured(chosen: argparse.Namespace, console: Console) -> tuple[list[Figure], list[HeldUp], list[Floor]]:
    parts = chosen.only or PARTS
    figures: list[Figure] = []
    held_up: list[HeldUp] = []
    floors: list[Floor] = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(folder) as broker:
        if "events" in parts:
            for parallelism in (1, 4):
                console.print(f"measuring events per second, {parallelism} subtask(s) ...")
                figures += throughput_figures(broker.bootstrap, parallelism, chosen.events, chosen.repeats)
        if "channels" in parts:
            for parallelism in (1, 4):
                console.print(f"measuring a data channel, {parallelism} to {parallelism} ...")
                figures += channel_figures(broker.bootstrap, parallelism, chosen.events, chosen.repeats)
        if "alignment" in parts:
            console.print("measuring memory in an alignment ...")
            held_up += [hold_up(broker.bootstrap, HELD_UP_RECORDS, unaligned=u) for u in (False, True)]
        if "latency" in parts:
            console.print("measuring latency ...")
            figures += latency_figures(broker.bootstrap, chosen.latencies)
        if "streaming" in parts:
            console.print("measuring Structured Streaming ...")
            of_queries, floors = streaming_figures(
                broker.bootstrap, chosen.events, chosen.latencies, chosen.repeats, chosen.kafka_jars
            )
            figures += of_queries
    return figures, held_up, floors


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "of", "measured", "raw", "raw means", "ratio")
    for f in figures:
        table.add_row(
            f.name, f.definition, f"{f.value:,.2f} {f.unit}", f"{f.raw:,.2f}", f.raw_definition, f"{f.ratio:.2f}"
        )
    return table


def _floor_table(floors: list[Floor]) -> Table:
    table = Table("source", "partitions", *BATCH_PARTS, title="a micro-batch of one event: medians, in ms")
    for floor in floors:
        table.add_row(floor.source, str(floor.partitions), *(f"{floor.parts[part]:.0f}" for part in BATCH_PARTS))
    return table


def _memory_table(run: HeldUp) -> Table:
    kind = "unaligned" if run.unaligned else "aligned"
    title = f"a receiver whose checkpoint ({kind}) is held up; {run.skipped_mb:.0f} MB of records come meanwhile"
    table = Table("records", "resident memory has grown by", "skipped records kept", "their bound", title=title)
    for sample in run.samples:
        table.add_row(
            f"{sample.records:,}", f"{sample.grown_mb:.1f} MB", f"{sample.cached_mb:.1f} MB", f"{run.bound_mb:.1f} MB"
        )
    table.caption = f"it grew by {run.peak_mb:.1f} MB at most until all were handled; {run.reread:,} frames read again"
    return table


def _as_json(run: HeldUp) -> dict[str, object]:
    return {**asdict(run), "samples": [sample._asdict() for sample in run.samples]}


if __name__ == "__main__":
    main()
