"""What there is to see of a job: from the statuses that its coordinators tell to the values that viewers show.

Pure: the web page and ``penstock status --watch`` show the same, and both take it from here. Times of day are
milliseconds since 1970, durations are in milliseconds (``_ms``) or seconds (``_s``).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from ..coordinator.status import SUBTASKS_TOLD, looked_for_first
from ..schemas.status import (
    AT_WORK,
    ENDED,
    CheckpointStatus,
    FailoverStatus,
    JobStatus,
    OperatorStatus,
    SubtaskStatus,
    SubtaskTimes,
    SubtaskTotals,
)
from . import flows, messages
from .flows import Point
from .settings_shown import Edge, settings_of

STALE_S = 5.0
"""A status this old is told as old: a coordinator writes one each second."""
POINTS_KEPT = 180
"""Of the event rates: about three minutes."""
ROWS_MAX = SUBTASKS_TOLD
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
    shown: dict[str, str]
    """What its coordinator shows, by name."""
    rates: Point
    """Over the last seconds."""
    latency_ms: float
    """From an event's being sent to its being reported handled, on average; -1: none was handled lately."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything there is to show of a job at one instant."""

    job: str
    state: str
    """As the status tells it, or as :func:`state_of` has it."""
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
    latency_ms: float
    """As an operator's, of all of them."""
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
    edges: tuple[Edge, ...]
    settings: tuple[tuple[str, str], ...]
    """Names and values, defaults included."""


@dataclass(slots=True)
class History:
    """The statuses of one job, in the order they were told: ``see`` each, ``view`` at any time.

    Clocks of several machines are not compared, so that one that is wrong makes nobody look gone, or older than whom he
    has replaced: how old a status is says when it was heard, and which of two coordinators counts says the epoch.
    """

    newest: JobStatus | None = None
    heard_ms: int = 0
    """When it was told, by the clock of whoever looks."""
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_KEPT))
    operator_points: dict[str, deque[Point]] = field(default_factory=dict)

    def see(self, status: JobStatus, heard_ms: int | None = None) -> bool:
        """Whether it was news. One that nobody heard being told is taken to have been told when it says."""
        heard_ms, before = status.at_ms if heard_ms is None else heard_ms, self.newest
        if before is not None:
            tells = before.state in ENDED or heard_ms < self.heard_ms + 1000 * STALE_S
            if status == before or (tells and status.epoch < before.epoch):  # who was frozen may tell something more
                return False
            points, known = flows.points_between(before, status), self.operator_points
            self.operator_points = {
                o.operator: known.get(o.operator) or deque(maxlen=POINTS_KEPT) for o in status.operators
            }
            for operator, point in points.items():
                self.operator_points[operator].append(point)
            if (of_job := flows.total(points.values())) is not None:
                self.points.append(of_job)
        self.newest, self.heard_ms = status, heard_ms
        return True

    def view(self, now_ms: int) -> View | None:
        """None before the first status."""
        if self.newest is None:
            return None
        return _view(self, self.newest, max(0.0, (now_ms - self.heard_ms) / 1000))


def state_of(status: JobStatus, age_s: float) -> str:
    """Return the state that people are shown: that of the status, or a truer one.

    "gone": it says that it is at work, and has not said so for a while. "recovering": it runs, and a failover is not
    over. "waiting": it runs, and subtasks are missing without a failover, as while they start.
    """
    if status.state in AT_WORK and age_s > STALE_S:
        return "gone"
    if status.state != "running":
        return status.state
    if any(f.took_ms < 0 for f in status.failovers):
        return "recovering"
    return "waiting" if missing(status) else "running"


def missing(status: JobStatus) -> int:
    """Return how many subtasks have no attempt and have not finished."""
    return sum(o.totals.absent + o.totals.waiting for o in status.operators)


def age_s(status: JobStatus, now_ms: float) -> float:
    """By its own clock: of a status that nobody heard being told."""
    return max(0.0, (now_ms - status.at_ms) / 1000)


