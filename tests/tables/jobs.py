"""Jobs that number rows and write them to a table, and both kinds of table with their readers."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock import CheckpointSettings, RestartStrategy
from penstock.tables import Delta, Iceberg, Table

from .readers import Seen, read_delta, read_iceberg

PATIENCE_S = 60.0
SENDERS, WRITERS = 2, 2
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("letter", pa.string())])
LETTERS = "abc"
OTHERS = 1_000_000
"""Where the numbers of a second writer begin."""


@dataclass
class Place:
    """Where a test's table is, and how an independent reader sees it."""

    kind: str
    folder: Path

    def table(self, schema: pa.Schema = SCHEMA, **options: Any) -> Table:
        options = {"commit_timeout": 30.0, **options}
        if self.kind == "delta":
            return Delta(self.folder / "table", schema, **options)
        return Iceberg(self.catalog, "db.rows", schema, **options)

    @property
    def catalog(self) -> dict[str, str]:
        return {
            "name": "tests",
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def read(self) -> Seen:
        if self.kind == "delta":
            return read_delta(self.folder / "table")
        return read_iceberg(self.folder / "catalog.db", "db.rows")

    def is_there(self) -> bool:
        """Whether the table has been created."""
        if self.kind == "delta":
            return any((self.folder / "table" / "_delta_log").glob("*.json"))
        return any((self.folder / "warehouse").rglob("*.metadata.json"))

    def data_files(self) -> set[str]:
        """Paths of the Parquet files that lie in the table's folder, committed or not."""
        root = self.folder / ("table" if self.kind == "delta" else "warehouse")
        found = {path for path in root.rglob("*.parquet*") if "_delta_log" not in path.parts}
        return {str(path.relative_to(root)) if self.kind == "delta" else f"file://{path}" for path in found}

    def numbers(self) -> list[int]:
        """The rows, none where there is no table yet."""
        return sorted(row["n"] for row in self.read().rows) if self.is_there() else []

    def check(self, numbers: list[int]) -> Seen:
        """The table holds each of the numbers once, and each checkpoint is one commit of it."""
        seen = self.read()
        found = Counter(row["n"] for row in seen.rows)
        assert {n: count for n, count in found.items() if count > 1} == {}, "doubled"
        assert sorted(set(numbers) - set(found)) == [], "lost"
        assert sorted(set(found) - set(numbers)) == [], "from nowhere"
        assert len(set(seen.commits)) == len(seen.commits), seen.commits
        for writer in {writer for writer, _ in seen.commits}:
            ids = [n for who, n in seen.commits if who == writer]
            assert ids == sorted(ids)
        return seen


class Gate:
    """How far senders may go."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.opened = threading.Event()
        self.reached = threading.Event()
        """All senders have come as far as they may."""
        self._waiting: set[int] = set()

    def wait(self, context: penstock.Context) -> None:
        self._waiting.add(context.subtask)
        if len(self._waiting) == context.parallelism:
            self.reached.set()

    def open(self) -> None:
        self.opened.set()


class Numbers(penstock.Subtask):
    """Emits its share of the numbers below ``rows``, some a poll, as far as the gate lets it."""

    def __init__(self, rows: int, gate: Gate | None, per_poll: int, pause_s: float = 0.001) -> None:
        self.rows, self.gate, self.per_poll, self.pause_s = rows, gate, per_poll, pause_s
        self.next = 0

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def poll(self) -> penstock.Progress | penstock.Idle | penstock.Finished:
        for _ in range(self.per_poll):
            n = self.next * self.context.parallelism + self.context.subtask
            if n >= self.rows:
                return penstock.Finished()
            if self.gate is not None and n >= self.gate.limit and not self.gate.opened.is_set():
                self.gate.wait(self.context)
                return penstock.Idle(0.01)
            self.context.emit({"n": n, "letter": LETTERS[n % len(LETTERS)] if n % 7 else None})
            self.next += 1
        return penstock.Idle(self.pause_s)

    def snapshot_state(self, checkpoint_id: int) -> int:
        return self.next

    def restore_state(self, checkpoint_id: int, state: int) -> None:
        self.next = state


def rows_job(
    sink: dict[str, Any], *, rows: int = 300, gate: Gate | None = None, per_poll: int = 3, name: str = "rows",
    interval: float = 0.03, writers: int = WRITERS, pause_s: float = 0.001, end_timeout: float = 60.0,
    restarts: int = 1000,
) -> penstock.Job:  # fmt: skip
    job = penstock.Job(
        name,
        checkpoint=CheckpointSettings(interval=interval, timeout=10.0, tolerable_failures=1000),
        restart=RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=restarts),
        heartbeat_interval=0.1,
        heartbeat_timeout=5.0,
        start_timeout=10.0,
        end_timeout=end_timeout,
    )
    numbers = job.operator(
        "numbers",
        subtask=functools.partial(Numbers, rows, gate, per_poll, pause_s),
        parallelism=SENDERS,
        state_codec="json",
        output_codec="json",
    )
    job.operator("out", **sink, parallelism=writers, inputs=[numbers.rebalance()])
    return job
