"""A job as it runs: redrawn in place on a terminal, else a line whenever something has happened."""

from __future__ import annotations

import time

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..dashboard import messages
from ..schemas.status import JobStatus
from .console import Console
from .live_display import Redrawn

LINE_EVERY_S = 2.0
"""So often a line is written, at most and where there is no terminal, while nothing but counters has changed."""
LINES_KEPT = 8
SUBTASKS_SHOWN = 32


def headline(status: JobStatus) -> str:
    """One line about the whole job."""
    totals = [operator.totals for operator in status.operators]
    sent, handled, live = sum(t.sent for t in totals), sum(t.handled for t in totals), sum(t.running for t in totals)
    total = sum(o.parallelism for o in status.operators)
    events = (
        f", events of this epoch {sent} sent {handled} handled" if status.state in ("running", "failing-over") else ""
    )
    took = f" ({status.last_duration_s * 1000:.0f} ms)" if status.last_duration_s >= 0 else ""
    return (
        f"{status.job}: {status.state}, epoch {status.epoch}, {live}/{total} subtasks, checkpoint"
        f" {status.last_completed if status.last_completed >= 0 else 'none'}{took}"
        f", {status.checkpoints_completed} completed, {status.checkpoints_aborted} aborted, failovers"
        f" {status.failovers_region} region {status.failovers_global} global{events}"
    )


def subtask_table(status: JobStatus) -> Table:
    """Every subtask: its attempt, its gateway, its events."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, justify in (
        ("subtask", "left"), ("phase", "left"), ("attempt", "right"), ("gateway", "left"), ("sent", "right"),
        ("handled", "right"), ("held", "right"), ("received", "right"), ("failures", "right"), ("doing", "left"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    rows = [(operator.operator, subtask) for operator in status.operators for subtask in operator.subtasks]
    for name, s in rows[:SUBTASKS_SHOWN]:
        table.add_row(
            f"{escape(name)}/{s.subtask}",
            Text(s.phase, style={"running": "green", "finished": "blue"}.get(s.phase, "yellow")),
            str(s.attempt) if s.attempt >= 0 else "-",
            Text(s.gateway, style="" if s.gateway == "open" else "yellow"),
            *(f"{n:,}" for n in (s.sent, s.handled, s.held, s.received)),
            str(s.failures),
            escape(s.step),
        )
    if len(rows) > SUBTASKS_SHOWN:
        table.add_row(f"... {len(rows) - SUBTASKS_SHOWN} more")
    return table


def waiting_lines(status: JobStatus) -> list[str]:
    """Name what every pending checkpoint waits for, and why the last ones were aborted; or say that the job is idle."""
    told = [messages.aborts(status), *messages.pending(status), messages.idle(status)]
    return [line for line in told if line is not None]


def renderable(status: JobStatus, lines: list[str], progress: str = "") -> Group:
    """The whole display."""
    parts: list[Text | Table] = [Text(headline(status), style="bold"), subtask_table(status)]
    parts += [Text(progress)] if progress else []
    parts += [Text(line, style="yellow", no_wrap=True, overflow="ellipsis") for line in waiting_lines(status)]
    if status.last_failure:
        parts.append(Text("last failure: " + first_line(status.last_failure), style="red", overflow="ellipsis"))
    parts += [Text(line, style="dim") for line in lines]
    return Group(*parts)


def first_line(text: str) -> str:
    return text.partition("\n")[0]


class Display(Redrawn):
    """A context manager: ``update`` with each status, ``say`` what else happens. From any thread."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, refresh_per_second=8)
        self._lines: list[str] = []
        self._status: JobStatus | None = None
        self._progress = ""
        self._told: tuple[object, ...] = ()
        self._told_at = 0.0

    def say(self, text: str) -> None:
        if self._live is None:
            self._console.say(text)
        else:
            if self._lines[-1:] != [text]:
                self._lines = [*self._lines, text][-LINES_KEPT:]
                self._redraw()

    def update(self, status: JobStatus | None, progress: str = "") -> None:
        """Shows a new status, and in a word how far the job's own work is, where that is known."""
        if status is None or status == self._status:
            return
        self._status, self._progress = status, progress
        if self._live is not None:
            self._redraw()
            return
        happened = (status.state, status.epoch, status.failovers_region, status.failovers_global)
        if happened != self._told or time.monotonic() > self._told_at + LINE_EVERY_S:
            self._told, self._told_at = happened, time.monotonic()
            self._console.say("; ".join(filter(None, (headline(status), progress, messages.aborts(status)))))

    def _redraw(self) -> None:
        assert self._live is not None
        if self._status is not None:
            self._live.update(renderable(self._status, self._lines, self._progress))
        else:
            self._live.update(Group(*(Text(line, style="dim") for line in self._lines)))
