"""Everything a subtask's core can ask for; the closed union :data:`Effect`. Effects are performed in order.

A *user call* and :class:`NotePosition` stand last in their list, and the next input fed to the core (heartbeats aside)
is one that ends it. After :class:`Seek` the records fetched before it are dropped, not fed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...schemas.acks import FromAttempt, Heartbeat, Hello
from ...schemas.data import DataRecord
from ...schemas.errors import SubtaskError
from ...schemas.events import Start
from ...schemas.ids import SubtaskId


@dataclass(frozen=True, slots=True)
class NotePosition:
    """Look up the high watermark of the events partition. Ends with PositionNoted (or LeaveRequested)."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Read the events partition from this offset; drop what was fetched before."""

    offset: int


@dataclass(frozen=True, slots=True)
class WriteHello:
    """Append to the acks partition. Ends with HelloTaken, or with nothing when the outcome stays unknown."""

    record: Hello


@dataclass(frozen=True, slots=True)
class Write:
    """Append to the acks partition, in the order of these effects."""

    record: FromAttempt


@dataclass(frozen=True, slots=True)
class WriteHeartbeat:
    """Append to the acks partition. A periodic one ends with HeartbeatSettled."""

    record: Heartbeat
    periodic: bool


@dataclass(frozen=True, slots=True)
class OpenUser:
    """Make the user's object, open it and, where ``start`` names a checkpoint, restore it. Ends with Opened."""

    start: Start


@dataclass(frozen=True, slots=True)
class HandleEvents:
    """Hand these events to the user's object, one by one. Ends with EventsHandled."""

    first_sequence: int
    events: list[bytes]
    offset: int


@dataclass(frozen=True, slots=True)
class HandleRecords:
    """Hand these records of an upstream to the user's object, one by one. Ends with RecordsHandled."""

    sender: SubtaskId
    records: list[bytes]
    offset: int


@dataclass(frozen=True, slots=True)
class EndInputs:
    """Call the user's ``end_inputs``: every upstream has ended. It may emit. Ends with EndInputsReturned."""


@dataclass(frozen=True, slots=True)
class WriteData:
    """Append to the data partition of ``receiver``, in the order of these effects."""

    receiver: SubtaskId
    record: DataRecord


@dataclass(frozen=True, slots=True)
class SeekData:
    """Read the data partition of an upstream from this offset; drop what was fetched before."""

    upstream: str
    offset: int
    through: int | None = None
    """Under a Start the first one says up to where the partition must reach: below that its checkpoint has read it,
    or names ranges. Where it does not, or begins above ``offset``, DataLost follows ◆."""


@dataclass(frozen=True, slots=True)
class PauseData:
    """Read the data partition of an upstream no further, until SeekData says where to go on."""

    upstream: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Ask the user's object for its state. Ends with SnapshotReturned."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NotifyCompleted:
    """Tell the user's object. Ends with Notified."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell the user's object. Ends with Notified."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CloseUser:
    """Close the user's object; an error in there is logged and goes no further."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """Put a state into state storage while everything else goes on. Ends with StateStored or StateRefused."""

    checkpoint_id: int
    location: str
    data: bytes


@dataclass(frozen=True, slots=True)
class DropState:
    """Nobody wants this state any more: give its upload up, or delete it when it has landed."""

    location: str


@dataclass(frozen=True, slots=True)
class AskBroker:
    """Find out whether the broker can be reached. Ends with BrokerAsked."""


@dataclass(frozen=True, slots=True)
class Report:
    """Log this error: it is about to fail the attempt."""

    error: SubtaskError


@dataclass(frozen=True, slots=True)
class LearnSchema:
    """The user's payloads may have been written under this Avro schema: let the codec read it."""

    operator: str
    subject: str
    schema: str
    """In JSON."""


class Departure(StrEnum):
    """Why an instance leaves."""

    STOPPED = "stopped"
    FINISHED = "finished"
    SUPERSEDED = "superseded"
    NO_START = "no start"
    HELLO_FAILED = "hello failed"
    """Its Hello could not be written, however often."""
    REFUSED = "refused"
    """It cannot work with this coordinator, and neither could another in its place."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The last effect: the instance is done."""

    departure: Departure
    reason: str


UserCall = OpenUser | HandleEvents | HandleRecords | EndInputs | TakeSnapshot | NotifyCompleted | NotifyAborted

Effect = (
    UserCall
    | NotePosition
    | AskBroker
    | Seek
    | SeekData
    | PauseData
    | WriteData
    | WriteHello
    | Write
    | WriteHeartbeat
    | LearnSchema
    | CloseUser
    | StoreState
    | DropState
    | Report
    | Leave
)
