"""What there is to see of a job: from the statuses that its coordinators tell to the values that viewers show.

Pure: the web page and ``penstock status --watch`` show the same, and both take it from here. Times of day are
milliseconds since 1970, durations are in milliseconds (``_ms``) or seconds (``_s``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from ..schemas.status import (
    CheckpointStatus,
    FailoverStatus,
    JobStatus,
    OperatorStatus,
    SubtaskStatus,
    SubtaskTimes,
    SubtaskTotals,
)
from . import words

STALE_S = 5.0
"""A status this old is told as old: a coordinator writes one each second."""
ENDED = ("finished", "stopped", "failed")
POINTS_KEPT = 180
"""Of the event rates: about three minutes."""
RATE_OVER_S = 5.0
ROWS_MAX = 200
"""Of each operator's subtasks so many are shown."""
BARS_MAX = 32
OPEN_BARS_AFTER_MS = 1_000
"""A checkpoint under way for so long is waited for, and shown by its steps; quicker ones when they are over."""


class Kind(StrEnum):
    """What a stretch of time within a checkpoint went into."""

    CUT = "cut"
    SNAPSHOT = "snapshot"
    UPLOAD = "upload"
    BOTH = "both"
    """Snapshot and upload, where only the acknowledgement is known."""
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a bar, milliseconds since the trigger; still growing where it is ``open``."""

    kind: Kind
    begin_ms: int
    end_ms: int
    open: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """The part of one subtask, or of the coordinators, in a checkpoint."""

    who: str
    segments: tuple[Segment, ...]
    says: str


@dataclass(frozen=True, slots=True)
class CheckpointView:
    checkpoint_id: int
    savepoint: bool
    outcome: str
    triggered_at_ms: int
    took_ms: int
    acked: int
    required: int
    state_bytes: int
    reason: str
    bars: tuple[Bar, ...]
    bars_left_out: int


@dataclass(frozen=True, slots=True)
class SubtaskView:
    subtask: int
    phase: str
    attempt: int
    gateway: str
    sent: int
    handled: int
    unhandled: int
    held: int
    received: int
    failures: int
    host: str
    doing: str
    since_s: float
    silent_s: float


@dataclass(frozen=True, slots=True)
class OperatorView:
    operator: str
    parallelism: int
    policy: str
    totals: SubtaskTotals
    subtasks: tuple[SubtaskView, ...]
    left_out: int
    """Subtasks that are not shown one by one."""


@dataclass(frozen=True, slots=True)
class Point:
    """Events per second up to an instant."""

    at_ms: int
    sent: float
    handled: float
    received: float


@dataclass(frozen=True, slots=True)
class View:
    """Everything there is to show of a job at one instant."""

    job: str
    state: str
    """As the status tells it, or ``gone``."""
    says: str
    """The state in a sentence."""
    cause: str
    instance: str
    run: str
    epoch: int
    at_ms: int
    age_s: float
    ended: bool
    running: int
    subtasks: int
    last_completed: int
    last_took_ms: int
    completed: int
    aborted: int
    failovers_region: int
    failovers_global: int
    unhandled: int
    held: int
    held_bytes: int
    rates: Point
    """Over the last seconds."""
    waits: tuple[str, ...]
    """What is waited for, by name; empty: nothing."""
    operators: tuple[OperatorView, ...]
    checkpoints: tuple[CheckpointView, ...]
    """Newest first."""
    focus: int
    """Id of the checkpoint whose bars say most now, or -1."""
    failovers: tuple[FailoverStatus, ...]
    """Newest first."""
    points: tuple[Point, ...]
    """Oldest first."""
    dropped: dict[str, int]


@dataclass(slots=True)
class History:
    """The statuses of one job, in the order they were told: ``see`` each, ``view`` at any time."""

    newest: JobStatus | None = None
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_KEPT))

    def see(self, status: JobStatus) -> bool:
        """Whether it was news. A newer epoch always is: its coordinator's machine may have a clock that is behind."""
        before = self.newest
        if before is not None:
            if status == before or (status.at_ms < before.at_ms and status.epoch <= before.epoch):
                return False
            if (point := _point(before, status)) is not None:
                self.points.append(point)
        self.newest = status
        return True

    def view(self, now_ms: int) -> View | None:
        """None before the first status."""
        if self.newest is None:
            return None
        return _view(self.newest, tuple(self.points), now_ms)


