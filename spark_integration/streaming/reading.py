"""The events of one subtask in one batch: a fixed range of its partition, whatever the coordinator does meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructField, StructType, TimestampType

from ...schemas.codec import decode
from ...schemas.errors import JobRefused, PositionUnavailable, SequenceGap, TransportError, UnreadableRecord
from ...schemas.events import EventFrame, TriggerCheckpoint
from ...schemas.frames import unpack
from ...transport.ports import LogRecord, Partition, Transport
from .event_types import EventType

if TYPE_CHECKING:
    import pyarrow

ROWS_MAX = 10_000
"""Rows of one Arrow batch, but for the rest of its last frame."""
BYTES_MAX = 4 * 1024 * 1024
"""Bytes of events after which an Arrow batch ends likewise."""
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class EventsRange(InputPartition):
    """What one Spark task reads."""

    topic: str
    subtask: int
    begin: int
    end: int
    sequence: int
    """Of the first event."""
    epoch: int
    checkpoint_id: int
    records: tuple[LogRecord, ...] | None = field(default=None, repr=False)
    """The whole range where it was read ahead (:mod:`.read_ahead`); None: the task reads it."""

    def __str__(self) -> str:
        return (
            f"{self.topic}[{self.subtask}], offsets {self.begin} to {self.end} (checkpoint {self.checkpoint_id}, epoch"
            f" {self.epoch})"
        )


def columns(event: EventType) -> StructType:
    """The source's schema."""
    return StructType(
        [
            StructField("subtask", IntegerType(), False),
            StructField("sequence", LongType(), False),
            StructField("checkpoint_id", LongType(), False),
            StructField("event", event.spark, event.nullable),
            StructField("offset", LongType(), False),
            StructField("timestamp", TimestampType(), False),
        ]
    )


@dataclass(slots=True)
class _Frames:
    """The rows of one Arrow batch before they are one."""

    sequence: int
    count: int = 0
    size: int = 0
    frames: list[tuple[LogRecord, EventFrame]] = field(default_factory=list)

    def add(self, record: LogRecord, frame: EventFrame) -> None:
        self.frames.append((record, frame))
        self.count += frame.count
        self.size += len(frame.payload)


class RangeCheck:
    """Which records of a range count, and that they are all there. Fed with each record in turn."""

    def __init__(self, part: EventsRange) -> None:
        self._part = part
        self.sequence = part.sequence
        """Of the next event."""
        self.closed = False
        """Whether the marker that ends the range has been seen."""

    def frame(self, record: LogRecord) -> EventFrame | None:
        """The frame that ``record`` holds, where it counts. Raises SequenceGap where events before it are missing."""
        part = self._part
        try:
            found: object = decode(record.value)
        except UnreadableRecord:
            return None  # a foreign record; what it may have replaced shows as a gap
        if isinstance(found, TriggerCheckpoint) and (found.epoch, found.checkpoint_id) == (
            part.epoch,
            part.checkpoint_id,
        ):
            self._close(found)
            return None
        if not isinstance(found, EventFrame) or found.epoch != part.epoch:
            return None
        if found.sequence < self.sequence and found.sequence + found.count <= self.sequence:
            return None  # a repeat
        if self.closed:
            raise self._broken(f"offset {record.offset} holds events behind the marker of the batch")
        if found.sequence != self.sequence:
            raise self._broken(f"the event of sequence {self.sequence} is missing: offset {record.offset} holds"
                               f" {found.count} events from {found.sequence}")  # fmt: skip
        self.sequence += found.count
        return found

    def _close(self, marker: TriggerCheckpoint) -> None:
        """Behind it, up to the end, stands what does not count: of coordinators that have been replaced, say."""
        if marker.sequence != self.sequence:
            raise self._broken(f"the events of sequence {self.sequence} to {marker.sequence - 1} are missing before the"
                               " marker")  # fmt: skip
        self.closed = True

    def end(self) -> None:
        """The range has been read. Raises SequenceGap where its marker was not among it."""
        if not self.closed:
            raise self._broken(f"the marker of the batch is not among its records (events read up to {self.sequence})")

    def _broken(self, what: str) -> SequenceGap:
        return SequenceGap(
            f"the log of {self._part} is not what was planned: {what}. Records were lost, or the topic was deleted or"
            " written to by others. The batch cannot be read; see 'penstock checkpoints' for what the job still"
            " has, or begin the query anew with another checkpointLocation and .option('fresh', 'true')"
        )


def read_range(
    transport: Transport, part: EventsRange, event: EventType, timeout_s: float
) -> Iterator[pyarrow.RecordBatch]:
    """The range as Arrow batches, from the log: what :func:`rows_of` gives and raises.

    Raises JobRefused where it has been truncated, TransportError where nothing more is read for ``timeout_s`` seconds.
    """
    return rows_of(part, _records(transport, part, timeout_s), event)


