"""What a coordinator knows of the query that drives its job, where one does (protocol, section 10)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...schemas.acks import BatchEventFrame, BatchEvents, BatchWanted
from ...schemas.status import BatchPlanned
from .pending import Pending


@dataclass(frozen=True, slots=True)
class BatchBegin:
    """Where the next batch of a query begins in a subtask's event partition."""

    offset: int
    sequence: int


NO_BATCH = BatchBegin(0, 0)
"""While no query has attached."""


@dataclass(slots=True)
class Query:
    """The newest run of the query that drives the job, and what it asks for (protocol, section 10)."""

    offset: int
    """Of the newest request that it had not made before, in the acks topic."""
    wanted: BatchWanted
    wanted_at: float
    """Monotonic seconds."""
    answer: BatchPlanned | None = None
    """To ``wanted``."""

    @property
    def answer_by(self) -> float:
        """Monotonic second at which it is answered though there is nothing new."""
        return self.wanted_at + self.wanted.wait_ms / 1000


@dataclass(frozen=True, slots=True)
class Decision:
    """Spark has committed the batch of a prepared checkpoint."""

    checkpoint_id: int
    position: int
    """Offset in the acks topic behind the first record that says so."""


@dataclass(slots=True)
class QueryState:
    """State of the query that drives the job."""

    newest: Query | None = None
    """Newest query that has asked; None before the first."""
    decision: Decision | None = None
    """The last one that was read, also where nobody could act on it: it counts while that checkpoint is prepared."""
    manifests: dict[int, BatchEvents] = field(default_factory=dict)
    """By prepared checkpoint: who has written what its batch sent to a coordinator."""


@dataclass(slots=True)
class Rereading:
    """A checkpoint that completes once what its batch sent has been read again."""

    pending: Pending
    manifest: BatchEvents
    decision: Decision
    frames: dict[str, list[BatchEventFrame]] = field(init=False)
    """By writer; those that the manifest names."""
    size: int = 0
    """Bytes of events in them; where these are too many, the frames are not all kept."""

    def __post_init__(self) -> None:
        self.frames = {writer.writer: [] for writer in self.manifest.writers}
