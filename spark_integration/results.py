"""How a run on Spark ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..schemas.status import JobStatus


class RunEnding(StrEnum):
    """The ways in which a run ends well; every other way is an exception."""

    FINISHED = "finished"
    """Every subtask has finished for good."""
    STOPPED = "stopped"
    """Somebody asked for it; a later run resumes."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """What ``JobHandle.wait`` returns."""

    ending: RunEnding
    cause: str
    run_id: str
    status: JobStatus | None
    """The last one, where there was one."""
