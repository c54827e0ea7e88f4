"""Records of a job's status topic: what it is doing, each second, and replies to commands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated


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


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """One operator."""

    operator: Annotated[str, "its name"]
    parallelism: Annotated[int, "number of subtasks"]
    policy: Annotated[str, "failover policy"]
    subtasks: Annotated[tuple[SubtaskStatus, ...], "its subtasks"]


@dataclass(frozen=True, slots=True)
class PendingStatus:
    """A checkpoint under way, and what it waits for."""

    checkpoint_id: Annotated[int, "the checkpoint"]
    savepoint: Annotated[bool, "whether it is a savepoint"]
    age_s: Annotated[float, "seconds since its trigger"]
    waits_for: Annotated[str, "which subtask or coordinator, at which step, since when"]


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
