"""What the tasks of a batch send to the job's coordinator: frames that count once the driver has named their writers.

A task that fails, or runs twice, leaves frames in the log that no manifest names. The manifest is written once, when
the batch's function has returned, so it is always that of a whole run. A batch that runs again writes a new one, which
replaces the one before; the coordinator gets what the newest names when Spark has committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ...schemas.acks import BatchEventFrame, BatchEvents, BatchWriter
from ...schemas.codec import encode
from ...schemas.errors import AppendFailed, ConfigurationError, EventTooLarge
from ...schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX, pack, split
from ...transport.kafka import KafkaConfig, KafkaTransport
from ...transport.ports import Partition, Transport, Writer
from .event_types import EventType, event_type

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

EVENT, SUBTASK = "event", "subtask"
MANIFEST_BYTES_MAX = 512 * 1024
"""Of the record that names the writers."""
BUFFERED_BYTES_MAX = 4 * 1024 * 1024
"""Of events that a task holds before they are framed, for all subtasks together."""
_RECORD_HEADROOM_BYTES = 4 * 1024
"""For what a frame holds besides its events."""
_FLUSH_TIMEOUT_S = 120.0

WRITTEN = StructType(
    [
        StructField("partition", IntegerType(), False),
        StructField("subtask", IntegerType(), False),
        StructField("writer", StringType(), False),
        StructField("count", LongType(), False),
        StructField("bytes", LongType(), False),
    ]
)
"""What a task gives back: a row per subtask that it sent as."""

MakeTransport = Callable[[], Transport]


@dataclass(frozen=True, slots=True)
class EventsTarget:
    """Where a batch's events go, and what bounds them. Travels to the tasks."""

    make_transport: MakeTransport
    acks_topic: str
    operator: str
    checkpoint_id: int
    history: str
    """The job's life, as the stream's offsets name it."""
    parallelism: int
    bytes_max: int
    """Of one batch: the operator's ``max_held_bytes``."""
    event_schema: str | None
    """As in the source's options; None: events are bytes."""

    @classmethod
    def of_kafka(cls, config: KafkaConfig, **rest: Any) -> EventsTarget:
        return cls(partial(KafkaTransport.from_config, config), **rest)


@dataclass(slots=True)
class BatchOutbox:
    """The driver's side: what one run of a batch has sent so far."""

    target: EventsTarget
    writers: list[BatchWriter] = field(default_factory=list)
    size: int = 0
    """Bytes of events."""

    def send(self, frame: DataFrame) -> int:
        """How many events there were. They are in the log, and count once :meth:`finish` has named them.

        Raises ConfigurationError for columns that are no events, and for more bytes than the coordinator holds;
        TransportError where the broker does not take them. Then none of these events counts.
        """
        rows = event_columns(frame, self.target)
        written = sorted(map(tuple, rows.mapInArrow(partial(send_rows, self.target), WRITTEN).collect()))
        size = self.size + sum(row[4] for row in written)
        if size > self.target.bytes_max:
            raise too_many(self.target, f"the batch's tasks have sent {size} bytes")
        self.writers += [BatchWriter(row[1], row[2], row[3]) for row in written]
        self.size = size
        return sum(row[3] for row in written)

    def finish(self) -> None:
        """Writes the manifest, which replaces the one before: what this run has sent counts, and nothing else does.

        Raises ConfigurationError where it names too many writers; AppendFailed where it may not stand.
        """
        target = self.target
        manifest = encode(BatchEvents(target.checkpoint_id, target.operator, tuple(self.writers), target.history))
        if len(manifest) > MANIFEST_BYTES_MAX:
            raise ConfigurationError(
                f"{len(self.writers)} writers have sent events to the coordinator of {target.operator} in the batch of"
                f" checkpoint {target.checkpoint_id}, more than one record can name: send from fewer partitions"
                " (df.coalesce(n)), or as fewer subtasks"
            )
        transport = target.make_transport()
        try:
            acks = _Acked(transport, target)
            try:
                acks.append(manifest)
                acks.close()
            finally:
                acks.release()
        finally:
            transport.close()


