"""Where the events partitions end, once what was appended to them certainly stands."""

from __future__ import annotations

from collections.abc import Mapping

from ..schemas.ids import SubtaskId
from ..transport.ports import Partition, Transport


class EventEnds:
    """The ends of a job's events partitions as the broker's answers to appends give them. From any thread."""

    def __init__(self, partitions: Mapping[SubtaskId, Partition], transport: Transport) -> None:
        self._partitions = partitions
        self._transport = transport
        self._behind: dict[Partition, int | None] = {}
        """Offset behind the newest record that was appended; None where the answer had no offset."""

    def appended(self, partition: Partition, offset: int | None) -> None:
        """Take the outcome of an append, in the order of the appends to the partition."""
        self._behind[partition] = None if offset is None else offset + 1

    def seen(self, timeout_s: float) -> dict[SubtaskId, int]:
        """Return the offset behind what was appended to each partition, at the least.

        The broker is asked only where an answer had no offset, or nothing has been appended. Raises TransportError.
        """
        ends: dict[SubtaskId, int] = {}
        unknown: dict[SubtaskId, Partition] = {}
        for subtask, partition in self._partitions.items():
            end = self._behind.get(partition)
            if end is None:
                unknown[subtask] = partition
            else:
                ends[subtask] = end
        if unknown:
            found = self._transport.offsets(list(unknown.values()), timeout_s)
            ends |= {subtask: found[partition].end for subtask, partition in unknown.items()}
        return ends