# ---- the parts


def _view(history: History, status: JobStatus, age_s: float) -> View:
    totals = [operator.totals for operator in status.operators]
    now_ms, points = status.at_ms + round(1000 * age_s), tuple(history.points)
    settings = settings_of(status.settings)
    state = state_of(status, age_s)
    checkpoints = tuple(_checkpoint(c) for c in reversed(status.checkpoints))
    return View(
        job=status.job,
        state=state,
        says=messages.state(state, missing(status)),
        cause=status.cause,
        instance=status.instance,
        run=status.run,
        epoch=status.epoch,
        at_ms=status.at_ms,
        age_s=age_s,
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
        rates=flows.recent(points, now_ms),
        latency_ms=flows.latency_ms(points, now_ms),
        waits=tuple(_waits(status, state, age_s)),
        operators=tuple(_operator(o, history.operator_points.get(o.operator, ()), now_ms) for o in status.operators),
        checkpoints=checkpoints,
        focus=_focus(checkpoints),
        failovers=tuple(reversed(status.failovers)),
        points=points,
        dropped=status.dropped,
        edges=settings.edges,
        settings=settings.lines,
    )


def _operator(operator: OperatorStatus, points: Iterable[Point], now_ms: int) -> OperatorView:
    """Where there is no epoch a status names no subtasks: each of them is absent then."""
    totals = operator.totals
    rows = [_subtask(s) for s in looked_for_first(operator.subtasks, ROWS_MAX)]
    if not rows and totals.absent == operator.parallelism:
        rows = [_nobody(index) for index in range(min(operator.parallelism, ROWS_MAX))]
    left_out = operator.parallelism - len(rows)
    return OperatorView(
        operator.operator, operator.parallelism, operator.policy, totals, tuple(rows), left_out,
        _shown(operator.shown), flows.recent(points, now_ms), flows.latency_ms(points, now_ms),
    )  # fmt: skip


def _shown(text: str) -> dict[str, str]:
    """Names with their values as text; none where a forged record holds something else."""
    try:
        shown = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(shown, dict):
        return {}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in shown.items()}


def _subtask(s: SubtaskStatus) -> SubtaskView:
    return SubtaskView(
        s.subtask, s.phase, s.attempt, s.gateway, s.sent, s.handled, max(0, s.sent - s.handled), s.held, s.received,
        s.failures, s.host, s.step, s.since_s, s.silent_s,
    )  # fmt: skip


def _nobody(index: int) -> SubtaskView:
    return SubtaskView(index, "absent", -1, "open", 0, 0, 0, 0, 0, 0, "", "", -1.0, 0.0)


def _waits(status: JobStatus, state: str, age_s: float) -> Iterable[str]:
    if state in ENDED:
        return
    if state == "gone":
        yield messages.gone(age_s)
    elif status.state not in AT_WORK:
        yield messages.followed(state)
    elif state in ("starting", "failing-over"):
        yield messages.begins(state, status.last_completed)
    else:
        for operator in status.operators:
            yield from messages.missing(operator)
        if (idle := messages.idle(status)) is not None:
            yield idle
    yield from messages.pending(status, OPEN_BARS_AFTER_MS / 1000)


def _checkpoint(told: CheckpointStatus) -> CheckpointView:
    bars = tuple(_bars(told)) if told.subtasks else ()
    left_out = told.required - len(told.subtasks) if bars else 0
    return CheckpointView(
        told.checkpoint_id, told.savepoint, told.outcome, told.triggered_at_ms, told.took_ms, told.acked,
        told.required, told.state_bytes, told.reason, bars, max(0, left_out),
    )  # fmt: skip


def _bars(told: CheckpointStatus) -> Iterable[Bar]:
    yield Bar("coordinator", tuple(_coordinators(told)), messages.cut(told))
    for times in told.subtasks[:BARS_MAX]:
        yield Bar(f"{times.operator}/{times.subtask}", tuple(_steps(told, times)), messages.steps(told, times))


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
