"""Parts that records of several topics share: where a state lies, and which offsets belong to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

from .ids import Generation, SubtaskId


@dataclass(frozen=True, slots=True)
class StateHandle:
    """A state: its bytes, or the name under which state storage keeps them."""

    size: Annotated[int, "length of the state in bytes"]
    inline: Annotated[bytes | None, "the state itself, where it is small"] = None
    location: Annotated[str | None, "its name relative to the job's state storage, where it is not inline"] = None
    checksum: Annotated[int, "CRC-32 of a stored state; -1: none, as of an inline one, whose record has one"] = -1

    @classmethod
    def stored(cls, location: str, data: bytes) -> StateHandle:
        """The handle of a state that is stored under ``location``."""
        return cls(len(data), location=location, checksum=checksum_of(data))

    def damage(self, data: bytes) -> str | None:
        """Return what of the bytes that were read back is not as it was stored; None if nothing is."""
        if len(data) != self.size:
            return f"has {len(data)} bytes and should have {self.size}"
        if self.checksum not in (-1, found := checksum_of(data)):
            return f"has the checksum {found} and should have {self.checksum}"
        return None


def checksum_of(data: bytes) -> int:
    """The checksum of a stored state. At 6 GB/s CRC-32 is three times as fast as SHA-256 here; nobody is to be kept
    from forging a state, but a broken one from being restored."""
    return crc32(data)


ROWS_MARK = b"\x00PSTROWS"
"""What a state begins with that has a position in the rows of a DataFrame in front of it."""

OPEN_END = -1
"""The end of a segment that has none: whatever comes."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets [begin, end) of a partition, to be read as the given attempt of the given generation would have."""

    begin: Annotated[int, "first offset"]
    end: Annotated[int, "offset behind the last"]
    epoch: Annotated[int, "epoch whose frames count in here"]
    generation: Annotated[int, "number of the generation within that epoch"]
    attempt: Annotated[int, "attempt whose frames count in here"]


def ascend(segments: Sequence[Segment], begin: int = 0, end: int | None = None) -> bool:
    """Whether closed ranges are in order and disjoint, from ``begin`` on and up to ``end``, if there is one."""
    for segment in segments:
        if not begin <= segment.begin <= segment.end:
            return False
        begin = segment.end
    return end is None or begin <= end


@dataclass(frozen=True, slots=True)
class ChannelPosition:
    """How far one channel of a data partition has been consumed."""

    channel: Annotated[str, "sending subtask, as operator/index"]
    segments: Annotated[tuple[Segment, ...], "what is left of older ranges, then the open one"]
    sequence: Annotated[int, "sequence of the next frame expected on this channel"]

    @property
    def sender(self) -> SubtaskId:
        operator, _, index = self.channel.rpartition("/")
        return SubtaskId(operator, int(index))

    @property
    def in_order(self) -> bool:
        """Whether its ranges ascend, the open one comes last, and no number is negative."""
        closed, end = self.segments, None
        if closed and closed[-1].end == OPEN_END:
            closed, end = closed[:-1], closed[-1].begin
        return self.sequence >= 0 and ascend(closed, 0, end)


@dataclass(frozen=True, slots=True)
class Sender:
    """The attempt a record comes from, and the generation of the Start it runs under."""

    operator: Annotated[str, "operator of the subtask"]
    subtask: Annotated[int, "index of the subtask"]
    attempt: Annotated[int, "offset of the attempt's Hello in the acks topic"]
    epoch: Annotated[int, "epoch of its Start"]
    generation: Annotated[int, "number of the generation within that epoch"]

    @property
    def subtask_id(self) -> SubtaskId:
        return SubtaskId(self.operator, self.subtask)

    @property
    def full_generation(self) -> Generation:
        return Generation(self.epoch, self.generation)


def state_location(checkpoint_id: int, epoch: int, owner: str) -> str:
    """Name of a stored state, relative to the job's state storage; ``owner`` makes it unique (section 7.6)."""
    return f"checkpoint-{checkpoint_id}/epoch-{epoch}/{owner}"


def attempt_location(checkpoint_id: int, sender: Sender) -> str:
    """Name of the state that this attempt stores for a checkpoint: nobody else ever writes it."""
    owner = f"{sender.operator}-{sender.subtask}-attempt-{sender.attempt}"
    return state_location(checkpoint_id, sender.epoch, owner)


def epoch_of_location(location: str) -> int | None:
    """Epoch in which a state of that name was stored; None for a name that is not ours."""
    parts = location.split("/")
    if len(parts) != 3 or not parts[1].startswith("epoch-") or not parts[1][6:].isdigit():
        return None
    return int(parts[1][6:])
