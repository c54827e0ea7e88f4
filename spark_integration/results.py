"""How a run on Spark ended."""

from __future__ import annotations

from dataclasses import dataclass

from ..schemas.checkpoints import JobOutcome
from ..schemas.status import JobStatus


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of ``JobHandle.wait``. A job that failed is an exception."""

    ending: JobOutcome
    """FINISHED: every subtask has finished for good. STOPPED: a later run resumes."""
    cause: str
    run_id: str
    status: JobStatus | None
    """The last one, where there was one."""
