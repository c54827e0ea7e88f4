"""Records of a job's status topic: what it is doing, each second, and replies to commands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Annotated

from .checkpoints import JobOutcome
from .html import table

AT_WORK = ("starting", "running", "failing-over")
"""States of a job that has a coordinator."""
ENDED = tuple(JobOutcome)
"""States of a job that has ended."""


class Ending(StrEnum):
    """Reason for which a coordinator instance ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    FENCED = "fenced"
    LEFT = "left"
    """Its host wanted it to go: the job has not ended, a successor resumes it."""


@dataclass(frozen=True, slots=True)
class End:
    """End of a coordinator instance: its core's last effect, and its host's outcome."""

    ending: Ending
    cause: str


@dataclass(frozen=True, slots=True)
class SubtaskStatus:
    """One subtask as its coordinator sees it."""

    subtask: Annotated[int, "index of the subtask"]
    attempt: Annotated[int, "current attempt, or -1"]
    phase: Annotated[str, "absent, waiting, running, finished"]
    host: Annotated[str, "where the attempt runs"]
    gateway: Annotated[str, "open, or the checkpoint ids it is closed for"]
    sent: Annotated[int, "events appended for it in this epoch"]
    handled: Annotated[int, "of those, events reported handled"]
    held: Annotated[int, "events held by its gateway"]
    received: Annotated[int, "events received from it in this epoch"]
    failures: Annotated[int, "failed attempts since the coordinator instance started"]
    step: Annotated[str, "what it last said it was doing; while it is absent, who is to start over"]
    silent_s: Annotated[float, "log time since its last record, seconds"]
    since_s: Annotated[float, "seconds in this phase"]


@dataclass(frozen=True, slots=True)
class SubtaskTotals:
    """All subtasks of an operator together, also those that are left out of the record."""

    absent: Annotated[int, "subtasks without an attempt that have not asked for one"]
    waiting: Annotated[int, "subtasks whose next attempt has asked for its start"]
    running: Annotated[int, "subtasks with an attempt"]
    finished: Annotated[int, "subtasks whose end a completed checkpoint contains"]
    closed: Annotated[int, "gateways that are closed"]
    sent: Annotated[int, "events appended for them in this epoch"]
    handled: Annotated[int, "of those, events reported handled"]
    held: Annotated[int, "events held by their gateways"]
    held_bytes: Annotated[int, "payload bytes held by their gateways"]
    received: Annotated[int, "events received from them in this epoch"]
    failures: Annotated[int, "failed attempts since the coordinator instance started"]


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """One operator."""

    operator: Annotated[str, "its name"]
    parallelism: Annotated[int, "number of subtasks"]
    policy: Annotated[str, "failover policy"]
    subtasks: Annotated[tuple[SubtaskStatus, ...], "its subtasks; where they do not fit, some, or none"]
    totals: Annotated[SubtaskTotals, "all of its subtasks together"]
    shown: Annotated[str, "what its coordinator shows (context.show), as JSON; or empty"] = ""


@dataclass(frozen=True, slots=True)
class PendingStatus:
    """A checkpoint under way, and what it waits for."""

    checkpoint_id: Annotated[int, "the checkpoint"]
    savepoint: Annotated[bool, "whether it is a savepoint"]
    age_s: Annotated[float, "seconds since its trigger"]
    waits_for: Annotated[str, "which subtask or coordinator, at which step, since when"]


@dataclass(frozen=True, slots=True)
class SubtaskTimes:
    """One subtask's part in a checkpoint; milliseconds since the trigger, -1 for what has not happened."""

    operator: Annotated[str, "its operator"]
    subtask: Annotated[int, "its index"]
    snapshot_ms: Annotated[int, "it had taken its snapshot; -1 also where it said so only with its ack"]
    acked_ms: Annotated[int, "its acknowledgement was read: its state is safe"]


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """A checkpoint step by step: under way, completed or aborted."""

    checkpoint_id: Annotated[int, "the checkpoint"]
    savepoint: Annotated[bool, "whether it is a savepoint"]
    epoch: Annotated[int, "its epoch"]
    outcome: Annotated[str, "under way, completed, aborted"]
    triggered_at_ms: Annotated[int, "wall clock of its trigger, milliseconds since 1970"]
    took_ms: Annotated[int, "milliseconds from its trigger to its end, or until now"]
    marked_ms: Annotated[int, "milliseconds from its trigger to its markers, written behind the cut; or -1"]
    acked: Annotated[int, "subtasks that have acknowledged"]
    required: Annotated[int, "subtasks whose acknowledgements it needs"]
    state_bytes: Annotated[int, "bytes of the states that it has"]
    reason: Annotated[str, "why it was aborted"]
    subtasks: Annotated[tuple[SubtaskTimes, ...], "the slowest; none where a checkpoint is long over"] = ()


