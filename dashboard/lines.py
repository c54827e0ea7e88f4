"""What has happened from one view of a job to the next, in lines: for whatever cannot be redrawn."""

from __future__ import annotations

import re

from ..schemas.status import FailoverStatus
from .messages import duration, size, waiting
from .model import CheckpointView, View

_HOW_LONG = re.compile(r"\b\d+(\.\d+)? (ms|s|min)\b")


def happened(before: View | None, after: View) -> list[str]:
    """One line for each thing that ``before`` did not tell; of checkpoints that completed, for the newest alone."""
    lines, state = [], []
    if before is None or _which(before) != _which(after):
        because = f": {first_line(after.cause)}" if after.cause else ""
        state = [f"{after.job} is {after.state} in epoch {after.epoch}{because}"]
    lines += [] if after.ended else state
    known = set() if before is None else {(f.at_ms, f.took_ms) for f in before.failovers}
    lines += [failover_line(f) for f in reversed(after.failovers) if (f.at_ms, f.took_ms) not in known]
    over = set() if before is None else {c.checkpoint_id for c in before.checkpoints if c.outcome != "under way"}
    ended = [c for c in after.checkpoints if c.outcome != "under way" and c.checkpoint_id not in over]
    routine = [c.checkpoint_id for c in ended if c.outcome == "completed" and not c.savepoint]
    lines += [checkpoint_line(c) for c in reversed(ended) if c.checkpoint_id not in routine[1:]]
    waited = () if before is None else before.waits
    if list(map(_undated, after.waits)) != list(map(_undated, waited)):
        lines += [waiting(what) for what in after.waits]
    return lines + (state if after.ended else [])


def _which(view: View) -> tuple[str, int, str]:
    """State, epoch, coordinator. A job that recovers runs: the lines of its failover tell when that began and ended."""
    return "running" if view.state == "recovering" else view.state, view.epoch, view.instance


def _undated(what: str) -> str:
    """Without for how long it has been so."""
    return _HOW_LONG.sub("", what.partition(" waits for ")[0])


def checkpoint_line(c: CheckpointView) -> str:
    kind = "savepoint" if c.savepoint else "checkpoint"
    told = f"{kind} {c.checkpoint_id} {c.outcome} after {duration(c.took_ms)}"
    if c.reason:
        return f"{told}, {c.acked} of {c.required} subtasks safe: {first_line(c.reason)}"
    return f"{told}, {c.required} subtasks, state {size(c.state_bytes)}"


def failover_line(f: FailoverStatus) -> str:
    over = "not over yet" if f.took_ms < 0 else f"over after {duration(f.took_ms)}"
    return f"{f.kind} failover of {whom(f)}, {over}: {first_line(f.cause)}"


def whom(f: FailoverStatus) -> str:
    """Whom it undid, the first of them by name."""
    named = ", ".join(f.subtasks[:4])
    return named if f.count <= 4 else f"{named} and {f.count - 4} more"


def first_line(text: str) -> str:
    return text.partition("\n")[0]
