"""What the host of a coordinator instance chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..schemas.errors import ConfigurationError
from ..schemas.ids import SubtaskId
from ..schemas.settings import Restore
from ..schemas.status import JobStatus
from .protocol.inputs import Known


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What the host of a coordinator chooses."""

    restore: Restore = Restore.LATEST
    restore_checkpoint: int = -1
    must_exist: bool = False
    """Whether the start is refused if the job has no checkpoint log to go on from, as on a broker that lost its data.
    """
    continues: bool = False
    """Whether this instance follows another of the same host: then a job that has ended meanwhile stays ended."""
    known: Known = field(default_factory=Known)
    """Facts that the checkpoint log must hold, by what the host has heard of the coordinator before."""
    status_interval_s: float = 1.0
    on_silent: Callable[[SubtaskId, str, str], None] | None = None
    """Called with (subtask, task, cause) where an attempt is silent, or stuck: end its task, if you can."""
    on_status: Callable[[JobStatus], None] | None = None
    """Called with each status, on the coordinator's thread; must not block."""
    deadline_s: float = 60.0
    """Seconds for each step of start-up and for each commit."""

    def __post_init__(self) -> None:
        if self.must_exist and self.restore is Restore.FRESH:
            raise ConfigurationError("must_exist and Restore.FRESH contradict one another: give one of them")