def event_columns(frame: DataFrame, target: EventsTarget) -> DataFrame:
    """Only what is sent. Raises ConfigurationError where ``event`` is not what the operator's codec writes."""
    require_event_column(frame.schema, event_type(target.event_schema), f"operator {target.operator!r}")
    columns = {column.name: column.dataType for column in frame.schema.fields}
    if SUBTASK in columns and not isinstance(columns[SUBTASK], IntegralType):
        raise ConfigurationError(
            f"the column {SUBTASK!r} of send_to_coordinator is {columns[SUBTASK].simpleString()}; it must be a whole"
            f" number below the parallelism ({target.parallelism})"
        )
    return frame.select(*(name for name in (EVENT, SUBTASK) if name in columns))


def require_event_column(schema: StructType, own: EventType, receiver: str) -> None:
    """Raise ConfigurationError unless the column ``event`` is what the receiver's codec writes."""
    columns = {column.name: column.dataType for column in schema.fields}
    if EVENT not in columns:
        raise ConfigurationError(
            f"events to the coordinator of {receiver} are the column {EVENT!r} of a DataFrame, and this one has"
            f" {', '.join(columns) or 'no columns'}: rename one, or make one with struct(...)"
        )
    if not _takes(columns[EVENT], own):
        other = "binary or string" if own.codec is None else f"{own.spark.simpleString()}, or binary as encoded before"
        raise ConfigurationError(
            f"the column {EVENT!r} is {columns[EVENT].simpleString()}, and events to the coordinator of {receiver} are"
            f" {other}"
        )


def _takes(given: DataType, own: EventType) -> bool:
    if isinstance(given, BinaryType) or (own.codec is None and isinstance(given, StringType)):
        return True
    return own.codec is not None and given.simpleString() == own.spark.simpleString()


def too_many(target: EventsTarget, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} of events to the coordinator of {target.operator} for checkpoint {target.checkpoint_id}, and it holds"
        f" at most {target.bytes_max} (max_held_bytes) until Spark has committed: send less, or references to data"
    )


# ---- in a task


def send_rows(target: EventsTarget, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Sends what one partition holds, and says who wrote it. Everything is in the log before the first row is given."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    sender: EventSender | None = None
    try:
        for batch in batches:
            if batch.num_rows:
                sender = sender or EventSender(target, partition)
                sender.send(batch)
        rows = [] if sender is None else sender.finish()
    finally:
        if sender is not None:
            sender.close()
    if rows:
        columns = [
            pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), _arrow_types(), strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=WRITTEN.names)


def _arrow_types() -> list[pyarrow.DataType]:
    import pyarrow as pa

    return [pa.int32(), pa.int32(), pa.string(), pa.int64(), pa.int64()]


@dataclass(slots=True)
class _Stream:
    """What one task attempt sends as one subtask."""

    writer: str
    waiting: list[bytes] = field(default_factory=list)
    count: int = 0
    """Events that have been framed."""


