"""The Python data source ``penstock``: an operator's events as a streaming DataFrame, and a sink to a coordinator.

Spark makes it in the driver, plans with it in one process and reads with it in others. What runs where:
``latestOffset`` and ``partitions`` in the planner's process, ``read`` in a task. The sink is in :mod:`.sink`.

A small batch travels with its partitions (:mod:`.read_ahead`). Where it has one partition, PySpark takes its rows from
the planner and starts no Python task: as it does for a *simple* source, whose wrapper it tells by its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ...schemas.errors import ConfigurationError
from ...schemas.ids import NO_CHECKPOINT
from ...schemas.status import BatchOutcome
from ...transport.kafka import KafkaTransport
from ...transport.ports import Transport
from .event_types import EventType
from .offsets import StreamOffset
from .options import SinkOptions, SourceOptions
from .reading import EventsRange, columns, read_range, rows_of

if TYPE_CHECKING:
    import pyarrow

    from .planner import Planner
    from .read_ahead import ReadAhead

NAME = "penstock"

MakeTransport = Callable[[], Transport]


class PenstockSource(DataSource):
    """``spark.readStream.format("penstock")`` and ``df.writeStream.format("penstock")``.

    The options are those of :class:`.options.SourceOptions` and :class:`.options.SinkOptions`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return columns(SourceOptions.parse(self._options).event())

    def reader(self, schema: StructType) -> Any:
        raise ConfigurationError("the penstock source is a stream: use spark.readStream, and not spark.read")

    def streamReader(self, schema: StructType) -> StreamReader:
        own = self.schema()
        if schema != own:
            raise ConfigurationError(
                f"the penstock source has columns of its own ({own.simpleString()}): leave .schema(...) out, and choose"
                " columns behind it with select"
            )
        return StreamReader(SourceOptions.parse(self._options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        raise ConfigurationError("the penstock sink takes the batches of a streaming query: use df.writeStream")

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from .sink import StreamWriter  # sends with what no reader needs

        options = SinkOptions.parse(self._options)
        return StreamWriter(options, schema, partial(KafkaTransport.from_config, options.kafka))


class StreamReader(_SimpleStreamReaderWrapper, SupportsTriggerAvailableNow):
    """One query's source. Spark makes it twice and pickles one of them, so it holds no handle until it is asked.

    Of the wrapper it has the class alone, by which PySpark asks :meth:`getCache`; it wraps no other reader.
    """

    def __init__(self, options: SourceOptions, make_transport: MakeTransport | None = None) -> None:
        super().__init__(cast("Any", self))
        self._options = options
        self._given_transport = make_transport
        self._make_transport = make_transport or partial(KafkaTransport.from_config, options.kafka)
        self._planner: Planner | None = None
        self._read_ahead: ReadAhead | None = None
        self._rows: tuple[dict[str, Any], list[pyarrow.RecordBatch]] | None = None
        """Of the batch that was planned last, if it has one partition and was read ahead, and the offset at its end."""
        self._available_now = False
        self._last: int | None = None
        """With available-now: checkpoint of the query's one new batch, once it has been planned."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._given_transport)

    # ---- in the planner's process

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        return StreamOffset(options.job, options.operator, self._planned_with().history()).to_dict()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override, unused-ignore]
        """Plans the batch behind ``start``, which Spark has committed: the same offset where there is nothing new.

        A batch is a checkpoint and so has no limit: what the coordinator has sent until its cut.
        """
        planner, offset = self._planned_with(), self._own(start)
        if self._available_now and self._last is not None:
            if offset.checkpoint == self._last != NO_CHECKPOINT:
                planner.committed(offset.checkpoint)  # nobody will plan behind it
            return start
        planned = planner.plan(offset.checkpoint)
        nothing = planned.outcome is BatchOutcome.NOTHING
        self._last = offset.checkpoint if nothing else planned.checkpoint_id
        return start if nothing else offset.followed_by(planned).to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on one batch is planned, with what the coordinator has sent until then."""
        self._available_now, self._last = True, None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One per subtask, from ``end`` alone: a batch that runs again reads the same events."""
        self._rows = None
        if start == end:
            return []
        begin, offset = self._own(start), self._own(end)
        offset.require_predecessor(begin)
        topic = self._options.topics.events(offset.operator)
        ranges = [
            EventsRange(topic, subtask, part.begin, part.end, part.sequence, offset.epoch, offset.checkpoint)
            for subtask, part in enumerate(offset.partitions)
        ]
        handed = None if self._available_now else self._ahead().take(ranges)  # which has no batch to follow
        if handed is not None:
            ranges = [replace(part, records=records) for part, records in zip(ranges, handed, strict=True)]
            if len(ranges) == 1:
                self._rows = _rows(ranges[0], self._options.event(), end)
        return ranges

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pyarrow.RecordBatch] | None:  # type: ignore[override, unused-ignore]
        """The rows of the batch whose partitions were asked for last; None where its tasks make them."""
        rows, self._rows = self._rows, None
        return None if rows is None or rows[0] != end else iter(rows[1])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it after the next batch has been planned, and that has said the same."""

    def stop(self) -> None:
        planner, self._planner = self._planner, None
        ahead, self._read_ahead = self._read_ahead, None
        try:
            if ahead is not None:
                ahead.close()
        finally:
            if planner is not None:
                planner.close()

    # ---- in a task

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, EventsRange)
        if partition.records is not None:
            yield from rows_of(partition, partition.records, self._options.event())
            return
        transport = self._make_transport()
        try:
            yield from read_range(transport, partition, self._options.event(), self._options.coordinator_timeout_s)
        finally:
            transport.close()

    # ---- the parts

    def _planned_with(self) -> Planner:
        if self._planner is None:
            from .planner import Planner  # tasks need none, and each may be a process of its own that imports this

            options = self._options
            self._planner = Planner(
                self._make_transport,
                options.topics,
                options.operator,
                fresh=options.fresh,
                always=options.checkpoint_every_trigger,
                wait_s=options.max_wait_s,
                timeout_s=options.coordinator_timeout_s,
            )
        return self._planner

    def _ahead(self) -> ReadAhead:
        if self._read_ahead is None:
            from .read_ahead import ReadAhead, transport_of  # as above

            self._read_ahead = ReadAhead(self._given_transport or partial(transport_of, self._options.kafka))
        return self._read_ahead

    def _own(self, stored: Mapping[str, Any]) -> StreamOffset:
        offset = StreamOffset.parse(stored)
        offset.require(self._options.job, self._options.operator, self._planned_with().history())
        return offset


def _rows(
    part: EventsRange, event: EventType, end: dict[str, Any]
) -> tuple[dict[str, Any], list[pyarrow.RecordBatch]] | None:
    """Return the rows of a range that was read ahead; None where its task must say what is wrong with it."""
    try:
        return end, list(rows_of(part, part.records or (), event))
    except Exception:  # of Arrow's, too
        return None
