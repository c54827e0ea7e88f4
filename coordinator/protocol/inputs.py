"""Everything that can happen to a coordinator: a closed union.

An effect of :mod:`.effects` that is answered names the input that answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...checkpoint_log.history import Keyed
from ...checkpoint_log.restorability import Offsets
from ...schemas.acks import AcksRecord
from ...schemas.graph import DataPartition
from ...schemas.ids import NO_CHECKPOINT, SubtaskId
from ...schemas.settings import Restore
from ...schemas.state import StateHandle
from .stream import EventStream


@dataclass(frozen=True, slots=True)
class Known:
    """What the host of a coordinator knows to stand in the checkpoint log, from an instance that has ended."""

    epoch: int = 0
    checkpoint_id: int = NO_CHECKPOINT
    """The newest that has completed and was kept."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The coordinator owns its checkpoint log, has read it to the end, and looked at the topics."""

    log: tuple[Keyed, ...]
    topic_ids: Mapping[str, str]
    events: Mapping[SubtaskId, Offsets]
    acks: Offsets
    wall_ms: int
    """Wall clock at this input, milliseconds since 1970."""
    restore: Restore = Restore.LATEST
    restore_checkpoint: int = -1
    continues: bool = False
    """Whether this instance follows one that broke off: then a job that has ended stays ended."""
    data: Mapping[DataPartition, Offsets] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    """How many partitions the events topic of each operator has: no fewer than it ever had subtasks."""
    first_epoch: int = 1
    """Above the epochs of earlier incarnations of the job."""
    known: Known = field(default_factory=Known)


@dataclass(frozen=True, slots=True)
class Redistributed:
    """Answers ``Redistribute``: the states of each operator's new subtasks, in the order of their indices."""

    states: Mapping[str, tuple[StateHandle | None, ...]]


@dataclass(frozen=True, slots=True)
class Committed:
    """Answers ``Commit``: the transaction stands. Any other outcome ends the instance, and no input follows."""

    event_ends: Mapping[SubtaskId, int] = field(default_factory=dict)
    """Ends of the event partitions after the commit, where ``Commit.looks_at_ends`` asked for them."""
    acks_end: int = 0
    data_ends: Mapping[DataPartition, int] = field(default_factory=dict)
    """Of the data partitions, like ``event_ends``."""


@dataclass(frozen=True, slots=True)
class Reread:
    """Answers ``ReadAcks``, once for each readable record of the range, in order."""

    offset: int
    record: AcksRecord


@dataclass(frozen=True, slots=True)
class RereadEnd:
    """Answers ``ReadAcks``, behind its last ``Reread``."""


@dataclass(frozen=True, slots=True)
class EndsSeen:
    """Answers ``LookAtEnds``, behind every AppendFailed of what was appended before it."""

    checkpoint_id: int
    event_ends: Mapping[SubtaskId, int]


@dataclass(frozen=True, slots=True)
class AckRead:
    """The next record of the acks topic; None where it could not be decoded."""

    offset: int
    appended_at_ms: int
    record: AcksRecord | None


@dataclass(frozen=True, slots=True)
class Sent:
    """User code has sent events, in order, since the last such input."""

    stream: EventStream
    events: list[bytes]


@dataclass(frozen=True, slots=True)
class FutureCompleted:
    """A coordinator completed its checkpoint future. This is its cut, in one order with ``Sent``."""

    operator: str
    checkpoint_id: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class FutureFailed:
    """A coordinator's checkpoint future failed."""

    operator: str
    checkpoint_id: int
    error: str


@dataclass(frozen=True, slots=True)
class StateStored:
    """Answers ``StoreState``."""

    operator: str
    checkpoint_id: int
    handle: StateHandle


@dataclass(frozen=True, slots=True)
class StateNotStored:
    """Answers ``StoreState`` where storage failed."""

    operator: str
    checkpoint_id: int
    error: str


@dataclass(frozen=True, slots=True)
class CoordinatorRaised:
    """A callback of user code raised, or user code failed the job."""

    operator: str
    epoch: int
    """Epoch in which the callback was called: what a rolled-back coordinator does counts no more."""
    callback: str
    error: str
    final: bool = False
    """A mistake in the job's code or settings: trying again would not help."""


@dataclass(frozen=True, slots=True)
class AttemptRejected:
    """User code reports that an attempt's external effects failed."""

    subtask: SubtaskId
    attempt: int
    epoch: int
    """Of the gateway it was reported through: the same attempt can live on under a new one."""
    cause: str


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """Answers ``CallRequest``."""

    offset: int
    accepted: bool
    outcome: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class BatchHandled:
    """Answers ``CallBatch``."""

    epoch: int
    """Epoch in which the coordinator was called."""
    operator: str
    query: str
    error: str
    """Why it refuses the batch; empty where the batch has its effect. What it raised is CoordinatorRaised."""


@dataclass(frozen=True, slots=True)
class WorkLeft:
    """Answers ``Drain``, behind what user code has posted before; again whenever some work has ended."""

    epoch: int
    by_operator: Mapping[str, int]
    """Calls of ``call_async`` that have not ended, of operators that have any. Empty: all is done."""


@dataclass(frozen=True, slots=True)
class HeartbeatLost:
    """The coordinator's own heartbeat under way does not certainly stand. Ends AppendHeartbeat, if not well."""


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """A frame, marker or control record that the broker did not certainly take."""

    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the deadline that the core named may be due."""


Input = (
    Begin
    | Redistributed
    | Committed
    | Reread
    | RereadEnd
    | EndsSeen
    | AckRead
    | Sent
    | FutureCompleted
    | FutureFailed
    | StateStored
    | StateNotStored
    | CoordinatorRaised
    | AttemptRejected
    | RequestAnswered
    | BatchHandled
    | WorkLeft
    | AppendFailed
    | HeartbeatLost
    | Tick
)