class EventSender:
    """One task attempt. Its writers' names begin with an id of its own, so no other attempt's frames count as its."""

    def __init__(self, target: EventsTarget, partition: int) -> None:
        self._target = target
        self._partition = partition
        self._type = event_type(target.event_schema)
        self._attempt = uuid.uuid4().hex[:16]
        self._streams: dict[int, _Stream] = {}
        self._sizes: dict[int, int] = {}
        self._buffered = 0
        self._sent = 0
        self._transport = target.make_transport()
        self._acks = _Acked(self._transport, target)
        self._event_bytes_max = self._transport.max_record_bytes - _RECORD_HEADROOM_BYTES

    def send(self, batch: pyarrow.RecordBatch) -> None:
        subtasks = (
            batch.column(batch.schema.get_field_index(SUBTASK)).to_pylist() if SUBTASK in batch.schema.names else None
        )
        default = self._partition % self._target.parallelism
        for at, event in enumerate(payloads(batch.column(0), self._type)):
            self._add(default if subtasks is None else self._checked(subtasks[at]), event)

    def finish(self) -> list[tuple[int, int, str, int, int]]:
        """Rows of :data:`WRITTEN`, once all frames are in the log."""
        self._frame_all()
        self._acks.close()
        return [(self._partition, s, one.writer, one.count, self._sizes[s]) for s, one in sorted(self._streams.items())]

    def close(self) -> None:
        """Ends the handles, whatever has become of the events."""
        try:
            self._acks.release()
        finally:
            self._transport.close()

    def _checked(self, subtask: int | None) -> int:
        if subtask is None or not 0 <= subtask < self._target.parallelism:
            raise ConfigurationError(
                f"an event is to be sent as subtask {subtask}, and operator {self._target.operator!r} has subtasks 0 to"
                f" {self._target.parallelism - 1}"
            )
        return subtask

    def _add(self, subtask: int, event: bytes) -> None:
        if len(event) > self._event_bytes_max:
            raise EventTooLarge(
                f"an event of {len(event)} bytes to the coordinator of {self._target.operator}: the broker takes at"
                f" most {self._event_bytes_max}; send a reference to the data instead"
            )
        self._sent += len(event)
        if self._sent > self._target.bytes_max:
            raise too_many(self._target, f"a task has sent {self._sent} bytes")
        stream = self._streams.get(subtask)
        if stream is None:
            stream = self._streams[subtask] = _Stream(f"{self._attempt}.{subtask}")
            self._sizes[subtask] = 0
        stream.waiting.append(event)
        self._sizes[subtask] += len(event)
        self._buffered += len(event)
        if len(stream.waiting) >= FRAME_EVENTS_MAX:
            self._frame(subtask, stream)
        elif self._buffered > BUFFERED_BYTES_MAX:
            self._frame_all()

    def _frame_all(self) -> None:
        for subtask, stream in self._streams.items():
            self._frame(subtask, stream)

    def _frame(self, subtask: int, stream: _Stream) -> None:
        target = self._target
        for run in split(stream.waiting, events_max=FRAME_EVENTS_MAX, bytes_max=FRAME_BYTES_MAX):
            record = BatchEventFrame(
                target.checkpoint_id, target.operator, subtask, stream.writer, stream.count, *pack(run)
            )
            self._acks.append(encode(record))
            stream.count += len(run)
        self._buffered -= sum(map(len, stream.waiting))
        stream.waiting = []


class _Acked:
    """Appends to the job's acks topic; closing it says that all of them stand there."""

    def __init__(self, transport: Transport, target: EventsTarget) -> None:
        self._writer: Writer = transport.writer()
        self._at = Partition(target.acks_topic, 0)
        self._operator = target.operator
        self._errors: list[Exception] = []
        self._released = False

    def release(self) -> None:
        """Ends the producer; what it has not written yet is given up."""
        if not self._released:
            self._released = True
            self._writer.close(0.0)

    def append(self, value: bytes) -> None:
        self._writer.append(self._at, value, None, self._settled)

    def _settled(self, offset: int | None, error: Exception | None) -> None:
        if error is not None and not self._errors:
            self._errors.append(error)

    def close(self) -> None:
        """Raises AppendFailed where a record may not stand."""
        whole = self._writer.flush(_FLUSH_TIMEOUT_S)
        self.release()
        if self._errors or not whole:
            why = self._errors[0] if self._errors else f"no answer from the broker within {_FLUSH_TIMEOUT_S:g} s"
            raise AppendFailed(
                f"events to the coordinator of {self._operator} are not certain to be in {self._at}, so none of them"
                f" counts: {why}"
            )


def payloads(column: pyarrow.Array, own: EventType) -> Iterator[bytes]:
    """The column's values as bytes on the topic."""
    import pyarrow as pa

    kind = column.type
    plain = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if own.codec is None or (plain and not isinstance(own.spark, BinaryType)):
        for value in column.to_pylist():
            if value is None:
                raise ConfigurationError("an event to the coordinator is null: leave such rows out (df.where(...))")
            yield value.encode() if isinstance(value, str) else value
    else:
        for value in column.to_pylist(maps_as_pydicts="strict"):
            yield own.codec.encode(value)
