"""Everything that a coordinator can decide: a closed union, performed strictly in the order of the list.

The order carries the protocol: what must be durable stands before what relies on it, and ``Commit`` is always the
last effect of a decision, because between it and its ``Committed`` the coordinator handles nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...checkpoint_log.history import Keyed
from ...schemas.acks import CoordinatorHeartbeat
from ...schemas.events import EventsRecord
from ...schemas.frames import Packed
from ...schemas.graph import DataPartition
from ...schemas.ids import SubtaskId
from ...schemas.state import StateHandle
from ...schemas.status import BatchPlanned, CommandReply, End
from .stream import EventStream

# ---- logs


@dataclass(frozen=True, slots=True)
class Append:
    """Append to the subtask's event partition, behind everything appended before. May be answered by AppendFailed."""

    subtask: SubtaskId
    record: EventsRecord


@dataclass(frozen=True, slots=True)
class AppendHeartbeat:
    """Append to the acks topic, once every Append before it has its outcome ◆. Losing it is harmless."""

    record: CoordinatorHeartbeat


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction of the checkpoint log; answered by Committed, or by the end of the instance."""

    records: tuple[Keyed, ...]
    looks_at_ends: bool = False
    """Whether Committed must tell the ends of the event partitions and of the acks topic, read after the commit."""


@dataclass(frozen=True, slots=True)
class ReadAcks:
    """Read [begin, end) of the acks topic beside the main position; answered by Reread and RereadEnd."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LookAtEnds:
    """Look where the event partitions end once all that was appended stands; answered by EndsSeen or AppendFailed."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ReplaceWriter:
    """Drop the writer of the event partitions for a new one: nothing may follow a hole."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a command or a query on the status topic."""

    reply: CommandReply | BatchPlanned


# ---- state storage


@dataclass(frozen=True, slots=True)
class StoreState:
    """Store a coordinator's state; answered by StateStored or StateNotStored."""

    operator: str
    checkpoint_id: int
    location: str
    state: bytes


@dataclass(frozen=True, slots=True)
class DeleteStates:
    """Delete stored states that no checkpoint names. Failing to is harmless."""

    locations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectOrphans:
    """Delete every stored state of an epoch below ``epoch`` but those named. Failing to is harmless."""

    named: frozenset[str]
    epoch: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Nothing below these offsets is needed any more. Failing to truncate is harmless."""

    events: Mapping[SubtaskId, int]
    acks: int
    data: Mapping[DataPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatesToDeal:
    """The states of one operator's subtasks, in the order of their indices, and over how many they are to be dealt."""

    operator: str
    states: tuple[StateHandle | None, ...]
    parallelism: int


@dataclass(frozen=True, slots=True)
class Redistribute:
    """Deal these states again; what is stored belongs to checkpoint ``checkpoint_id`` of ``epoch``, neither of which is
    committed. Answered by Redistributed, or by the end of the instance where it is refused."""

    restored: int
    checkpoint_id: int
    epoch: int
    operators: tuple[StatesToDeal, ...]


# ---- user code: a callback that raises comes back as CoordinatorRaised, behind this decision


@dataclass(frozen=True, slots=True)
class CallReset:
    operator: str
    checkpoint_id: int
    state: StateHandle | None


@dataclass(frozen=True, slots=True)
class CallStart:
    operator: str


@dataclass(frozen=True, slots=True)
class CallEvents:
    operator: str
    subtask: int
    attempt: int
    belongs_to: int
    events: list[bytes]


@dataclass(frozen=True, slots=True)
class CallCheckpoint:
    """Answered by FutureCompleted or FutureFailed, some time."""

    operator: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CallComplete:
    operator: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CallAborted:
    operator: str
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CallSubtaskReset:
    operator: str
    subtask: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CallReady:
    operator: str
    subtask: int
    attempt: int
    stream: EventStream


@dataclass(frozen=True, slots=True)
class CallFailed:
    operator: str
    subtask: int
    attempt: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class CallRequest:
    """Answered by RequestAnswered."""

    operator: str
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class CallBatch:
    """Answered by BatchHandled."""

    operator: str
    query: str
    batch: int
    frames: list[Packed]
    """The events of each part."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The job is about to end: say what user code has begun and not finished. Answered by WorkLeft, until none is."""


# ---- the host


@dataclass(frozen=True, slots=True)
class Settle:
    """The stream's handled-through has advanced, or the stream has failed: wake who waits for its futures."""

    stream: EventStream


@dataclass(frozen=True, slots=True)
class KillTask:
    """End the task that hosts a silent attempt, where there is a runner that can: nobody restarts a frozen task."""

    subtask: SubtaskId
    task: str
    cause: str


Call = (
    CallReset
    | CallStart
    | CallEvents
    | CallCheckpoint
    | CallComplete
    | CallAborted
    | CallSubtaskReset
    | CallReady
    | CallFailed
    | CallRequest
    | CallBatch
)

Effect = (
    Append
    | AppendHeartbeat
    | Commit
    | ReadAcks
    | LookAtEnds
    | ReplaceWriter
    | Reply
    | StoreState
    | DeleteStates
    | CollectOrphans
    | Redistribute
    | Truncate
    | Call
    | Drain
    | Settle
    | KillTask
    | End
)
