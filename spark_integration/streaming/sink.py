"""The streaming sink ``penstock``: a query sends its batches to a coordinator of a job that it does not drive.

A task gives Spark its events in its commit message. ``commit``, in a process beside the driver, sends them as one batch
and returns when a completed checkpoint of the job has its effect (protocol, section 10.9). Spark runs a batch again
whose commit did not return: the coordinator takes its id once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...client.batch_sender import QueryBatch, send_batch
from ...client.job_client import JobClient
from ...schemas.errors import ConfigurationError
from ...schemas.frames import Packed, pack, split
from ...transport.ports import Transport
from .batch_events import EVENT, payloads, require_event_column
from .options import SinkOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow

    MakeTransport = Callable[[], Transport]

_QUERY_PROPERTY = "sql.streaming.queryId"
"""Spark's local property of a micro-batch's tasks (StreamExecution.QUERY_ID_KEY)."""


@dataclass
class EventsMessage(WriterCommitMessage):
    """Events that a task wants to have sent."""

    query: str
    frames: list[Packed]


class StreamWriter(DataSourceStreamArrowWriter):
    """One query's sink. Spark makes one in each process that uses it."""

    def __init__(self, options: SinkOptions, schema: StructType, make_transport: MakeTransport) -> None:
        require_event_column(schema, options.event(), f"operator {options.operator!r}")
        self._options = options
        self._make_transport = make_transport

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> EventsMessage:
        """Frame the events of one partition; runs in a task. Nothing is sent yet."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_PROPERTY)
        if not query:
            raise ConfigurationError("the penstock sink takes the batches of a streaming query: use df.writeStream")
        return EventsMessage(query, framed(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Send the batch; runs beside the driver. Return when a completed checkpoint has its effect."""
        told = [message for message in messages if isinstance(message, EventsMessage)]
        frames = [frame for message in told for frame in message.frames]
        if not frames:
            return
        options = self._options
        batch = QueryBatch(options.operator, told[0].query, batchId, frames)
        if batch.size > options.max_held_bytes:
            raise _too_much(options, f"batch {batchId} has {batch.size} bytes")
        transport = self._make_transport()
        try:
            client = JobClient(transport, options.topics.job, options.topics.prefix)
            send_batch(client, transport, batch, options.coordinator_timeout_s)
        finally:
            transport.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what the tasks wrote is in their messages, and goes with them."""


def framed(batches: Iterator[pyarrow.RecordBatch], options: SinkOptions) -> list[Packed]:
    """The events of one partition, in frames that fit a record. Raise ConfigurationError above ``maxHeldBytes``."""
    frames: list[Packed] = []
    size, own = 0, options.event()
    for batch in batches:
        events = list(payloads(batch.column(batch.schema.get_field_index(EVENT)), own))
        size += sum(map(len, events))
        if size > options.max_held_bytes:
            raise _too_much(options, f"a task has {size} bytes")
        frames += [pack(run) for run in split(events)]
    return frames


def _too_much(options: SinkOptions, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} of events to the coordinator of {options.operator}, and a batch may have {options.max_held_bytes}"
        " (the option maxHeldBytes; the coordinator holds as many as the operator's max_held_bytes): bound the source's"
        " batches (maxOffsetsPerTrigger, maxFilesPerTrigger), or raise both"
    )
