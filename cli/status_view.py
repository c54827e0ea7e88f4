"""`penstock status --watch`: everything there is to see of a job, redrawn in place on a terminal, else in lines."""

from __future__ import annotations

import time
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..dashboard.lines import first_line, happened, whom
from ..dashboard.messages import STEPS, duration, size, waiting
from ..dashboard.model import Bar, CheckpointView, Kind, View
from .console import Console
from .live_display import Redrawn

LINE_EVERY_S = 10.0
"""Where there is no terminal, rates are told so often, at most, while nothing else happens."""
SUBTASKS_SHOWN = 32
CHECKPOINTS_SHOWN = 5
BARS_SHOWN = 12
FAILOVERS_SHOWN = 3
BAR_CHARS = 40

_STATE_STYLES = {"running": "green", "finished": "blue", "stopped": "blue", "failed": "red", "gone": "red"}
_PHASE_STYLES = {"running": "green", "finished": "blue"}
_STEP_STYLES = {
    Kind.CUT: "magenta",
    Kind.SNAPSHOT: "cyan",
    Kind.UPLOAD: "blue",
    Kind.BOTH: "cyan",
    Kind.COMMIT: "green",
}
_SPARKS = " ▁▂▃▄▅▆▇█"


def renderable(view: View) -> RenderableType:
    """The whole display."""
    parts: list[RenderableType] = [_headline(view), _rates(view)]
    parts += [Text(waiting(what), style="yellow") for what in view.waits]
    parts += [Text(), _subtasks(view)]
    if view.checkpoints:
        parts += [Text(), _checkpoints(view)]
    focus = next((c for c in view.checkpoints if c.checkpoint_id == view.focus), None)
    if focus is not None:
        parts += [Text(), *_bars(focus)]
    if view.failovers:
        parts += [Text(), _failovers(view)]
    return Group(*parts)


def summary(view: View) -> str:
    """One line about the whole job."""
    took = f" ({duration(view.last_took_ms)})" if view.last_took_ms >= 0 else ""
    last = "none" if view.last_completed < 0 else str(view.last_completed)
    return (
        f"epoch {view.epoch}, {view.running}/{view.subtasks} subtasks, checkpoint {last}{took}, {view.completed}"
        f" completed, {view.aborted} aborted, failovers {view.failovers_region} region {view.failovers_global} global"
    )


def rates_line(view: View) -> str:
    return (
        f"events {view.rates.sent:,.0f}/s sent, {view.rates.handled:,.0f}/s handled, {view.rates.received:,.0f}/s"
        f" received; {view.unhandled:,} unhandled, {view.held:,} held"
    )


def _headline(view: View) -> Text:
    line = Text.assemble((view.job, "bold"), ": ", (view.state, _STATE_STYLES.get(view.state, "yellow")), ", ")
    line.append(summary(view))
    if view.cause:
        line.append(f"\nbecause: {first_line(view.cause)}", style="red" if view.state != "finished" else "")
    return line


def _rates(view: View) -> Text:
    recent = [point.handled for point in view.points[-30:]]
    top = max(recent, default=0.0) or 1.0
    sparks = "".join(_SPARKS[round((len(_SPARKS) - 1) * rate / top)] for rate in recent)
    return Text.assemble(rates_line(view), "  ", (sparks, "cyan"))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table


def _subtasks(view: View) -> Table:
    table = _table(
        ("subtask", "left"), ("phase", "left"), ("for", "right"), ("attempt", "right"), ("gateway", "left"),
        ("sent", "right"), ("handled", "right"), ("unhandled", "right"), ("held", "right"), ("received", "right"),
        ("failures", "right"), ("doing", "left"),
    )  # fmt: skip
    rows = [(operator.operator, s) for operator in view.operators for s in operator.subtasks]
    for name, s in rows[:SUBTASKS_SHOWN]:
        table.add_row(
            f"{escape(name)}/{s.subtask}",
            Text(s.phase, style=_PHASE_STYLES.get(s.phase, "yellow")),
            "" if s.since_s < 0 else duration(round(1000 * s.since_s)),
            str(s.attempt) if s.attempt >= 0 else "-",
            Text(s.gateway, style="" if s.gateway == "open" else "yellow"),
            *(f"{n:,}" for n in (s.sent, s.handled, s.unhandled, s.held, s.received, s.failures)),
            Text(s.doing),
        )
    more = view.subtasks - min(len(rows), SUBTASKS_SHOWN)
    if more > 0:
        table.add_row(f"... {more} more")
    return table


