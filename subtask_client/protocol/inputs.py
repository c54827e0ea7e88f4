"""Everything that can happen to a subtask's core; the closed union :data:`Input`.

An *input* is such a value and nothing else; an operator that feeds this one is an *upstream*.

Inputs marked *ends X* are the ways in which the effect X ends: of a user call exactly one of them is fed before any
record is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...schemas.data import DataRecord
from ...schemas.events import EventsRecord


@dataclass(frozen=True, slots=True)
class InstanceStarted:
    """The first input, once."""


@dataclass(frozen=True, slots=True)
class PositionNoted:
    """The high watermark of the subtask's events partition, and a nonce never used before. Ends NotePosition."""

    end: int
    nonce: str


@dataclass(frozen=True, slots=True)
class HelloTaken:
    """The Hello with that nonce stands at that offset. Ends WriteHello; when the outcome is unknown nothing does."""

    nonce: str
    offset: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the deadline that the core named may be due."""


@dataclass(frozen=True, slots=True)
class BrokerAsked:
    """Whether the broker can be reached. Ends AskBroker."""

    reachable: bool


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The next record of the events partition."""

    offset: int
    record: EventsRecord


@dataclass(frozen=True, slots=True)
class RecordUnreadable:
    """The next record of the events partition, which no published schema explains."""

    offset: int


@dataclass(frozen=True, slots=True)
class PositionLost:
    """The events partition lacks the position to be read next; it holds [begin, end)."""

    begin: int
    end: int
    cause: str


@dataclass(frozen=True, slots=True)
class DataRead:
    """The next record of an upstream's data partition."""

    upstream: str
    offset: int
    record: DataRecord


@dataclass(frozen=True, slots=True)
class DataUnreadable:
    """The next record of an upstream's data partition, which no published schema explains."""

    upstream: str
    offset: int


@dataclass(frozen=True, slots=True)
class DataLost:
    """An upstream's data partition lacks records that are wanted of it."""

    upstream: str
    events_end: int
    """Where the events partition ends; asked for when this was found."""
    cause: str


@dataclass(frozen=True, slots=True)
class RecordsHandled:
    """Every record of the effect has been handled. Ends HandleRecords."""


@dataclass(frozen=True, slots=True)
class EndInputsReturned:
    """Ends EndInputs."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The loop has handled what one poll gave; ``dry``: there is nothing more to read at the moment."""

    dry: bool


@dataclass(frozen=True, slots=True)
class HeartbeatDue:
    """Time for a sign of life. ``events_done``: how many events of the HandleEvents under way have been handled.

    ``periodic`` false asks only for the handled-through sequence, and only if it has advanced.
    """

    periodic: bool
    step: str
    step_age_ms: int
    events_done: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeartbeatSettled:
    """The periodic heartbeat under way stands, or never will. Ends WriteHeartbeat(periodic)."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The user's object is open and restored. Ends OpenUser."""


@dataclass(frozen=True, slots=True)
class EventsHandled:
    """Every event of the effect has been handled. Ends HandleEvents."""


@dataclass(frozen=True, slots=True)
class SnapshotReturned:
    """The state as bytes; None: the subtask has none. Ends TakeSnapshot."""

    checkpoint_id: int
    state: bytes | None
    elapsed_ms: int = 0
    """Milliseconds since ``snapshot_state`` was called."""
    wall_ms: int = 0
    """Milliseconds since 1970, for the barriers."""


@dataclass(frozen=True, slots=True)
class Notified:
    """Ends NotifyCompleted and NotifyAborted."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """The user's ``poll`` returned ``Finished``."""


@dataclass(frozen=True, slots=True)
class UserFailed:
    """User code raised (or its state or an event does not fit its codec). Ends any user call, or a poll."""

    cause: str
    final: bool = False
    """A mistake in the job's code or settings: another attempt would not help."""


@dataclass(frozen=True, slots=True)
class StateStored:
    """A state lies in state storage. Ends StoreState."""

    checkpoint_id: int
    location: str
    elapsed_ms: int = 0
    """Milliseconds since ``snapshot_state`` was called."""
    checksum: int = -1
    """Of the state, as its handle names it."""


@dataclass(frozen=True, slots=True)
class StateRefused:
    """A state could not be stored. Ends StoreState."""

    checkpoint_id: int
    location: str
    cause: str


@dataclass(frozen=True, slots=True)
class WriterFailed:
    """A record to the coordinator does not certainly stand; what is written from now on goes through a new writer."""

    cause: str


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The instance's host wants it to leave."""

    reason: str


Input = (
    InstanceStarted
    | PositionNoted
    | HelloTaken
    | Tick
    | BrokerAsked
    | RecordRead
    | RecordUnreadable
    | PositionLost
    | DataRead
    | DataUnreadable
    | DataLost
    | TurnEnded
    | HeartbeatDue
    | HeartbeatSettled
    | Opened
    | EventsHandled
    | RecordsHandled
    | EndInputsReturned
    | SnapshotReturned
    | Notified
    | WorkEnded
    | UserFailed
    | StateStored
    | StateRefused
    | WriterFailed
    | LeaveRequested
)
