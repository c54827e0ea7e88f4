"""What a subtask reads: its events partition, and a data partition for each upstream.

Two readers: an event, a marker, a Reset waits behind no backlog of records.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from ..schemas import data, events
from ..schemas.codec import decode
from ..schemas.errors import PositionUnavailable, UnreadableRecord
from ..transport.ports import LogRecord, OffsetRange, Partition, Reader, Transport
from ..transport.warning_limit import WarningLimit
from .protocol import inputs as on

T = TypeVar("T")

CACHE_BYTES_MAX = 16 * 1024 * 1024
"""Skipped records are kept up to so many bytes in all, about; what does not fit is read again."""
RECORD_COST_BYTES = 512
"""What a record takes in memory beside its value, about."""
EVENTS_LOOK_S = 0.02
"""So often the events are looked at while no upstream sends."""
DATA_RECORDS_MAX = 64
"""So many records a poll gives at most where there are upstreams: their frames may be large."""
_EVENTS_RECORDS = get_args(events.EventsRecord)
_DATA_RECORDS = get_args(data.DataRecord)


class _Cache:
    """Records of one data partition without a hole, from the lowest skipped one on, as far as there was room."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.whole = True
        """Nothing was read behind the last one that is kept."""


def _cost(record: LogRecord) -> int:
    return RECORD_COST_BYTES + len(record.value or b"")


