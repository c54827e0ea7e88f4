"""Records of several partitions in the order of their times, decoded; what cannot be read is told, never left out.

However long the partitions are, memory holds at most a few megabytes of each, and fewer where there are many: one that
runs ahead of the others is paused.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..schemas.codec import Record, decode
from ..schemas.errors import PositionUnavailable, TransportError, UnreadableRecord
from ..transport.ports import LogRecord, Partition, Reader, Transport

PATIENCE_S = 30.0
"""So long may a partition whose end has not been reached give nothing."""
AHEAD_BYTES_MAX = 4 * 1024 * 1024
"""What is read ahead of one partition before it is paused, at most."""
AHEAD_BYTES_ALL = 256 * 1024 * 1024
"""The same for all partitions together; of each of very many a record is held all the same."""
_RECORD_BYTES = 256
"""About what a record takes beside its value."""
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Recorded:
    """One record as it stands in a log, and what it says."""

    at: LogRecord
    record: Record | None
    """None where no published schema explains it."""
    unreadable: str = ""
    """Why it cannot be read, where that is so."""

    @property
    def partition(self) -> Partition:
        return self.at.partition

    @property
    def offset(self) -> int:
        return self.at.offset


class Gone(NamedTuple):
    """Offsets [begin, end) of a partition that were to be read and have been truncated meanwhile."""

    partition: Partition
    begin: int
    end: int

    def __str__(self) -> str:
        return f"offsets {self.begin} to {self.end - 1} of {self.partition} have been truncated away"


def recorded(at: LogRecord) -> Recorded:
    try:
        return Recorded(at, decode(at.value))
    except UnreadableRecord as error:
        return Recorded(at, None, str(error))


class _Lane:
    """One partition on its way into the common order."""

    def __init__(self, partition: Partition, begin: int, end: int) -> None:
        self.partition, self.next, self.end = partition, begin, end
        self.ahead: deque[LogRecord] = deque()
        self.bytes = 0
        self.paused = False
        self.queued = False
        """Its first record waits among the heads."""

    @property
    def lacks(self) -> bool:
        """Whether nothing can be told before more of it has been read."""
        return not self.queued and not self.ahead and self.next < self.end

    def add(self, record: LogRecord) -> None:
        self.ahead.append(record)
        self.next = record.offset + 1
        self.bytes += _size(record)

    def take(self) -> LogRecord:
        record = self.ahead.popleft()
        self.bytes -= _size(record)
        return record


def _size(record: LogRecord) -> int:
    return _RECORD_BYTES + len(record.value or b"")


class LogReading:
    """Reads partitions from the offsets ``begins``, each to the ``ends`` given, or to its end at this moment.

    Iterating it raises TransportError where a partition gives nothing for ``patience_s``.
    """

    def __init__(
        self,
        transport: Transport,
        begins: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._transport, self._patience_s = transport, patience_s
        if ends is None:
            ends = {p: there.end for p, there in transport.offsets(begins).items()}
        self._lanes = {p: _Lane(p, begin, ends[p]) for p, begin in begins.items()}
        self._ahead_bytes_max = min(AHEAD_BYTES_MAX, AHEAD_BYTES_ALL // max(len(self._lanes), 1))

    def __iter__(self) -> Iterator[Recorded | Gone]:
        return self.read()

    def read(self, follow_s: float | None = 0.0) -> Generator[Recorded | Gone, None, None]:
        """Everything up to the ends, in order; then what is appended for ``follow_s`` seconds (None: for ever).

        What follows comes as it is appended, so only roughly in the order of its times.
        """
        reader = self._transport.reader({p: lane.next for p, lane in self._lanes.items()})
        try:
            yield from self._to_the_ends(reader)
            if follow_s != 0.0:
                yield from self._follow(reader, None if follow_s is None else time.monotonic() + follow_s)
        finally:
            reader.close()

    def _to_the_ends(self, reader: Reader) -> Iterator[Recorded | Gone]:
        heads: list[tuple[int, Partition, LogRecord]] = []
        deadline = time.monotonic() + self._patience_s
        while True:
            if any(lane.lacks for lane in self._lanes.values()):
                before = {p: lane.next for p, lane in self._lanes.items()}
                yield from self._fill(reader)
                if any(lane.next != before[p] for p, lane in self._lanes.items()):
                    deadline = time.monotonic() + self._patience_s
                elif time.monotonic() > deadline:
                    raise self._nothing_came()
            for lane in self._lanes.values():
                if lane.ahead and not lane.queued:
                    head, lane.queued = lane.take(), True
                    heapq.heappush(heads, (head.timestamp_ms, lane.partition, head))
            if any(lane.lacks for lane in self._lanes.values()):
                continue
            if not heads:
                return
            while heads:
                _, partition, head = heapq.heappop(heads)
                lane = self._lanes[partition]
                lane.queued = False
                if lane.ahead:
                    following, lane.queued = lane.take(), True
                    heapq.heappush(heads, (following.timestamp_ms, partition, following))
                yield recorded(head)
                if lane.lacks:
                    break

    def _fill(self, reader: Reader) -> Iterator[Gone]:
        for lane in self._lanes.values():
            if lane.paused and lane.lacks:
                lane.paused = False
                reader.seek(lane.partition, lane.next)
        for record in (yield from self._poll(reader, _POLL_S)):
            lane = self._lanes[record.partition]
            if lane.next <= record.offset < lane.end:
                lane.add(record)
        for lane in self._lanes.values():
            if not lane.paused and (lane.next >= lane.end or lane.bytes > self._ahead_bytes_max):
                lane.paused = True
                reader.pause(lane.partition)

    def _follow(self, reader: Reader, deadline: float | None) -> Iterator[Recorded | Gone]:
        for lane in self._lanes.values():
            reader.seek(lane.partition, lane.next)
        while deadline is None or time.monotonic() < deadline:
            left = _POLL_S if deadline is None else min(_POLL_S, max(0.0, deadline - time.monotonic()))
            for record in sorted((yield from self._poll(reader, left)), key=lambda r: r.timestamp_ms):
                self._lanes[record.partition].next = record.offset + 1
                yield recorded(record)

    def _poll(self, reader: Reader, timeout_s: float) -> Generator[Gone, None, list[LogRecord]]:
        """Polls once; a position that has been truncated away meanwhile is told, and reading goes on behind it."""
        try:
            return reader.poll(timeout_s)
        except PositionUnavailable as error:
            if error.partition is None:
                raise
            lane = self._lanes[Partition(*error.partition)]
            begin = self._transport.offsets([lane.partition])[lane.partition].begin
            if begin <= lane.next:
                raise
            yield Gone(lane.partition, lane.next, begin)
            lane.next = begin
            reader.seek(lane.partition, begin)
            return []

    def _nothing_came(self) -> TransportError:
        lane = next(lane for lane in self._lanes.values() if lane.lacks)
        return TransportError(
            f"{lane.partition} gave nothing for {self._patience_s:g} s at offset {lane.next}, and ends at {lane.end}:"
            " the broker is away, or an open transaction of a foreign writer holds back what follows"
        )
