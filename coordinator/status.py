"""A job at one instant, as people and metrics see it: read from the core's state, never written to it."""

from __future__ import annotations

from dataclasses import replace

from ..schemas.ids import NO_ATTEMPT
from ..schemas.settings import OperatorSettings
from ..schemas.status import JobStatus, OperatorStatus, PendingStatus, SubtaskStatus
from .protocol import checkpoints
from .protocol.state import JobState, Left, Phase, Slot, SlotPhase

_STATES = {
    Phase.NEW: "starting",
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
    )


def without_subtasks(status: JobStatus) -> JobStatus:
    """The same, in a record of bounded size: thousands of subtasks do not fit one."""
    return replace(status, operators=tuple(replace(operator, subtasks=()) for operator in status.operators))


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
    return OperatorStatus(operator.name, operator.parallelism, operator.on_failover.value, tuple(shown))


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
    )


def _awaited(job: JobState, left: Left) -> str:
    ended = "" if left.killed_at is None else f", its task was to end {job.clock.seconds - left.killed_at:.0f} s ago"
    return f"to start over for {job.clock.seconds - left.since:.0f} s: attempt {left.attempt} ({left.doing}){ended}"
