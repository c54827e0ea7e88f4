"""Liveness and readiness of a process with a coordinator, judged by its newest status."""

from __future__ import annotations

from ..schemas.status import ENDED, JobStatus

SILENT_MAX_S = 120.0
"""The coordinator renews its status each second or so; user code and a slow broker may delay that, not for so long."""


def not_alive(status: JobStatus | None, now_ms: float) -> str | None:
    """Return why the process should be started again, or None.

    A process without a coordinator, as one that stands by, is alive: that it answers shows it. A broker that is away
    is no reason: a new process could not reach it either.
    """
    if status is None or status.state in ENDED:
        return None
    silent_s = (now_ms - status.at_ms) / 1000
    if silent_s <= SILENT_MAX_S:
        return None
    return f"the coordinator of job {status.job} has done nothing for {silent_s:.0f} s"


def not_ready(status: JobStatus | None, now_ms: float, *, stands_by: bool) -> str | None:
    """Return why the process is not at work yet, or not now; None if it is, or if it stands by (``stands_by``)."""
    if status is None:
        return None if stands_by else "the coordinator has not started yet"
    if status.state != "running":
        return f"job {status.job} is {status.state}"
    return not_alive(status, now_ms)
