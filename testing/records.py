"""The records that travel between a job's processes, by the names that faults are injected by.

To a subtask: ``Start``, ``Reset``, ``EventFrame``, ``TriggerCheckpoint`` (the marker), ``CompletedNotice``,
``AbortedNotice``, ``Stop``. To the coordinator: ``Hello``, ``Heartbeat``, ``SnapshotTaken``, ``CheckpointAck``,
``CheckpointDecline``, ``Failed``, ``Finished``, ``OperatorEventFrame``, ``RunStarted``, ``Command``, ``FailureHint``,
``CoordinatorHeartbeat``. In the checkpoint log: ``EpochClaimed``, ``RunClaimed``, ``CheckpointCommit``,
``CommandExecuted``, ``JobFinished``. On the status topic: ``JobStatus``, ``CommandReply``.
"""

from __future__ import annotations

from typing import TypeAlias

from ..schemas import checkpoints, events
from ..schemas.acks import (
    AcksRecord,
    CheckpointAck,
    CheckpointDecline,
    Command,
    CoordinatorHeartbeat,
    Failed,
    FailureHint,
    Finished,
    Heartbeat,
    Hello,
    OperatorEventFrame,
    RunStarted,
    SnapshotTaken,
)
from ..schemas.checkpoints import CheckpointLogRecord, CommandExecuted, EpochClaimed, JobFinished, RunClaimed
from ..schemas.events import EventFrame, EventsRecord, Reset, Start, Stop, TriggerCheckpoint
from ..schemas.status import CommandReply, JobStatus

CompletedNotice: TypeAlias = events.CheckpointCompleted
"""Tells a subtask that a checkpoint has completed."""
AbortedNotice: TypeAlias = events.CheckpointAborted
"""Tells a subtask that a checkpoint never will."""
CheckpointCommit: TypeAlias = checkpoints.CheckpointCompleted
"""The commit that completes a checkpoint."""

__all__ = [
    "AbortedNotice",
    "AcksRecord",
    "CheckpointAck",
    "CheckpointCommit",
    "CheckpointDecline",
    "CheckpointLogRecord",
    "Command",
    "CommandExecuted",
    "CommandReply",
    "CompletedNotice",
    "CoordinatorHeartbeat",
    "EpochClaimed",
    "EventFrame",
    "EventsRecord",
    "Failed",
    "FailureHint",
    "Finished",
    "Heartbeat",
    "Hello",
    "JobFinished",
    "JobStatus",
    "OperatorEventFrame",
    "Reset",
    "RunClaimed",
    "RunStarted",
    "SnapshotTaken",
    "Start",
    "Stop",
    "TriggerCheckpoint",
]
