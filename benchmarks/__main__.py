"""``python -m benchmarks [--events N] [--repeats N] [--json FILE]``: one table, and one JSON document where asked."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.broker import EmbeddedBroker

from .data_channels import channel_figures
from .events import Figure, latency_figures, throughput_figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="events per throughput run")
    parser.add_argument("--latencies", type=int, default=500, help="round trips per latency run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    console = Console()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(folder) as broker:
        for parallelism in (1, 4):
            console.print(f"measuring events per second, {parallelism} subtask(s) ...")
            figures += throughput_figures(broker.bootstrap, parallelism, chosen.events, chosen.repeats)
        console.print("measuring a data channel ...")
        figures += channel_figures(broker.bootstrap, chosen.events, chosen.repeats, Path(folder))
        console.print("measuring latency ...")
        figures += latency_figures(broker.bootstrap, chosen.latencies)
    console.print(_table(figures))
    if chosen.json:
        document = {"machine": platform.platform(), "figures": [{**asdict(f), "ratio": f.ratio} for f in figures]}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "of", "measured", "raw", "raw means", "ratio")
    for f in figures:
        table.add_row(
            f.name, f.definition, f"{f.value:,.2f} {f.unit}", f"{f.raw:,.2f}", f.raw_definition, f"{f.ratio:.2f}"
        )
    return table


if __name__ == "__main__":
    main()