def _checkpoints(view: View) -> Table:
    table = _table(
        ("checkpoint", "left"), ("triggered", "left"), ("outcome", "left"), ("took", "right"), ("safe", "right"),
        ("state", "right"), ("why", "left"),
    )  # fmt: skip
    for c in view.checkpoints[:CHECKPOINTS_SHOWN]:
        style = {"completed": "green", "aborted": "red"}.get(c.outcome, "yellow")
        table.add_row(
            f"{c.checkpoint_id}{' savepoint' if c.savepoint else ''}",
            clock(c.triggered_at_ms),
            Text(c.outcome, style=style),
            duration(c.took_ms),
            f"{c.acked}/{c.required}",
            size(c.state_bytes),
            Text(first_line(c.reason)),
        )
    return table


def _bars(c: CheckpointView) -> list[RenderableType]:
    legend = Text(f"checkpoint {c.checkpoint_id}, {duration(c.took_ms)}: ", style="bold")
    for kind in (Kind.CUT, Kind.SNAPSHOT, Kind.UPLOAD, Kind.COMMIT):
        legend.append("█ ", style=_STEP_STYLES[kind]).append(f"{STEPS[kind]}  ", style="not bold")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for bar in c.bars[:BARS_SHOWN]:
        table.add_row(Text(bar.who), _drawn(bar, max(1, c.took_ms)), Text(bar.says, style="dim"))
    more = len(c.bars) - BARS_SHOWN + c.bars_left_out
    if more > 0:
        table.add_row(f"... {more} more")
    return [legend, table]


def _drawn(bar: Bar, whole_ms: int) -> Text:
    """So wide as its times are long; what took any time at all is seen."""
    line, at = Text(), 0
    for segment in bar.segments:
        begin = max(at, min(BAR_CHARS - 1, segment.begin_ms * BAR_CHARS // whole_ms))
        end = min(BAR_CHARS, max(begin + 1, round(segment.end_ms * BAR_CHARS / whole_ms)))
        line.append(" " * (begin - at))
        line.append(("▒" if segment.open else "█") * (end - begin), style=_STEP_STYLES[segment.kind])
        at = max(at, end)
    line.append(" " * (BAR_CHARS - at))
    return line


def _failovers(view: View) -> Table:
    table = _table(("failover", "left"), ("kind", "left"), ("took", "right"), ("of", "left"), ("cause", "left"))
    for f in view.failovers[:FAILOVERS_SHOWN]:
        took = Text("not over yet", style="yellow") if f.took_ms < 0 else Text(duration(f.took_ms))
        table.add_row(clock(f.at_ms), f.kind, took, Text(whom(f)), Text(first_line(f.cause), style="red"))
    return table


def clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000):%H:%M:%S}"


class StatusDisplay(Redrawn):
    """A context manager: ``show`` each view. Redraws a terminal; else writes a line for each thing that happens."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, auto_refresh=False)
        self._before: View | None = None
        self._told_at = 0.0

    def show(self, view: View) -> None:
        if self._live is not None:
            self._live.update(renderable(view), refresh=True)
            return
        lines = happened(self._before, view)
        self._before = view
        if not lines and time.monotonic() > self._told_at + LINE_EVERY_S and not view.ended:
            lines = [f"{view.job}: {summary(view)}; {rates_line(view)}"]
        for line in lines:
            self._told_at = time.monotonic()
            self._console.say(line)