def state_of(status: JobStatus, now_ms: float) -> str:
    """Its state; "gone" where it says that it runs, and has not said so for a while."""
    return "gone" if status.state not in ENDED and age_s(status, now_ms) > STALE_S else status.state


def age_s(status: JobStatus, now_ms: float) -> float:
    return max(0.0, (now_ms - status.at_ms) / 1000)


def totals_of(operator: OperatorStatus) -> SubtaskTotals:
    """All subtasks of an operator together; a status of an older version tells no totals."""
    if operator.totals is not None:
        return operator.totals
    shown = operator.subtasks
    absent = operator.parallelism - len(shown)
    return SubtaskTotals(
        absent=absent + sum(s.phase == "absent" for s in shown),
        waiting=sum(s.phase == "waiting" for s in shown),
        running=sum(s.phase == "running" for s in shown),
        finished=sum(s.phase == "finished" for s in shown),
        closed=sum(s.gateway != "open" for s in shown),
        sent=sum(s.sent for s in shown),
        handled=sum(s.handled for s in shown),
        held=sum(s.held for s in shown),
        held_bytes=0,
        received=sum(s.received for s in shown),
        failures=sum(s.failures for s in shown),
    )


# ---- rates


def _counted(status: JobStatus) -> tuple[int, int, int]:
    totals = [totals_of(operator) for operator in status.operators]
    return sum(t.sent for t in totals), sum(t.handled for t in totals), sum(t.received for t in totals)


def _point(before: JobStatus, after: JobStatus) -> Point | None:
    """Counters begin again with each epoch and each instance, as they do where one has fallen."""
    seconds = (after.at_ms - before.at_ms) / 1000
    if seconds <= 0:
        return None
    again = (before.instance, before.epoch) != (after.instance, after.epoch)
    rates = [
        (new if again or new < old else new - old) / seconds
        for old, new in zip(_counted(before), _counted(after), strict=True)
    ]
    return Point(after.at_ms, *rates)


def _recent(points: tuple[Point, ...], now_ms: int) -> Point:
    """The mean of the last seconds; nothing where nothing has been told for longer."""
    recent = [p for p in points if p.at_ms > now_ms - 1000 * RATE_OVER_S]
    count = max(1, len(recent))
    return Point(
        now_ms,
        sum(p.sent for p in recent) / count,
        sum(p.handled for p in recent) / count,
        sum(p.received for p in recent) / count,
    )


# ---- the parts


def _view(status: JobStatus, points: tuple[Point, ...], now_ms: int) -> View:
    totals = [totals_of(operator) for operator in status.operators]
    state = state_of(status, now_ms)
    checkpoints = tuple(_checkpoint(c) for c in reversed(status.checkpoints))
    return View(
        job=status.job,
        state=state,
        says=words.state(state, sum(t.absent + t.waiting for t in totals)),
        cause=status.cause,
        instance=status.instance,
        run=status.run,
        epoch=status.epoch,
        at_ms=status.at_ms,
        age_s=age_s(status, now_ms),
        ended=status.state in ENDED,
        running=sum(t.running for t in totals),
        subtasks=sum(o.parallelism for o in status.operators),
        last_completed=status.last_completed,
        last_took_ms=-1 if status.last_duration_s < 0 else round(1000 * status.last_duration_s),
        completed=status.checkpoints_completed,
        aborted=status.checkpoints_aborted,
        failovers_region=status.failovers_region,
        failovers_global=status.failovers_global,
        unhandled=sum(t.sent - t.handled for t in totals),
        held=sum(t.held for t in totals),
        held_bytes=sum(t.held_bytes for t in totals),
        rates=_recent(points, now_ms),
        waits=tuple(_waits(status, state, now_ms)),
        operators=tuple(_operator(operator) for operator in status.operators),
        checkpoints=checkpoints,
        focus=_focus(checkpoints),
        failovers=tuple(reversed(status.failovers)),
        points=points,
        dropped=status.dropped,
    )


