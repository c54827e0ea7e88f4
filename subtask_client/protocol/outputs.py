"""Records to other operators on their way into frames (protocol, section 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...schemas.data import Barrier, ChannelEnded, RecordFrame
from ...schemas.frames import pack, split
from ...schemas.ids import SubtaskId
from ...schemas.state import Sender
from .effects import WriteData

_LENGTH_BYTES = 4


class _Channel:
    __slots__ = ("bytes", "records", "sequence")

    def __init__(self) -> None:
        self.sequence = 0
        """Of the next record of the data topic; frames, barriers and the end share one numbering."""
        self.records: list[bytes] = []
        self.bytes = 0


class Outputs:
    """The current frame towards every receiver, under one Start; sequences begin at 0 with it."""

    def __init__(self, sender: Sender, receivers: Sequence[SubtaskId], *, records_max: int, bytes_max: int) -> None:
        self._sender = sender
        self._channels = {receiver: _Channel() for receiver in receivers}
        self._waiting: dict[SubtaskId, None] = {}
        """Receivers whose current frame is not empty, oldest first."""
        self._records_max, self._bytes_max = records_max, bytes_max

    @property
    def bytes_waiting(self) -> int:
        return sum(self._channels[receiver].bytes for receiver in self._waiting)

    def add(self, receiver: SubtaskId, record: bytes) -> WriteData | None:
        """Takes a record; the frame that had no room left, None for none."""
        channel = self._channels[receiver]
        full, size = None, channel.bytes + len(record) + _LENGTH_BYTES
        if size > self._bytes_max or len(channel.records) >= self._records_max:
            full = self._take(receiver, channel) if channel.records else None
            size = len(record) + _LENGTH_BYTES
        if not channel.records:
            self._waiting[receiver] = None
        channel.records.append(record)
        channel.bytes = size
        return full

    def add_all(self, records: Mapping[SubtaskId, Sequence[bytes]]) -> Iterator[WriteData]:
        """Take records, by receiver; yield each frame that had no room left."""
        for receiver, many in records.items():
            channel = self._channels[receiver]
            size = channel.bytes + sum(map(len, many)) + _LENGTH_BYTES * len(many)
            if size > self._bytes_max or len(channel.records) + len(many) > self._records_max:
                *full, many = split(
                    [*channel.records, *many],
                    events_max=self._records_max, bytes_max=self._bytes_max, cost_bytes=_LENGTH_BYTES,
                )  # fmt: skip
                for run in full:
                    channel.records = list(run)
                    yield self._take(receiver, channel)
                size = sum(map(len, many)) + _LENGTH_BYTES * len(many)
            if many and not channel.records:
                self._waiting[receiver] = None
            channel.records.extend(many)
            channel.bytes = size

    def flush(self) -> list[WriteData]:
        """Every current frame."""
        return [self._take(receiver, self._channels[receiver]) for receiver in list(self._waiting)]

    def barriers(self, checkpoint_id: int, *, savepoint: bool, at_ms: int) -> list[WriteData]:
        """Return the barrier of each channel; what was emitted before is flushed first."""
        barriers = []
        for receiver, channel in self._channels.items():
            barrier = Barrier(self._sender, channel.sequence, checkpoint_id, savepoint, at_ms)
            channel.sequence += 1  # mutant: barriers-go-unnumbered
            barriers.append(WriteData(receiver, barrier))
        return barriers

    def ends(self) -> list[WriteData]:
        """Return the end of each channel; what was emitted before is flushed first."""
        ends = []
        for receiver, channel in self._channels.items():
            ends.append(WriteData(receiver, ChannelEnded(self._sender, channel.sequence)))
            channel.sequence += 1
        return ends

    def _take(self, receiver: SubtaskId, channel: _Channel) -> WriteData:
        packed = pack(channel.records)
        frame = RecordFrame(self._sender, channel.sequence, packed.count, packed.lengths, packed.payload)
        channel.sequence += 1
        channel.records, channel.bytes = [], 0
        self._waiting.pop(receiver, None)
        return WriteData(receiver, frame)
