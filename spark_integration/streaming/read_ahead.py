"""Small batches, read beside Spark's planning and handed over with the plan: their tasks need no connection.

The offsets decide, here as in a task: a range is handed over if all of its records are there, else the task reads it
from the log, and says what is wrong with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...schemas.errors import TransportError
from ...transport.kafka import KafkaConfig, KafkaTransport
from ...transport.ports import LogRecord, Partition, Reader, Transport

if TYPE_CHECKING:
    from .reading import EventsRange

BYTES_MAX = 64 * 1024
"""Of a batch that is handed over, for all subtasks together, and of what lies around it; reading ends above."""
RECORDS_MAX = 1_000
"""Offsets from the end of the last batch to that of such a batch, for all subtasks together."""
PARTITIONS_MAX = 64
"""Ranges of such a batch: following more of them costs more than it gains."""
_RECORD_BYTES = 64
"""Counted for each record besides its value."""
_WAIT_S = 0.2
"""For records that certainly stand; they come while Spark stores the batch's offset."""

Handed = tuple[tuple[LogRecord, ...], ...]
"""The records of each range, in the order of the ranges."""


def transport_of(config: KafkaConfig) -> KafkaTransport:
    """Return the transport of a read-ahead, whose client fetches little of a batch that is too large."""
    own = {
        "fetch.wait.max.ms": "500",  # no seek ever waits for a fetch
        "queued.max.messages.kbytes": str(BYTES_MAX // 1024),
        "max.partition.fetch.bytes": str(BYTES_MAX),
    }
    return KafkaTransport.from_config(replace(config, client_settings={**config.client_settings, **own}))


class ReadAhead:
    """Follows the events partitions of one operator from batch to batch. Belongs to one thread.

    ``make_transport`` is called when the first batch has been seen.
    """

    def __init__(self, make_transport: Callable[[], Transport]) -> None:
        self._make_transport = make_transport
        self._transport: Transport | None = None
        self._reader: Reader | None = None
        self._at: dict[Partition, int] = {}
        """Ends of the last batch, from which the reader goes on: the next one begins there, or behind it."""
        self._early: list[LogRecord] = []
        """Records at or after that, in the order of each partition, as the reader gave them."""

    def take(self, ranges: Sequence[EventsRange]) -> Handed | None:
        """Return the records of the ranges of a batch, or None where its tasks must read them.

        That is the first batch, one that does not follow the last, one that is too large, or one that cannot be read
        now. Never raises TransportError.
        """
        if len(ranges) > PARTITIONS_MAX:
            return None
        begins = {Partition(part.topic, part.subtask): part.begin for part in ranges}
        ends = {Partition(part.topic, part.subtask): part.end for part in ranges}
        found = None
        if self._reader is not None and all(self._at.get(at, begin + 1) <= begin for at, begin in begins.items()):
            found = self._read(self._reader, begins, ends)
        if found is not None:
            self._at = ends
        elif self._at != ends:
            self._begin_at(ends)
        return found

    def close(self) -> None:
        self._forget()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _read(self, reader: Reader, begins: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Handed | None:
        if sum(ends.values()) - sum(self._at.values()) > RECORDS_MAX:
            return None
        batch = _Batch(begins, ends)
        early, self._early = self._early, []
        deadline = time.monotonic() + _WAIT_S
        try:
            self._early = batch.add(early)
            while not batch.whole and not batch.refused and (left := deadline - time.monotonic()) > 0:
                self._early += batch.add(reader.poll(left))
        except TransportError:
            return None
        return batch.records() if batch.whole and not batch.refused else None

    def _begin_at(self, positions: Mapping[Partition, int]) -> None:
        self._forget()
        try:
            self._transport = self._transport or self._make_transport()
            self._reader = self._transport.reader(positions)
        except TransportError:
            return  # the tasks meet it, too, and wait or say so
        self._at = dict(positions)

    def _forget(self) -> None:
        reader, self._reader = self._reader, None
        self._at, self._early = {}, []
        if reader is not None:
            reader.close()


class _Batch:
    """The records of a batch as they come."""

    def __init__(self, begins: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        self._begins, self._ends = begins, ends
        self._found: dict[Partition, list[LogRecord]] = {partition: [] for partition in ends}
        self._missing = {partition for partition, end in ends.items() if begins[partition] < end}
        self._size = 0
        self.refused = False
        """Whether it is too large, or not what its offsets name."""

    @property
    def whole(self) -> bool:
        return not self._missing

    def add(self, records: Iterable[LogRecord]) -> list[LogRecord]:
        """Take the records of the batch; return those that stand behind it."""
        behind = []
        for record in records:
            end = self._ends[record.partition]
            self._size += len(record.value or b"") + len(record.key or b"") + _RECORD_BYTES
            self.refused = self.refused or self._size > BYTES_MAX
            if record.offset >= end:
                self.refused = self.refused or record.partition in self._missing  # its last record is not there
                behind.append(record)
                continue
            if record.offset >= self._begins[record.partition]:
                self._found[record.partition].append(record)
            if record.offset == end - 1:
                self._missing.discard(record.partition)
        return behind

    def records(self) -> Handed:
        return tuple(tuple(found) for found in self._found.values())