class Incoming:
    """Fetches records ahead, decodes them, and forgets those that a seek or a pause has made void.

    ``patiently`` performs a request again while the broker is away, and returns None when that is given up.
    ``takes_inputs`` says whether records of the inputs are wanted; while they are not, events alone are read.
    """

    def __init__(
        self,
        transport: Transport,
        partition: Partition,
        upstreams: Mapping[str, Partition],
        log: logging.LoggerAdapter[Any],
        patiently: Callable[[Callable[[], Any]], Any],
        cache_bytes_max: int = CACHE_BYTES_MAX,
        *,
        takes_inputs: Callable[[], bool] = lambda: True,
    ) -> None:
        self._transport, self._partition, self._data_partitions = transport, partition, dict(upstreams)
        self._upstream_of = {at: upstream for upstream, at in upstreams.items()}
        self._patiently = patiently
        self._takes_inputs = takes_inputs
        self._warnings = WarningLimit(log, "records that are kept out")
        self._reader: Reader | None = None
        self._data_reader: Reader | None = None
        """None without upstreams."""
        self._events: deque[LogRecord] = deque()
        self._fetched: deque[LogRecord] = deque()
        """Of the upstreams."""
        self._paused: set[str] = set()
        self._caches: dict[str, _Cache] = {}
        self._cache_room = cache_bytes_max
        self.reread = 0
        """Records that an alignment has made it read from the log once more; for tests and benchmarks."""

    @property
    def waiting(self) -> bool:
        """Whether something fetched has not been taken, and may be."""
        return bool(self._events) or (bool(self._fetched) and self._takes_inputs())

    # ---- reading

    def fetch(self, timeout_s: float) -> on.PositionLost | on.DataLost | None:
        """Waits for records for at most so long, not at all where some wait; what to tell where a position is gone.

        To be called every turn: events are looked for although records wait, and records although events do.
        """
        if self._reader is None:
            return None
        try:
            if self._data_reader is None or not self._takes_inputs():
                if not self._events:
                    self._events.extend(self._reader.poll(timeout_s))
            else:
                self._fetch_both(self._reader, self._data_reader, timeout_s)
        except PositionUnavailable as error:
            return self._lost(error)
        return None

    def _fetch_both(self, events: Reader, data: Reader, timeout_s: float) -> None:
        ends_at = time.monotonic() + timeout_s
        while True:
            if not self._events:
                self._events.extend(events.poll(0))
            left_s = 0.0 if self.waiting else max(0.0, ends_at - time.monotonic())
            if not self._fetched:
                self._fetched.extend(data.poll(min(left_s, EVENTS_LOOK_S), DATA_RECORDS_MAX))
            if self.waiting or left_s <= 0:
                return

    def _lost(self, error: PositionUnavailable) -> on.PositionLost | on.DataLost | None:
        if error.partition is not None and (upstream := self._upstream_of.get(Partition(*error.partition))) is not None:
            return self._data_lost(upstream, str(error))
        there = self._held_by(self._partition)
        return None if there is None else on.PositionLost(there.begin, there.end, str(error))

    def _data_lost(self, upstream: str, cause: str) -> on.DataLost | None:
        events = self._held_by(self._partition)
        return None if events is None else on.DataLost(upstream, events.end, cause)

    def _held_by(self, partition: Partition) -> OffsetRange | None:
        found: OffsetRange | None = self._patiently(lambda: self._transport.offsets([partition])[partition])
        return found

    def lacking(self, upstream: str, begin: int, end: int) -> on.DataLost | None:
        """What to tell where that upstream's partition does not hold all of [begin, end).

        Asked before the first read: the log would say so late, and never of a position above its end.
        """
        partition = self._data_partitions[upstream]
        there = self._held_by(partition)
        if there is None or there.begin <= begin <= end <= there.end:
            return None
        wanted = f"offset {begin} is" if end <= begin else f"offsets {begin} to {end} are"
        what = "truncated" if begin < there.begin else "truncated at its end, or the topic was deleted and recreated"
        return self._data_lost(
            upstream, f"{wanted} wanted of {partition}, {there.begin} to {there.end} are available: the log was {what}"
        )

    def take(self) -> tuple[on.Input, LogRecord]:
        """The next record as the core is told of it, and as it was fetched; events first."""
        record = (self._events or self._fetched).popleft()
        upstream = self._upstream_of.get(record.partition)
        try:
            decoded = decode(record.value)
            if not isinstance(decoded, _EVENTS_RECORDS if upstream is None else _DATA_RECORDS):
                raise UnreadableRecord(f"a {type(decoded).__name__}, which does not belong on this topic")
        except UnreadableRecord as error:
            self._warnings.warn("offset %d of %s is kept out: %s", record.offset, record.partition, error)
            if upstream is None:
                return on.RecordUnreadable(record.offset), record
            return on.DataUnreadable(upstream, record.offset), record
        if upstream is None:
            return on.RecordRead(record.offset, decoded), record
        return on.DataRead(upstream, record.offset, decoded), record

    # ---- where to read on

    def seek(self, offset: int) -> None:
        """In the events partition."""
        self._events.clear()
        if self._reader is not None:
            self._reader.seek(self._partition, offset)
            return
        self._reader = self._patiently(lambda: self._transport.reader({self._partition: offset}))
        if self._data_partitions and self._reader is not None:
            self._data_reader = self._patiently(self._open_data)

    def _open_data(self) -> Reader:
        reader = self._transport.reader(dict.fromkeys(self._upstream_of, 0))
        for partition in self._upstream_of:
            reader.pause(partition)
        self._paused = set(self._data_partitions)
        return reader

    def seek_data(self, upstream: str, offset: int) -> None:
        """In the data partition of that upstream; reading there goes on."""
        if self._data_reader is None:  # given up: this instance is to leave
            return
        partition = self._data_partitions[upstream]
        cache = self._uncached(upstream)
        kept = cache.records if cache.records and cache.records[0].offset == offset else []
        paused = upstream in self._paused
        self._paused.discard(upstream)
        if paused or not kept or not cache.whole:
            self._forget(partition)
            self._data_reader.seek(partition, kept[-1].offset + 1 if kept else offset)
        self._fetched.extendleft(reversed(kept))

    def pause_data(self, upstream: str) -> None:
        if self._data_reader is None:
            return
        self._paused.add(upstream)
        self._forget(self._data_partitions[upstream])
        self._data_reader.pause(self._data_partitions[upstream])

    def _forget(self, partition: Partition) -> None:
        if any(record.partition == partition for record in self._fetched):
            self._fetched = deque(record for record in self._fetched if record.partition != partition)

    # ---- the cache of what an alignment skips

    def keep(self, upstream: str, record: LogRecord) -> None:
        """``record``, or one read before it since the last seek, will be wanted again."""
        cache = self._caches.setdefault(upstream, _Cache())
        cost = _cost(record)
        if cache.whole and cost <= self._cache_room:
            self._cache_room -= cost
            cache.records.append(record)
        else:
            cache.whole = False
            self.reread += 1

    def _uncached(self, upstream: str) -> _Cache:
        cache = self._caches.pop(upstream, None) or _Cache()
        self._cache_room += sum(map(_cost, cache.records))
        return cache

    def close(self) -> None:
        self._warnings.tell()
        for reader in (self._reader, self._data_reader):
            if reader is not None:
                reader.close()
