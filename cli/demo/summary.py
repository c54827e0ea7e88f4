"""What the demo says at its end: the two tables, what was survived, and whether it is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from ...schemas.status import JobStatus
from ..console import Console
from .faults import Fault
from .report import Result, Row, is_exact, json_rows, plain, side_by_side
from .setup import Work

ROWS_SHOWN = 24


@dataclass
class Outcome:
    """All that is told."""

    job: str
    work: Work
    result: Result | None
    status: JobStatus | None
    injected: dict[str, int]
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """The sums, and that every event of the history that counts was handled once."""
        return (
            self.result is not None
            and self.result.events_sent == self.result.events_handled
            and is_exact(self.result, self.work.expected)
        )

    def as_json(self) -> dict[str, Any]:
        result, status, question = self.result, self.status, self.work.question
        return {
            "job": self.job,
            "rows": [] if result is None else json_rows(question, result.totals),
            "expected_rows": json_rows(question, self.work.expected),
            "exact": self.exact,
            "values": 0 if result is None else result.totals.values,
            "missing": 0 if result is None else result.totals.missing,
            "checkpoints_completed": 0 if status is None else status.checkpoints_completed,
            "checkpoints_aborted": 0 if status is None else status.checkpoints_aborted,
            "failovers": {
                "region": 0 if status is None else status.failovers_region,
                "global": 0 if status is None else status.failovers_global,
                "injected": {fault.value: self.injected.get(fault.value, 0) for fault in Fault},
                "left_out": self.work.left_out,
            },
            "events_sent": 0 if result is None else result.events_sent,
            "events_handled": 0 if result is None else result.events_handled,
            "seconds": round(self.seconds, 3),
        }


def tell(console: Console, outcome: Outcome) -> None:
    if console.as_json:
        console.data(outcome.as_json())
        return
    if outcome.result is None:
        console.show("the job left no result")
        return
    question, rows = outcome.work.question, side_by_side(outcome.result.totals, outcome.work.expected)
    console.show(_table((*question.group_by, question.sum), rows))
    wrong = [row for row in rows if not row.exact]
    for row in wrong[:ROWS_SHOWN]:
        console.show(f"different: {', '.join(row.group)}: {plain(row.sum)}, expected {plain(row.expected)}")
    console.show("")
    for line in summary(outcome, len(rows), len(wrong)):
        console.show(line)


def _table(columns: tuple[str, ...], rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns[:-1]:
        table.add_column(escape(column))
    table.add_column(escape(f"sum of {columns[-1]}"), justify="right")
    table.add_column("without Penstock", justify="right")
    table.add_column("")
    for row in rows[:ROWS_SHOWN]:
        mark = "[green]equal[/]" if row.exact else "[bold red]different[/]"
        table.add_row(*map(escape, row.group), plain(row.sum), plain(row.expected), mark)
    if len(rows) > ROWS_SHOWN:
        table.add_row(f"... {len(rows) - ROWS_SHOWN} more groups")
    return table


def summary(outcome: Outcome, groups: int, wrong: int) -> list[str]:
    """The last lines."""
    result, status, injected = outcome.result, outcome.status, outcome.injected
    assert result is not None
    survived = [
        f"{injected.get(Fault.RAISE.value, 0)} task raised",
        f"{injected.get(Fault.KILL.value, 0)} worker(s) killed with SIGKILL",
        f"{injected.get(Fault.ROLL_BACK.value, 0)} rollback of the coordinators",
    ]
    lines = [
        f"{groups - wrong:,} of {groups:,} sums equal to the last digit; {result.totals.values:,} values,"
        f" {result.totals.missing:,} missing (expected {outcome.work.expected.values:,} and"
        f" {outcome.work.expected.missing:,})",
        f"events of the history that counts: {result.events_sent:,} sent, {result.events_handled:,} handled",
        "survived: " + ", ".join(survived),
    ]
    if status is not None:
        lines.append(
            f"{status.checkpoints_completed} checkpoints completed, {status.checkpoints_aborted} aborted;"
            f" failovers: {status.failovers_region} region, {status.failovers_global} global"
        )
    lines += outcome.work.left_out
    lines.append(f"{'exact' if outcome.exact else 'NOT EXACT'}, in {outcome.seconds:.1f} s")
    return lines