def rows_of(part: EventsRange, records: Iterable[LogRecord], event: EventType) -> Iterator[pyarrow.RecordBatch]:
    """The records of the range as Arrow batches, in the order of the events.

    Raises SequenceGap where the range is not whole (what was given before is void then), UnreadableRecord where the
    codec cannot read an event.
    """
    schema = to_arrow_schema(columns(event), timezone="UTC")
    check = RangeCheck(part)
    rows = _Frames(part.sequence)
    for record in records:
        frame = check.frame(record)
        if frame is not None and frame.count:
            rows.add(record, frame)
            if rows.count >= ROWS_MAX or rows.size >= BYTES_MAX:
                yield _batch(part, rows, event, schema)
                rows = _Frames(check.sequence)
    check.end()
    if rows.count:
        yield _batch(part, rows, event, schema)


def _records(transport: Transport, part: EventsRange, timeout_s: float) -> Iterator[LogRecord]:
    """Every record of the range. A record that is missing at its end is found by the poll that does not come."""
    partition = Partition(part.topic, part.subtask)
    try:
        reader = transport.reader({partition: part.begin})
        try:
            position, silent_s = part.begin, 0.0
            while position < part.end:
                records = reader.poll(min(_POLL_S, timeout_s))
                silent_s = 0.0 if records else silent_s + min(_POLL_S, timeout_s)
                if silent_s >= timeout_s:
                    raise TransportError(
                        f"reading {part} has stopped at offset {position}: nothing for {timeout_s:g} s. Either the"
                        " broker is away, or the topic was deleted and is shorter now"
                    )
                for record in records:
                    if record.offset >= part.end:
                        raise SequenceGap(
                            f"the log of {part} has no record at offset {part.end - 1}: records were lost"
                        )
                    position = record.offset + 1
                    yield record
                    if position >= part.end:
                        return
        finally:
            reader.close()
    except PositionUnavailable as error:
        raise JobRefused(
            f"the events of {part} are not in the log any more: {error}. The log keeps the newest batch that Spark has"
            " stored, and the one before: this Spark checkpoint is an older copy, or the job has been purged or"
            " truncated since. Use the newest Spark checkpoint, or begin the query anew with another checkpointLocation"
            " and .option('fresh', 'true')"
        ) from error


def _batch(part: EventsRange, rows: _Frames, event: EventType, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Column by column: nothing is done for each row but what its codec does."""
    import numpy as np
    import pyarrow as pa

    count = rows.count
    counts = [frame.count for _, frame in rows.frames]
    offsets = np.repeat(np.array([record.offset for record, _ in rows.frames], np.int64), counts)
    times = np.repeat(np.array([record.timestamp_ms * 1000 for record, _ in rows.frames], np.int64), counts)
    columns_ = [
        pa.repeat(pa.scalar(part.subtask, pa.int32()), count),
        pa.array(np.arange(rows.sequence, rows.sequence + count, dtype=np.int64)),
        pa.repeat(pa.scalar(part.checkpoint_id, pa.int64()), count),
        _events(part, rows, event, schema.field("event").type),
        pa.array(offsets),
        pa.array(times).view(schema.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(columns_, schema=schema)


def _events(part: EventsRange, rows: _Frames, event: EventType, type_: pyarrow.DataType) -> pyarrow.Array:
    import pyarrow as pa

    if event.codec is None:
        return _binary(part, rows)
    values: list[Any] = []
    for record, frame in rows.frames:
        try:
            for payload in unpack(frame.count, frame.lengths, frame.payload):
                values.append(event.value(payload))
        except UnreadableRecord as error:
            raise UnreadableRecord(
                f"the event of sequence {rows.sequence + len(values)} at offset {record.offset} of {part}: {error}"
            ) from error
    return pa.array(values, type_)


def _binary(part: EventsRange, rows: _Frames) -> pyarrow.Array:
    """Frames hold their events end to end, and so does Arrow: nothing is taken apart."""
    import numpy as np
    import pyarrow as pa

    for record, frame in rows.frames:
        if len(frame.lengths) != 4 * frame.count:
            raise UnreadableRecord(f"the frame at offset {record.offset} of {part} contradicts itself")
    lengths = np.frombuffer(b"".join(frame.lengths for _, frame in rows.frames), "<u4")
    payload = b"".join(frame.payload for _, frame in rows.frames)
    ends = np.zeros(rows.count + 1, np.int64)  # wide enough for any lengths that a broken frame may claim
    lengths.cumsum(out=ends[1:])
    if ends[-1] != len(payload):
        raise UnreadableRecord(f"frames of {part} contradict themselves: {len(payload)} bytes, and not {ends[-1]}")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(payload)]
    return pa.Array.from_buffers(pa.binary(), rows.count, buffers)
