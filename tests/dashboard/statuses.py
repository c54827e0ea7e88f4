"""Statuses as coordinators tell them, a field at a time."""

from __future__ import annotations

from typing import Any

from penstock.coordinator.status import totals_of
from penstock.schemas.status import (
    CheckpointStatus,
    FailoverStatus,
    JobStatus,
    OperatorStatus,
    PendingStatus,
    SubtaskStatus,
    SubtaskTimes,
)

BEGIN_MS = 1_700_000_000_000


def subtask(index: int = 0, **changes: Any) -> SubtaskStatus:
    given: dict[str, Any] = {
        "subtask": index, "attempt": 7, "phase": "running", "host": "here", "gateway": "open", "sent": 10,
        "handled": 8, "held": 0, "received": 3, "failures": 0, "step": "polling", "silent_s": 0.1, "since_s": 4.0,
    }  # fmt: skip
    return SubtaskStatus(**given | changes)


def operator(*subtasks: SubtaskStatus, name: str = "reader", **changes: Any) -> OperatorStatus:
    given: dict[str, Any] = {
        "operator": name, "parallelism": len(subtasks), "policy": "replay", "subtasks": subtasks,
        "totals": totals_of(subtasks, changes.get("parallelism", len(subtasks))),
    }  # fmt: skip
    return OperatorStatus(**given | changes)


def checkpoint(checkpoint_id: int = 5, *times: SubtaskTimes, **changes: Any) -> CheckpointStatus:
    given: dict[str, Any] = {
        "checkpoint_id": checkpoint_id, "savepoint": False, "epoch": 1, "outcome": "completed",
        "triggered_at_ms": BEGIN_MS, "took_ms": 100, "marked_ms": 10, "acked": len(times), "required": len(times),
        "state_bytes": 1234, "reason": "", "subtasks": times,
    }  # fmt: skip
    return CheckpointStatus(**given | changes)


def failover(**changes: Any) -> FailoverStatus:
    given: dict[str, Any] = {
        "at_ms": BEGIN_MS, "kind": "region", "cause": "reader/1 attempt 7: disk full\nat line 5",
        "subtasks": ("reader/1",), "count": 1, "took_ms": -1,
    }  # fmt: skip
    return FailoverStatus(**given | changes)


def status(second: float = 0.0, **changes: Any) -> JobStatus:
    """Told so many seconds behind the beginning."""
    given: dict[str, Any] = {
        "job": "flights", "instance": "first", "state": "running", "cause": "",
        "at_ms": BEGIN_MS + round(1000 * second), "run": "run-1", "epoch": 1, "last_completed": 5,
        "checkpoints_completed": 5, "checkpoints_aborted": 1, "last_duration_s": 0.035, "failovers_region": 0,
        "failovers_global": 0, "last_failure": "", "dropped": {}, "pending": (),
        "operators": (operator(subtask(0), subtask(1)),), "checkpoints": (), "failovers": (),
    }  # fmt: skip
    return JobStatus(**given | changes)


def pending(**changes: Any) -> PendingStatus:
    given: dict[str, Any] = {"checkpoint_id": 6, "savepoint": False, "age_s": 1.5, "waits_for": "reader/0 (its ack)"}
    return PendingStatus(**given | changes)
