"""What the demo says at its end: the table beside the sums computed directly, and what was survived."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ...schemas.status import JobStatus
from ..console import Console
from .faults import Fault
from .inputs import Group, Question, Totals

ROWS_SHOWN = 24


@dataclass
class Result:
    """What stands in the table."""

    totals: Totals
    commits: int


def read_table(folder: Path, question: Question) -> Result:
    """Read a Delta table without the library that wrote it: its log in JSON, and the Parquet files that count."""
    import pyarrow.parquet as pq

    totals, files, commits = Totals(), set[str](), 0
    for entry in sorted((folder / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        files |= {action["add"]["path"] for action in actions if "add" in action}
        files -= {action["remove"]["path"] for action in actions if "remove" in action}
        commits += any("add" in action for action in actions)
    for file in sorted(files):
        for row in pq.ParquetFile(folder / file).read().to_pylist():
            totals.add(question.group(row), Decimal(row["sum"]), row["rows"], row["missing"])
    return Result(totals, commits)


@dataclass
class Outcome:
    """All that is told."""

    job: str
    question: Question
    expected: Totals
    result: Result
    status: JobStatus | None
    injected: dict[str, int]
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether sums and counts are equal to the last digit."""
        return self.result.totals == self.expected

    def as_json(self) -> dict[str, Any]:
        status = self.status
        return {
            "job": self.job,
            "rows": self._rows(self.result.totals),
            "expected_rows": self._rows(self.expected),
            "exact": self.exact,
            "values": self.result.totals.values,
            "missing": self.result.totals.missing,
            "commits": self.result.commits,
            "checkpoints_completed": 0 if status is None else status.checkpoints_completed,
            "checkpoints_aborted": 0 if status is None else status.checkpoints_aborted,
            "failovers": {
                "region": 0 if status is None else status.failovers_region,
                "global": 0 if status is None else status.failovers_global,
                "injected": {fault.value: self.injected.get(fault.value, 0) for fault in Fault},
            },
            "seconds": round(self.seconds, 3),
        }

    def _rows(self, totals: Totals) -> list[dict[str, Any]]:
        """Return an object for each group; sums are strings, because JSON numbers would be rounded by most readers."""
        by = self.question.group_by
        return [
            {**dict(zip(by, group, strict=True)), self.question.sum: plain(totals.sums[group])}
            for group in sorted(totals.sums, key=natural_order)
        ]


def tell(console: Console, outcome: Outcome) -> None:
    """Print the outcome."""
    if console.as_json:
        console.data(outcome.as_json())
        return
    found, expected = outcome.result.totals.sums, outcome.expected.sums
    groups = sorted(found.keys() | expected.keys(), key=natural_order)
    wrong = [group for group in groups if found.get(group) != expected.get(group)]
    console.show(_table(outcome, [*wrong, *(group for group in groups if group not in wrong)]))
    console.show("")
    status, injected = outcome.status, outcome.injected
    console.show(
        f"{len(groups) - len(wrong):,} of {len(groups):,} sums equal to the last digit;"
        f" {outcome.result.totals.values:,} values and {outcome.result.totals.missing:,} missing in the table, expected"
        f" {outcome.expected.values:,} and {outcome.expected.missing:,}"
    )
    console.show(
        f"survived: {injected.get(Fault.RAISE.value, 0)} task raised, {injected.get(Fault.KILL.value, 0)} worker(s)"
        f" killed with SIGKILL, {injected.get(Fault.ROLL_BACK.value, 0)} rollback of the coordinators"
    )
    if status is not None:
        console.show(
            f"{status.checkpoints_completed} checkpoints completed, {outcome.result.commits} of them with a commit of"
            f" the table; {status.checkpoints_aborted} aborted; failovers: {status.failovers_region} region,"
            f" {status.failovers_global} global"
        )
    console.show(f"{'exact' if outcome.exact else 'NOT EXACT'}, in {outcome.seconds:.1f} s")


def _table(outcome: Outcome, groups: list[Group]) -> Table:
    question, found, expected = outcome.question, outcome.result.totals.sums, outcome.expected.sums
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in question.group_by:
        table.add_column(escape(column))
    table.add_column(escape(f"sum of {question.sum}"), justify="right")
    table.add_column("without Penstock", justify="right")
    table.add_column("")
    for group in groups[:ROWS_SHOWN]:
        equal = found.get(group) == expected.get(group)
        mark = "[green]equal[/]" if equal else "[bold red]different[/]"
        table.add_row(*map(escape, group), plain(found.get(group)), plain(expected.get(group)), mark)
    if len(groups) > ROWS_SHOWN:
        table.add_row(f"... {len(groups) - ROWS_SHOWN} more groups")
    return table


def plain(amount: Decimal | None) -> str | None:
    """Return a number without an exponent: every digit shows."""
    return None if amount is None else format(amount, "f")


def natural_order(group: Group) -> list[Any]:
    """Sort 2 before 10, and numbers before words."""
    return [
        (0, Decimal(text), text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else (1, Decimal(0), text) for text in group
    ]
