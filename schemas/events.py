"""Records of an operator's events topic: from the coordinator to one subtask (protocol, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from .ids import Generation
from .state import ChannelPosition, Segment, StateHandle


class FailoverPolicy(StrEnum):
    """What a region failover does to the events that the failed attempts had been sent since the last checkpoint."""

    REPLAY = "replay"
    """The log gives them again; the coordinator need not know."""
    RESET = "reset"
    """They are void; the coordinator sends again from ``subtask_reset``."""
    GLOBAL = "global"
    """The coordinators are rolled back too: every failover is a global one."""


@dataclass(frozen=True, slots=True)
class Start:
    """Answers a Hello: the instance now is this attempt and begins from this state and position."""

    epoch: Annotated[int, "epoch of the coordinator"]
    generation: Annotated[int, "number of the subtask's generation within the epoch"]
    attempt: Annotated[int, "offset of the Hello that is answered"]
    nonce: Annotated[str, "nonce of that Hello, for an instance that never learned its offset"]
    checkpoint_id: Annotated[int, "checkpoint to restore, or -1"]
    state: Annotated[StateHandle | None, "the subtask's state in it; null where it has none (empty is not null)"]
    next_checkpoint_id: Annotated[int, "markers below this id are dead"]
    expected_epoch: Annotated[int, "epoch of the first event frame behind the event position"]
    expected_sequence: Annotated[int, "sequence of that frame"]
    event_position: Annotated[int, "offset in the events partition from which frames count (policies replay, global)"]
    event_ranges: Annotated[tuple[Segment, ...], "ranges of the events partition that the checkpoint names"]
    data_positions: Annotated[tuple[ChannelPosition, ...], "positions in the data partitions that it names"]
    policy: Annotated[FailoverPolicy, "which frames behind the ranges count"]
    inputs_ended: Annotated[bool, "whose state this is has been told that every input has ended"] = False

    @property
    def full_generation(self) -> Generation:
        return Generation(self.epoch, self.generation)


@dataclass(frozen=True, slots=True)
class Welcome:
    """Stands before each Start: who speaks to the instance, and in which version."""

    epoch: Annotated[int, "epoch of the coordinator"]
    attempt: Annotated[int, "offset of the Hello that is answered"]
    nonce: Annotated[str, "nonce of that Hello"]
    protocol: Annotated[int, "version of the protocol that is spoken from here on: the lower one of both sides"]
    release: Annotated[str, "the coordinator's release of Penstock, for people"]


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """Stands before a Start: an Avro schema under which the user's payloads may have been written."""

    epoch: Annotated[int, "epoch of the coordinator"]
    operator: Annotated[str, "operator that writes them"]
    subject: Annotated[str, "events, state or output"]
    schema: Annotated[str, "the schema in JSON"]


@dataclass(frozen=True, slots=True)
class Reset:
    """A new generation has begun: a live instance drops its state and says Hello again, in place."""

    epoch: Annotated[int, "epoch of the coordinator"]
    generation: Annotated[int, "number of the generation that begins"]

    @property
    def full_generation(self) -> Generation:
        return Generation(self.epoch, self.generation)


@dataclass(frozen=True, slots=True)
class EventFrame:
    """Many events for one subtask, in the order they were sent."""

    epoch: Annotated[int, "epoch of the coordinator"]
    attempt: Annotated[int, "attempt whose gateway they were sent through"]
    sequence: Annotated[int, "sequence of the first event: per epoch, under policy reset per epoch and attempt"]
    count: Annotated[int, "how many events"]
    lengths: Annotated[bytes, "each event's length, unsigned 32-bit little-endian"]
    payload: Annotated[bytes, "the events end to end"]


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """The marker: every event that belongs to the checkpoint stands before it."""

    epoch: Annotated[int, "epoch of the coordinator"]
    checkpoint_id: Annotated[int, "id, never used twice in a job"]
    sequence: Annotated[int, "sequence that the next event frame will carry"]
    savepoint: Annotated[bool, "kept until it is disposed of, always aligned"]
    stop: Annotated[bool, "nothing is handled behind this marker: the job stops when the checkpoint completes"]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """Notice: the checkpoint has completed (may repeat, may be missed)."""

    epoch: Annotated[int, "epoch of the coordinator"]
    checkpoint_id: Annotated[int, "the completed checkpoint"]


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """Notice: the checkpoint will never complete."""

    epoch: Annotated[int, "epoch of the coordinator"]
    checkpoint_id: Annotated[int, "the aborted checkpoint"]
    reason: Annotated[str, "why, for people; cut off where it is long"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Addressed to one attempt: return normally, do not come back."""

    epoch: Annotated[int, "epoch of the coordinator"]
    attempt: Annotated[int, "the attempt that is to leave"]
    nonce: Annotated[str, "nonce of its Hello"]
    reason: Annotated[str, "why, for people"]
    superseded: Annotated[bool, "whether another attempt has taken its place: then it leaves by raising"] = False


EventsRecord = (
    Welcome
    | WriterSchema
    | Start
    | Reset
    | EventFrame
    | TriggerCheckpoint
    | CheckpointCompleted
    | CheckpointAborted
    | Stop
)
"""Whatever may stand in an events partition."""