@dataclass(frozen=True, slots=True)
class FailoverStatus:
    """Attempts were undone, together."""

    at_ms: Annotated[int, "wall clock, milliseconds since 1970"]
    kind: Annotated[str, "region, or global: the coordinators were rolled back too"]
    cause: Annotated[str, "what had failed, and how"]
    subtasks: Annotated[tuple[str, ...], "whom it undid; the first ones"]
    count: Annotated[int, "how many it undid"]
    took_ms: Annotated[int, "milliseconds until all of them had been started again; -1: not yet"]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one instant."""

    job: Annotated[str, "its name"]
    instance: Annotated[str, "coordinator instance that writes this"]
    state: Annotated[str, "starting, running, failing-over, finished, stopped, failed"]
    cause: Annotated[str, "why it is in that state, where there is a cause"]
    at_ms: Annotated[int, "wall clock, milliseconds since 1970"]
    run: Annotated[str, "the claimed run"]
    epoch: Annotated[int, "current epoch"]
    last_completed: Annotated[int, "last completed checkpoint, or -1"]
    checkpoints_completed: Annotated[int, "since the coordinator instance started"]
    checkpoints_aborted: Annotated[int, "since the coordinator instance started"]
    last_duration_s: Annotated[float, "from trigger to completion of the last one, seconds; -1 before the first"]
    failovers_region: Annotated[int, "region failovers since the coordinator instance started"]
    failovers_global: Annotated[int, "global failovers since the coordinator instance started"]
    last_failure: Annotated[str, "cause of the newest failover"]
    dropped: Annotated[dict[str, int], "records that were read and did not count, by reason"]
    pending: Annotated[tuple[PendingStatus, ...], "checkpoints under way"]
    operators: Annotated[tuple[OperatorStatus, ...], "the operators"]
    checkpoints: Annotated[tuple[CheckpointStatus, ...], "the last ones by their ends, then those under way"] = ()
    failovers: Annotated[tuple[FailoverStatus, ...], "the last ones since the coordinator instance started"] = ()
    last_event_s: Annotated[float, "seconds since an event went to or from a subtask, or its epoch began; or -1"] = -1.0
    settings: Annotated[str, "the job's settings, defaults included, as JSON; or empty"] = ""

    def __repr__(self) -> str:
        subtasks = [subtask for operator in self.operators for subtask in operator.subtasks]
        running = sum(subtask.phase == "running" for subtask in subtasks)
        told = [
            f"epoch {self.epoch}",
            f"checkpoint {self.last_completed}",
            f"{running} of {len(subtasks)} subtasks run",
        ]
        told += [f"checkpoint {pending.checkpoint_id} pending" for pending in self.pending]
        told += [self.cause] * bool(self.cause)
        return f"<JobStatus of {self.job!r}: {self.state}, {', '.join(told)}>"

    def _repr_html_(self) -> str:
        last = "none yet" if self.last_completed < 0 else str(self.last_completed)
        said = [
            f"<b>{escape(self.job)}</b>: {escape(self.state)}",
            f"epoch {self.epoch}",
            f"last checkpoint {last}",
            f"failovers: {self.failovers_region} region, {self.failovers_global} global",
        ]
        lines = [self.cause] * bool(self.cause)
        lines += [f"checkpoint {p.checkpoint_id} waits for {p.waits_for}" for p in self.pending]
        rows = [
            (
                f"{operator.operator} x {operator.parallelism}",
                operator.totals.running,
                operator.totals.finished,
                operator.totals.absent + operator.totals.waiting,
                f"{operator.totals.sent:,}",
                f"{operator.totals.handled:,}",
                f"{operator.totals.received:,}",
            )
            for operator in self.operators
        ]
        header = ("operator", "running", "finished", "not running", "events sent", "handled", "received")
        return ", ".join(said) + table(header, rows) + "<br>".join(escape(line) for line in lines)


_NUMBER_MAX = 253_402_300_799_000
"""Milliseconds from 1970 to the year 9999; no number of milliseconds or seconds in a status is larger."""


def is_plausible(status: JobStatus) -> bool:
    """Return whether every time and duration is one: a status with NaN, or in the year 300,000, is forged."""
    numbers: list[float] = [status.at_ms, status.last_duration_s, status.last_event_s]
    numbers += [pending.age_s for pending in status.pending]
    for operator in status.operators:
        numbers += [seconds for s in operator.subtasks for seconds in (s.silent_s, s.since_s)]
    for c in status.checkpoints:
        numbers += [c.triggered_at_ms, c.took_ms, c.marked_ms]
        numbers += [ms for times in c.subtasks for ms in (times.snapshot_ms, times.acked_ms)]
    numbers += [ms for failover in status.failovers for ms in (failover.at_ms, failover.took_ms)]
    return all(abs(number) < _NUMBER_MAX for number in numbers)  # which NaN is not


@dataclass(frozen=True, slots=True)
class CommandReply:
    """What came of a command."""

    command: Annotated[str, "id of the command"]
    accepted: Annotated[bool, "false where it was refused or failed"]
    outcome: Annotated[str, "what came of it, for people"]
    checkpoint_id: Annotated[int, "checkpoint that it led to, or -1"]
    payload: Annotated[bytes, "answer to a request, else empty"]


class BatchOutcome(StrEnum):
    """What a query is told that asked for its next batch."""

    PLANNED = "planned"
    NOTHING = "nothing"
    """No event has been sent since: the same offset once more."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class BatchPartition:
    """The events of one subtask in a batch: offsets [begin, end) of its events partition."""

    begin: Annotated[int, "first offset"]
    end: Annotated[int, "offset behind the last; the marker stands before it"]
    sequence: Annotated[int, "sequence of the first event"]


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """Answers a query's BatchWanted."""

    run: Annotated[str, "run of the query"]
    request: Annotated[int, "number of the request"]
    outcome: Annotated[BatchOutcome, "whether there is a batch"]
    checkpoint_id: Annotated[int, "the prepared checkpoint; else the one the query named"]
    epoch: Annotated[int, "epoch whose frames count in the batch"]
    partitions: Annotated[tuple[BatchPartition, ...], "by subtask; empty where there is no batch"]
    cause: Annotated[str, "why not, for people"]


StatusRecord = JobStatus | CommandReply | BatchPlanned
"""Whatever may stand in the status topic."""
