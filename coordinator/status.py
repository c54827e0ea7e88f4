"""A job at one instant, as people and metrics see it: read from the core's state, never written to it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from heapq import nsmallest

from ..schemas.codec import encode
from ..schemas.ids import NO_ATTEMPT, SubtaskId
from ..schemas.sanitize import TEXT_CHARS_MAX
from ..schemas.settings import JobSettings, OperatorSettings
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
from .protocol import checkpoints, waiting
from .protocol.registry import UndoneAttempt
from .protocol.state import JobState, Phase, Slot, SlotPhase
from .protocol.timeline import CHECKPOINTS_TIMED, Failover, Over, Times

SUBTASKS_TOLD = 1_000
"""A record names so many: it is written each second, and whoever looks reads the last minutes of them."""
OPERATORS_SUBTASKS_TOLD = 200
"""Of each operator, where a record does not name them all."""
CAUSE_CHARS = 500
CAUSES_WHOLE = 3
"""Of so many of the newest failovers the whole cause is told, with the places in user code that it came through."""
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
    statistics, slots = job.statistics, _slots(job)
    return JobStatus(
        job=job.settings.name,
        instance=job.instance,
        state=state or _STATES[job.phase],
        cause=cause or ("" if job.phase is not Phase.BACKING_OFF else job.next_epoch.cause),
        at_ms=job.wall_ms(),
        run=job.registry.run_id,
        epoch=job.history.epoch,
        last_completed=job.history.last_id,
        checkpoints_completed=statistics.completed,
        checkpoints_aborted=statistics.aborted,
        last_duration_s=statistics.last_duration_s,
        failovers_region=statistics.region_failovers,
        failovers_global=statistics.global_failovers,
        last_failure=statistics.last_failure,
        dropped={str(reason): count for reason, count in statistics.dropped.items()},
        pending=_pending(job),
        operators=tuple(_operator(job, operator, slots[operator.name]) for operator in job.settings.operators),
        checkpoints=_checkpoints(job),
        failovers=_failovers(job),
        last_event_s=-1.0 if job.epoch is None else job.now - job.epoch.event_at,
    )


def encoded(status: JobStatus, bytes_max: int) -> bytes:
    """In a record of at most so many bytes, which names those subtasks that there is room for. Totals are of all."""
    for kept in (_room(status), 0):
        record = encode(with_subtasks(status, kept))
        if len(record) <= bytes_max:
            break
    return record


def _room(status: JobStatus) -> int:
    """How many subtasks of each operator a record names."""
    if sum(operator.parallelism for operator in status.operators) <= SUBTASKS_TOLD:
        return SUBTASKS_TOLD
    return max(1, min(OPERATORS_SUBTASKS_TOLD, SUBTASKS_TOLD // len(status.operators)))


def with_subtasks(status: JobStatus, kept: int) -> JobStatus:
    """The same with at most so many subtasks of each operator: those that somebody would look for first."""
    return replace(
        status,
        operators=tuple(
            replace(operator, subtasks=looked_for_first(operator.subtasks, kept)) for operator in status.operators
        ),
    )


def looked_for_first(subtasks: tuple[SubtaskStatus, ...], kept: int) -> tuple[SubtaskStatus, ...]:
    """At most so many of them, in their order: those that are not there, or held up, before the others."""
    if len(subtasks) <= kept:
        return subtasks
    return tuple(sorted(nsmallest(kept, subtasks, _notable), key=lambda s: s.subtask))


def _notable(s: SubtaskStatus) -> tuple[bool, bool, float, int, int]:
    return s.phase in ("running", "finished"), s.gateway == "open", -s.silent_s, s.handled - s.sent, s.subtask


def _pending(job: JobState) -> tuple[PendingStatus, ...]:
    under_way = [] if job.epoch is None else list(job.epoch.pending.values())
    shown = [PendingStatus(p.id, p.savepoint, job.now - p.triggered_at, waiting.waits_for(job, p)) for p in under_way]
    for n, prepared in job.history.prepared.items():  # by an epoch before this one
        if all(p.id != n for p in under_way):
            age_s = job.now - job.monotonic(prepared.header.triggered_at_ms)
            shown.append(PendingStatus(n, False, age_s, waiting.WAITS_FOR_SPARK))
    return tuple(shown)


def _slots(job: JobState) -> dict[str, list[Slot]]:
    """By operator; none where there is no epoch."""
    found = defaultdict[str, list[Slot]](list)
    for subtask, slot in () if job.epoch is None else job.epoch.slots.items():
        found[subtask.operator].append(slot)
    return found


def _operator(job: JobState, operator: OperatorSettings, slots: list[Slot]) -> OperatorStatus:
    shown = tuple([_subtask(job, slot) for slot in slots])
    held_bytes = 0 if job.epoch is None else job.epoch.held_bytes[operator.name]
    totals = replace(totals_of(shown, operator.parallelism), held_bytes=held_bytes)
    return OperatorStatus(operator.name, operator.parallelism, operator.on_failover.value, shown, totals)


def totals_of(subtasks: Iterable[SubtaskStatus], parallelism: int) -> SubtaskTotals:
    """What they come to together, but for the bytes held, which none of them tells. Who is not named is absent."""
    phases = {"absent": 0, "waiting": 0, "running": 0, "finished": 0}
    closed = sent = handled = held = received = failures = 0
    for s in subtasks:
        phases[s.phase] = phases.get(s.phase, 0) + 1
        closed += s.gateway != "open"
        sent += s.sent
        handled += s.handled
        held += s.held
        received += s.received
        failures += s.failures
    return SubtaskTotals(
        absent=phases["absent"] + max(0, parallelism - sum(phases.values())),
        waiting=phases["waiting"], running=phases["running"], finished=phases["finished"], closed=closed, sent=sent,
        handled=handled, held=held, held_bytes=0, received=received, failures=failures,
    )  # fmt: skip


def _subtask(job: JobState, slot: Slot) -> SubtaskStatus:
    """Of ten thousand, each second, on the coordinator's own thread."""
    subtask, attempt, stream, gateway = slot.subtask, slot.attempt, slot.stream, slot.gateway
    phase, host, step, seen_at = "running", "", "", None
    if attempt is not None:
        host, step, seen_at = attempt.hello.host, attempt.step, attempt.seen_at
    elif slot.phase is SlotPhase.DONE:
        phase = "finished"
    elif (waiting := job.registry.waiting.get(subtask)) is not None:
        phase, host = "waiting", waiting.hello.host
    else:
        phase = "absent"
        if (undone := job.registry.undone.get(subtask)) is not None:
            host, step, seen_at = undone.host, _awaited(job, undone), undone.seen_at
    closed = gateway.closed
    return SubtaskStatus(
        subtask.index,
        NO_ATTEMPT if attempt is None else attempt.id,
        phase,
        host,
        "closed for " + ", ".join(map(str, closed)) if closed else "open",
        0 if stream is None else stream.appended_through,
        0 if stream is None else stream.handled_through,
        gateway.held_events if closed else 0,
        slot.events_received,
        job.statistics.failures.get(subtask, 0),
        step,
        0.0 if seen_at is None else max(0.0, job.clock.seconds - seen_at),
        max(0.0, job.now - slot.since),
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


def _failovers(job: JobState) -> tuple[FailoverStatus, ...]:
    """Oldest first."""
    told = job.timeline.failovers
    whole = len(told) - CAUSES_WHOLE
    return tuple(_failover(job, each, TEXT_CHARS_MAX if n >= whole else CAUSE_CHARS) for n, each in enumerate(told))


def _failover(job: JobState, failover: Failover, cause_chars: int) -> FailoverStatus:
    return FailoverStatus(
        job.wall_ms(failover.at),
        "global" if failover.of_job else "region",
        failover.cause[:cause_chars],
        tuple(map(str, failover.subtasks[:FAILED_TOLD])),
        failover.count,
        -1 if failover.over_at is None else _ms(failover.over_at - failover.at),
    )


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _awaited(job: JobState, undone: UndoneAttempt) -> str:
    ended = (
        "" if undone.killed_at is None else f", its task was to end {job.clock.seconds - undone.killed_at:.0f} s ago"
    )
    return (
        f"to start over for {job.clock.seconds - undone.since:.0f} s: attempt {undone.attempt} ({undone.doing}){ended}"
    )


def settings_told(settings: JobSettings) -> str:
    """Return the job's settings as JSON: no schemas (the checkpoint log has them), and no credentials in a URL."""
    told = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name not in _NOT_TOLD}
    if settings.state_storage is not None:
        told["state_storage"] = re.sub(r"//[^/]*@", "//...@", settings.state_storage.partition("?")[0])
    return json.dumps(told, default=asdict, separators=(",", ":"))


_NOT_TOLD = ("graph", "schemas")


def completed(status: JobStatus, at_ms: int, shown: Mapping[str, str], settings: str) -> JobStatus:
    """Return the status as it is published: with the time, the settings as they are told, and what coordinators show of
    themselves."""
    operators = (replace(each, shown=shown.get(each.operator, each.shown)) for each in status.operators)
    return replace(status, at_ms=at_ms, operators=tuple(operators), settings=settings)
