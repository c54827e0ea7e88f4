"""How fast events flow and how long they take, from the counters of a job's statuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..coordinator.status import SUBTASKS_TOLD
from ..schemas.status import JobStatus, OperatorStatus

RATE_OVER_S = 5.0
LATENCY_OVER_S = 10.0


@dataclass(frozen=True, slots=True)
class Point:
    """Events per second up to an instant, and how many were sent and not reported handled at it."""

    at_ms: int
    sent: float
    handled: float
    received: float
    unhandled: int = 0


def points_between(before: JobStatus, after: JobStatus) -> dict[str, Point]:
    """Return each operator's rates; none where they are unknown: another coordinator's clock is another."""
    seconds = (after.at_ms - before.at_ms) / 1000
    if seconds <= 0 or before.instance != after.instance:
        return {}
    known = {operator.operator: operator for operator in before.operators}
    points = {}
    for operator in after.operators:
        told_before = known.get(operator.operator) if before.epoch == after.epoch else None
        counted = _counted({} if told_before is None else _counters(told_before), _counters(operator))
        sent, handled, received = (count / seconds for count in counted)
        unhandled = max(0, operator.totals.sent - operator.totals.handled)
        points[operator.operator] = Point(after.at_ms, sent, handled, received, unhandled)
    return points


def _counted(before: dict[int, tuple[int, int, int]], after: dict[int, tuple[int, int, int]]) -> list[int]:
    counted = [0, 0, 0]
    for which, counters in after.items():
        for i, (old, new) in enumerate(zip(before.get(which, (0, 0, 0)), counters, strict=True)):
            counted[i] += new - old if new >= old else new if which >= 0 else 0
    return counted


def _counters(operator: OperatorStatus) -> dict[int, tuple[int, int, int]]:
    """Sent, handled, received: of each subtask, since that of one may begin again; else (-1) of all together."""
    if operator.parallelism > SUBTASKS_TOLD or len(operator.subtasks) < operator.parallelism:
        t = operator.totals
        return {-1: (t.sent, t.handled, t.received)}
    return {s.subtask: (s.sent, s.handled, s.received) for s in operator.subtasks}


def total(points: Iterable[Point]) -> Point | None:
    """Return the operators' points of one instant as the job's; None where there is none."""
    points = tuple(points)
    if not points:
        return None
    return Point(
        points[0].at_ms,
        sum(p.sent for p in points),
        sum(p.handled for p in points),
        sum(p.received for p in points),
        sum(p.unhandled for p in points),
    )


def recent(points: Iterable[Point], now_ms: int, over_s: float = RATE_OVER_S) -> Point:
    """Return the mean of the last seconds; nothing where nothing has been told for longer."""
    found = [p for p in points if p.at_ms > now_ms - 1000 * over_s]
    count = max(1, len(found))
    return Point(
        now_ms,
        sum(p.sent for p in found) / count,
        sum(p.handled for p in found) / count,
        sum(p.received for p in found) / count,
        found[-1].unhandled if found else 0,
    )


def latency_ms(points: Iterable[Point], now_ms: int) -> float:
    """Return how long an event took on average from being sent to being reported handled; -1 where none was handled.

    Little's law over the last 10 seconds: the mean number of unhandled events by those handled per second. It needs no
    two clocks. The time until the subtask reports is in it.
    """
    found = [p for p in points if p.at_ms > now_ms - 1000 * LATENCY_OVER_S]
    handled = sum(p.handled for p in found)
    return 1000 * sum(p.unhandled for p in found) / handled if handled else -1.0
