"""Records of a data topic: from one operator's subtasks to another's (protocol, section 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .state import Sender


@dataclass(frozen=True, slots=True)
class RecordFrame:
    """Many data records from one subtask to one subtask, in the order they were emitted."""

    sender: Annotated[Sender, "sending attempt and its generation"]
    sequence: Annotated[int, "sequence of this frame on its channel, per generation, from 0"]
    count: Annotated[int, "how many records"]
    lengths: Annotated[bytes, "each record's length, unsigned 32-bit little-endian"]
    payload: Annotated[bytes, "the records end to end"]


@dataclass(frozen=True, slots=True)
class Barrier:
    """Everything that belongs to the sender's snapshot stands before this on its channel."""

    sender: Annotated[Sender, "sending attempt and its generation"]
    sequence: Annotated[int, "sequence of this record on its channel, per generation"]
    checkpoint_id: Annotated[int, "the checkpoint"]
    savepoint: Annotated[bool, "savepoints are always aligned"]
    triggered_at_ms: Annotated[int, "wall clock of the sender's snapshot, for the alignment timeout"]


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """The sender has finished: nothing more comes on this channel."""

    sender: Annotated[Sender, "sending attempt and its generation"]
    sequence: Annotated[int, "sequence of this record on its channel, per generation"]


DataRecord = RecordFrame | Barrier | ChannelEnded
"""Whatever may stand in a data partition."""