def _operator(operator: OperatorStatus) -> OperatorView:
    """Where there is no epoch a status names no subtasks: each of them is absent then."""
    totals = totals_of(operator)
    rows = [_subtask(s) for s in operator.subtasks[:ROWS_MAX]]
    if not rows and totals.absent == operator.parallelism:
        rows = [_nobody(index) for index in range(min(operator.parallelism, ROWS_MAX))]
    left_out = operator.parallelism - len(rows)
    return OperatorView(operator.operator, operator.parallelism, operator.policy, totals, tuple(rows), left_out)


def _subtask(s: SubtaskStatus) -> SubtaskView:
    return SubtaskView(
        s.subtask, s.phase, s.attempt, s.gateway, s.sent, s.handled, max(0, s.sent - s.handled), s.held, s.received,
        s.failures, s.host, s.step, s.since_s, s.silent_s,
    )  # fmt: skip


def _nobody(index: int) -> SubtaskView:
    return SubtaskView(index, "absent", -1, "open", 0, 0, 0, 0, 0, 0, "", "", -1.0, 0.0)


def _waits(status: JobStatus, state: str, now_ms: int) -> Iterable[str]:
    if state in ENDED:
        return
    if state == "gone":
        yield words.gone(age_s(status, now_ms))
    elif state in ("starting", "failing-over"):
        yield words.begins(state, status.last_completed)
    else:
        for operator in status.operators:
            yield from words.missing(operator, totals_of(operator))
    yield from words.pending(status, OPEN_BARS_AFTER_MS / 1000)


def _checkpoint(told: CheckpointStatus) -> CheckpointView:
    bars = tuple(_bars(told)) if told.subtasks else ()
    left_out = told.required - len(told.subtasks) if bars else 0
    return CheckpointView(
        told.checkpoint_id, told.savepoint, told.outcome, told.triggered_at_ms, told.took_ms, told.acked,
        told.required, told.state_bytes, told.reason, bars, max(0, left_out),
    )  # fmt: skip


def _bars(told: CheckpointStatus) -> Iterable[Bar]:
    yield Bar("coordinator", tuple(_coordinators(told)), words.cut(told))
    for times in told.subtasks[:BARS_MAX]:
        yield Bar(f"{times.operator}/{times.subtask}", tuple(_steps(told, times)), words.steps(told, times))


def _coordinators(told: CheckpointStatus) -> Iterable[Segment]:
    under_way = told.outcome == "under way"
    if told.marked_ms < 0:
        yield Segment(Kind.CUT, 0, told.took_ms, under_way)
        return
    yield Segment(Kind.CUT, 0, told.marked_ms)
    if told.acked == told.required:
        yield Segment(Kind.COMMIT, max((t.acked_ms for t in told.subtasks), default=0), told.took_ms, under_way)


def _steps(told: CheckpointStatus, times: SubtaskTimes) -> Iterable[Segment]:
    begin, now, under_way = told.marked_ms, told.took_ms, told.outcome == "under way"
    if begin < 0:
        return
    if times.snapshot_ms < 0:
        if times.acked_ms >= 0:
            yield Segment(Kind.BOTH, begin, times.acked_ms)
        else:
            yield Segment(Kind.SNAPSHOT, begin, now, under_way)
        return
    yield Segment(Kind.SNAPSHOT, begin, times.snapshot_ms)
    if times.acked_ms >= 0:
        yield Segment(Kind.UPLOAD, times.snapshot_ms, times.acked_ms)
    else:
        yield Segment(Kind.UPLOAD, times.snapshot_ms, now, under_way)


def _focus(checkpoints: tuple[CheckpointView, ...]) -> int:
    slow = [c for c in checkpoints if c.outcome == "under way" and c.bars and c.took_ms >= OPEN_BARS_AFTER_MS]
    over = [c for c in checkpoints if c.outcome != "under way" and c.bars]
    shown = [*slow[-1:], *over[:1]]
    return shown[0].checkpoint_id if shown else -1
