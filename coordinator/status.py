"""A job at one instant, as people and metrics see it: read from the core's state, never written to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..schemas.codec import encode
from ..schemas.ids import NO_ATTEMPT, SubtaskId
from ..schemas.settings import OperatorSettings
from ..schemas.status import (
    CheckpointStatus,
    FailoverStatus,
    JobStatus,
    OperatorStatus,
    PendingStatus,
    SubtaskStatus,
    SubtaskTimes,
    SubtaskTotals,
)
from .protocol import checkpoints
from .protocol.state import JobState, Left, Phase, Slot, SlotPhase
from .protocol.timeline import CHECKPOINTS_TIMED, Failover, Over, Times

SUBTASKS_TOLD = 200
"""Of each operator, where a record cannot hold them all."""
CAUSE_CHARS = 500
FAILED_TOLD = 8

_STATES = {
    Phase.NEW: "starting",
    Phase.RESCALING: "starting",
    Phase.CLAIMING: "starting",
    Phase.CATCHING_UP: "starting",
    Phase.RUNNING: "running",
    Phase.BACKING_OFF: "failing-over",
    Phase.ENDED: "ended",
}


def job_status(job: JobState, state: str | None = None, cause: str = "") -> JobStatus:
    """What the coordinator knows now. ``state`` and ``cause`` override what follows from its phase."""
    statistics = job.statistics
    return JobStatus(
        job=job.settings.name,
        instance=job.instance,
        state=state or _STATES[job.phase],
        cause=cause or ("" if job.phase is not Phase.BACKING_OFF else job.failover_cause),
        at_ms=job.wall_ms(),
        run="" if job.run is None else job.run[0],
        epoch=job.history.epoch,
        last_completed=job.history.last_id,
        checkpoints_completed=statistics.completed,
        checkpoints_aborted=statistics.aborted,
        last_duration_s=statistics.last_duration_s,
        failovers_region=statistics.region_failovers,
        failovers_global=statistics.global_failovers,
        last_failure=statistics.last_failure,
        dropped=dict(statistics.dropped),
        pending=_pending(job),
        operators=tuple(_operator(job, operator) for operator in job.settings.operators),
        checkpoints=_checkpoints(job),
        failovers=tuple(_failover(job, failover) for failover in job.timeline.failovers),
    )


def encoded(status: JobStatus, bytes_max: int) -> bytes:
    """In a record of at most so many bytes: thousands of subtasks do not fit one. Their totals always stand in it."""
    for kept in (None, SUBTASKS_TOLD, 0):
        record = encode(status if kept is None else with_subtasks(status, kept))
        if len(record) <= bytes_max:
            break
    return record


def with_subtasks(status: JobStatus, kept: int) -> JobStatus:
    """The same with at most so many subtasks of each operator: those that somebody would look for first."""
    return replace(
        status,
        operators=tuple(
            replace(
                operator,
                subtasks=tuple(sorted(sorted(operator.subtasks, key=_notable)[:kept], key=lambda s: s.subtask)),
            )
            for operator in status.operators
        ),
    )


def _notable(s: SubtaskStatus) -> tuple[bool, bool, float, int, int]:
    return s.phase in ("running", "finished"), s.gateway == "open", -s.silent_s, s.handled - s.sent, s.subtask


def _pending(job: JobState) -> tuple[PendingStatus, ...]:
    under_way = [] if job.epoch is None else list(job.epoch.pending.values())
    shown = [
        PendingStatus(p.id, p.savepoint, job.now - p.triggered_at, checkpoints.waits_for(job, p)) for p in under_way
    ]
    for n, prepared in job.history.prepared.items():  # by an epoch before this one
        if all(p.id != n for p in under_way):
            age_s = job.now - job.monotonic(prepared.header.triggered_at_ms)
            shown.append(PendingStatus(n, False, age_s, checkpoints.WAITS_FOR_SPARK))
    return tuple(shown)


def _operator(job: JobState, operator: OperatorSettings) -> OperatorStatus:
    slots = {} if job.epoch is None else job.epoch.slots
    shown = [_subtask(job, slot) for subtask, slot in slots.items() if subtask.operator == operator.name]
    held_bytes = 0 if job.epoch is None else job.epoch.held_bytes[operator.name]
    absent = max(0, operator.parallelism - len(shown))
    totals = replace(totals_of(shown), held_bytes=held_bytes)
    totals = replace(totals, absent=totals.absent + absent)
    return OperatorStatus(operator.name, operator.parallelism, operator.on_failover.value, tuple(shown), totals)


def totals_of(subtasks: Sequence[SubtaskStatus]) -> SubtaskTotals:
    """What they come to together, but for the bytes held, which none of them tells."""
    phases = Counter(s.phase for s in subtasks)
    return SubtaskTotals(
        absent=phases["absent"],
        waiting=phases["waiting"],
        running=phases["running"],
        finished=phases["finished"],
        closed=sum(s.gateway != "open" for s in subtasks),
        sent=sum(s.sent for s in subtasks),
        handled=sum(s.handled for s in subtasks),
        held=sum(s.held for s in subtasks),
        held_bytes=0,
        received=sum(s.received for s in subtasks),
        failures=sum(s.failures for s in subtasks),
    )


def _subtask(job: JobState, slot: Slot) -> SubtaskStatus:
    attempt, stream, waiting = slot.attempt, slot.stream, job.hellos.get(slot.subtask)
    phase = {SlotPhase.LIVE: "running", SlotPhase.DONE: "finished", SlotPhase.ABSENT: "absent"}[slot.phase]
    if phase == "absent" and waiting is not None:
        phase = "waiting"
    left = job.left.get(slot.subtask) if phase == "absent" else None
    known = attempt or left
    host = left.host if left is not None else ""
    if (answered := attempt or waiting) is not None:
        host = answered.hello.host
    return SubtaskStatus(
        subtask=slot.subtask.index,
        attempt=NO_ATTEMPT if attempt is None else attempt.id,
        phase=phase,
        host=host,
        gateway=("closed for " + ", ".join(map(str, slot.gateway.closed))) if slot.gateway.closed else "open",
        sent=0 if stream is None else stream.appended_through,
        handled=0 if stream is None else stream.handled_through,
        held=slot.gateway.held_events,
        received=slot.events_received,
        failures=job.statistics.failures[slot.subtask],
        step=attempt.step if attempt is not None else "" if left is None else _awaited(job, left),
        silent_s=0.0 if known is None else max(0.0, job.clock.seconds - known.seen_at),
        since_s=max(0.0, job.now - slot.since),
    )


def _checkpoints(job: JobState) -> tuple[CheckpointStatus, ...]:
    under_way = [] if job.epoch is None else list(job.epoch.pending.values())
    return tuple(_checkpoint_over(job, over) for over in job.timeline.checkpoints) + tuple(
        CheckpointStatus(
            p.id, p.savepoint, job.current.number, "under way", job.wall_ms(p.triggered_at),
            _ms(job.now - p.triggered_at), _marked_ms(p.times, p.triggered_at), len(p.acks), len(p.required),
            checkpoints.state_bytes(p), "", _subtask_times(p.times, p.triggered_at, p.times.slowest(p.required)),
        )
        for p in under_way[-CHECKPOINTS_TIMED:]
    )  # fmt: skip


def _checkpoint_over(job: JobState, over: Over) -> CheckpointStatus:
    return CheckpointStatus(
        over.id, over.savepoint, over.epoch, "completed" if over.reason is None else "aborted",
        job.wall_ms(over.triggered_at), _ms(over.ended_at - over.triggered_at),
        _marked_ms(over.times, over.triggered_at), over.acked, over.required, over.size,
        (over.reason or "")[:CAUSE_CHARS], _subtask_times(over.times, over.triggered_at, over.subtasks),
    )  # fmt: skip


def _subtask_times(times: Times, begin: float, subtasks: Iterable[SubtaskId]) -> tuple[SubtaskTimes, ...]:
    def ms(at: float | None) -> int:
        return -1 if at is None else _ms(at - begin)

    return tuple(
        SubtaskTimes(s.operator, s.index, ms(times.snapshot_at.get(s)), ms(times.acked_at.get(s))) for s in subtasks
    )


def _marked_ms(times: Times, begin: float) -> int:
    return -1 if times.marked_at is None else _ms(times.marked_at - begin)


def _failover(job: JobState, failover: Failover) -> FailoverStatus:
    return FailoverStatus(
        job.wall_ms(failover.at),
        "global" if failover.of_job else "region",
        failover.cause[:CAUSE_CHARS],
        tuple(map(str, failover.subtasks[:FAILED_TOLD])),
        failover.count,
        -1 if failover.over_at is None else _ms(failover.over_at - failover.at),
    )


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _awaited(job: JobState, left: Left) -> str:
    ended = "" if left.killed_at is None else f", its task was to end {job.clock.seconds - left.killed_at:.0f} s ago"
    return f"to start over for {job.clock.seconds - left.since:.0f} s: attempt {left.attempt} ({left.doing}){ended}"
