"""The sentences that a viewer shows, for somebody who has not read the protocol."""

from __future__ import annotations

from collections.abc import Iterable

from ..schemas.status import CheckpointStatus, JobStatus, OperatorStatus, SubtaskTimes

MISSING_NAMED = 4
IDLE_AFTER_S = 10.0
"""A job in which so long no event moved is told to be idle."""

STATES = {
    "starting": "The coordinator takes the job up from its log.",
    "running": "Every subtask is there: events flow, and checkpoints are taken.",
    "recovering": "Subtasks start over after a failure. The others go on.",
    "failing-over": "The job is rolled back: every subtask starts over from the last completed checkpoint.",
    "finished": "Every subtask has come to its end.",
    "stopped": "The job was asked to stop; run again, it goes on from its last checkpoint.",
    "failed": "The job has given up.",
    "left": "This coordinator has left; the job goes on with the next one.",
    "fenced": "Another coordinator has taken the job over.",
    "gone": "No status of this job has come for a while: its coordinator has died, is held up in its own code, or"
    " cannot reach the broker.",
}

HINTS = {
    "subtask": "One of the parallel parts of an operator: it handles events.",
    "attempt": "One run of a subtask. A failure ends it, and the next one gets a higher number.",
    "coordinator": "The part of an operator that sends events to its subtasks and receives theirs.",
    "gateway": "The way out for events to one subtask. A checkpoint closes it for a moment; it holds events meanwhile.",
    "frame": "One record of a topic between two operators: several of their records, written together.",
    "unhandled": "Events that were sent and that the subtask has not reported handled yet.",
    "held": "Events that wait in closed gateways until the subtask has taken its snapshot.",
    "received": "Events that the subtask has sent to its coordinator.",
    "sent to handled": "Time from sending an event until the subtask reports it handled: mean of the last 10 seconds.",
    "checkpoint": "A consistent snapshot of the whole job. After a failure the job resumes from the last one.",
    "failover": "Recovery from a failure. region: its subtasks restart. global: the coordinators are rolled back too.",
    "epoch": "The time between two global failovers or changes of coordinator; numbered.",
    "silent": "Seconds since the subtask's last record. After the heartbeat timeout the attempt is given up.",
}

STEPS = {
    "cut": "coordinator's state is taken",
    "snapshot": "marker reaches the subtask, and it takes its snapshot",
    "upload": "state is stored and acknowledged",
    "both": "snapshot and acknowledgement together",
    "commit": "checkpoint is committed",
}


def state(name: str, missing: int) -> str:
    """Return a job's state in a sentence; ``missing`` subtasks have no attempt."""
    if name in ("waiting", "recovering") and missing:
        who = "1 subtask is" if missing == 1 else f"{missing:,} subtasks are"
        after = " after a failure" if name == "recovering" else ""
        return f"{who} not there{after}. The others go on; no checkpoint completes until all are there."
    return STATES.get(name, name)


def gone(age_s: float) -> str:
    return f"the next coordinator: nothing has been heard of this one for {duration(round(1000 * age_s))}"


def followed(state: str) -> str:
    return f"the next coordinator: this one has {'been replaced' if state == 'fenced' else 'left'}"


def begins(state: str, last_completed: int) -> str:
    whence = "from its beginning" if last_completed < 0 else f"from checkpoint {last_completed}"
    if state == "starting":
        return f"the coordinator to take the job up {whence}"
    return f"the next epoch to begin {whence}"


def missing(operator: OperatorStatus) -> Iterable[str]:
    """Who is not there, by name as far as there are few."""
    away = [s for s in operator.subtasks if s.phase in ("absent", "waiting")]
    for s in away[:MISSING_NAMED]:
        name = f"{operator.operator}/{s.subtask}"
        if s.phase == "waiting":
            yield f"{name} to be started again: it has asked for it"
        else:
            yield f"{name} {s.step}" if s.step else f"{name} to be started"
    more = operator.totals.absent + operator.totals.waiting - min(len(away), MISSING_NAMED)
    if more > 0:
        yield f"{more} {'more ' if away else ''}of the {operator.parallelism} subtasks of {operator.operator}"


def pending(status: JobStatus, least_s: float = 0.0) -> list[str]:
    """What every checkpoint under way for so long waits for, by name."""
    return [
        f"{'savepoint' if p.savepoint else 'checkpoint'} {p.checkpoint_id}, {p.age_s:.1f} s old, waits for"
        f" {p.waits_for or 'nothing more'}"
        for p in status.pending
        if p.age_s >= least_s
    ]


def aborts(status: JobStatus) -> str | None:
    """Why checkpoints abort; None if the newest one that is over was completed."""
    over = [c for c in status.checkpoints if c.outcome in ("completed", "aborted")]
    newest = 1 + max((i for i, c in enumerate(over) if c.outcome == "completed"), default=-1)
    # A completed checkpoint aborts those before it, for no fault of theirs.
    failed = [c for c in over[newest:] if c.checkpoint_id > status.last_completed]
    if not failed:
        return None
    last = failed[-1]
    many = "" if len(failed) == 1 else f"{len(failed)} checkpoints in a row were aborted, the newest: "
    return f"{many}checkpoint {last.checkpoint_id} was aborted: {last.reason.partition(chr(10))[0]}"


def idle(status: JobStatus) -> str | None:
    """Say that nobody owes anybody anything: whether more is to come, only the user's own code knows."""
    if status.state != "running" or status.pending or status.last_event_s < IDLE_AFTER_S:
        return None
    if any(t.absent or t.waiting or t.held or t.handled < t.sent for t in (o.totals for o in status.operators)):
        return None
    last = duration(round(1000 * status.last_event_s))
    return f"idle: every event sent is handled, no checkpoint is under way, and the last event was {last} ago"


def waiting(what: str) -> str:
    """An entry of a view's waits, as a line that stands alone."""
    return what if " waits for " in what or what.startswith("idle: ") else f"waits for {what}"


def cut(told: CheckpointStatus) -> str:
    if told.marked_ms < 0:
        return f"not cut after {duration(told.took_ms)}"
    return f"cut after {duration(told.marked_ms)}"


def steps(told: CheckpointStatus, times: SubtaskTimes) -> str:
    if times.acked_ms >= 0:
        return f"safe after {duration(times.acked_ms)}"
    if told.marked_ms < 0:
        return "has no marker yet"
    if times.snapshot_ms >= 0:
        return f"snapshot after {duration(times.snapshot_ms)}, not safe yet"
    return f"no snapshot after {duration(told.took_ms)}"


def duration(ms: int) -> str:
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    if ms < 120_000:
        return f"{ms / 1000:.0f} s"
    return f"{ms / 60_000:.0f} min"


def size(count: int) -> str:
    if count < 10_000:
        return f"{count:,} B"
    if count < 10_000_000:
        return f"{count / 1000:,.0f} kB"
    return f"{count / 1_000_000:,.0f} MB"
