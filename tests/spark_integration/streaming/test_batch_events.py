"""What a task attempt of a batch writes for the coordinator, and what the driver then says of it."""

from __future__ import annotations

import datetime
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType

from penstock.broker import EmbeddedBroker
from penstock.schemas.acks import BatchEventFrame, BatchEvents, BatchWriter
from penstock.schemas.codec import decode
from penstock.schemas.errors import AppendFailed, ConfigurationError, EventTooLarge
from penstock.schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX, unpack
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.user_codec import AvroCodec, Codec, DataclassCodec
from penstock.spark_integration.streaming import batch_events
from penstock.spark_integration.streaming.batch_events import (
    BatchOutbox,
    EventSender,
    EventsTarget,
    event_columns,
    send_rows,
)
from penstock.spark_integration.streaming.event_types import described, event_type
from penstock.transport.kafka import KafkaConfig, KafkaTransport
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition, Transport

SETTINGS = JobSettings("flights", (OperatorSettings("reader", 3),), driven_by_query=True)
TOPIC = SETTINGS.topics.acks


@pytest.fixture
def transport() -> MemoryTransport:
    transport = MemoryTransport(MemoryBroker())
    transport.create_topics(SETTINGS.topic_specs)
    return transport


def target_of(transport: Transport, codec: Codec | None = None, bytes_max: int = 1 << 20) -> EventsTarget:
    schema = None if codec is None else described(codec)
    return EventsTarget(lambda: transport, TOPIC, "reader", 12, "life", 3, bytes_max, schema)


def records(transport: Transport, topic: str = TOPIC) -> list[Any]:
    return [decode(record.value) for record in transport.read_all(Partition(topic, 0))]


def events_of(transport: Transport, topic: str = TOPIC) -> dict[str, list[bytes]]:
    """By writer; every writer's frames are whole and in order."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for record in records(transport, topic):
        if isinstance(record, BatchEventFrame):
            assert (record.checkpoint_id, record.operator) == (12, "reader")
            assert record.sequence == len(found[record.writer])
            found[record.writer] += unpack(record.count, record.lengths, record.payload)
    return found


def batch(events: Sequence[Any], subtasks: Sequence[int | None] | None = None, type_: Any = None) -> pa.RecordBatch:
    columns = {"event": pa.array(events, type_)}
    if subtasks is not None:
        columns["subtask"] = pa.array(subtasks, pa.int32())
    return pa.RecordBatch.from_pydict(columns)


def sent(target: EventsTarget, *batches: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Rows of WRITTEN, as a task gives them."""
    return [tuple(row.values()) for out in send_rows(target, iter(batches)) for row in out.to_pylist()]


def test_each_subtask_of_a_task_is_a_writer_and_what_was_written_is_told(transport: MemoryTransport) -> None:
    rows = sent(target_of(transport), batch([b"a", b"", b"c"], [2, 0, 2]), batch([b"d"], [2]))
    assert [(row[1], *row[3:]) for row in rows] == [(0, 1, 0), (2, 3, 3)]
    found = events_of(transport)
    assert {row[1]: found[row[2]] for row in rows} == {0: [b""], 2: [b"a", b"c", b"d"]}


def test_without_a_subtask_the_partition_says_which(transport: MemoryTransport) -> None:
    for partition in range(5):
        sender = EventSender(target_of(transport), partition)
        sender.send(batch([b"%d" % partition]))
        ((_, subtask, writer, count, size),) = sender.finish()
        assert (subtask, count, size, events_of(transport)[writer]) == (partition % 3, 1, 1, [b"%d" % partition])


def test_two_attempts_never_write_under_one_name(transport: MemoryTransport) -> None:
    first, second = (sent(target_of(transport), batch([b"a"])) for _ in range(2))
    assert first[0][2] != second[0][2]


def test_a_task_without_rows_writes_and_says_nothing(transport: MemoryTransport) -> None:
    def no_transport() -> Transport:
        raise AssertionError("a task without rows needs no broker")

    assert sent(replace(target_of(transport), make_transport=no_transport), batch([], [])) == []


def test_frames_are_bounded_and_so_is_what_waits(transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_events, "BUFFERED_BYTES_MAX", 10_000)
    many = [b"x" * 10] * (2 * FRAME_EVENTS_MAX + 1)
    large = [b"y" * 9_000] * 20
    sender = EventSender(target_of(transport), 0)
    for subtask, events in ((1, many), (2, large)):
        sender.send(batch(events, [subtask] * len(events)))
        assert sender._buffered <= 10_000
    rows = sender.finish()
    found = events_of(transport)
    assert [found[row[2]] for row in rows] == [many, large]
    frames = [record for record in records(transport) if isinstance(record, BatchEventFrame)]
    assert max(frame.count for frame in frames) <= FRAME_EVENTS_MAX
    assert max(len(frame.payload) for frame in frames) <= FRAME_BYTES_MAX


@pytest.mark.parametrize(("events", "subtasks", "error", "message"), [
    ([b"a"], [3], ConfigurationError, "as subtask 3, and operator 'reader' has subtasks 0 to 2"),
    ([b"a"], [-1], ConfigurationError, "as subtask -1"),
    ([b"a"], [None], ConfigurationError, "as subtask None"),
    ([None], None, ConfigurationError, "is null: leave such rows out"),
    ([b"x" * 600_000, b"y" * 600_000], None, ConfigurationError, "a task has sent 1200000 bytes.*max_held_bytes"),
    ([b"x" * 1_100_000], None, EventTooLarge, "an event of 1100000 bytes.*a reference"),
])  # fmt: skip
def test_what_cannot_be_sent_fails_the_task(
    transport: MemoryTransport, events: list[bytes], subtasks: list[int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sent(target_of(transport), batch(events, subtasks, pa.binary()))


def test_strings_are_sent_in_utf8(transport: MemoryTransport) -> None:
    ((_, _, writer, _, _),) = sent(target_of(transport), batch(['{"é": 1}']))
    assert events_of(transport)[writer] == ['{"é": 1}'.encode()]


@dataclass
class Report:
    carrier: str
    delays: list[int]
    by_day: dict[str, float]
    note: str | None = None


REPORT = Report("AA", [1, -2], {"mon": 1.5})


def arrow_type(codec: Codec) -> pa.DataType:
    """As a column of Spark's own type for it comes to a task."""
    return to_arrow_type(event_type(described(codec)).spark, timezone="UTC")


def test_typed_events_are_what_the_operators_codec_would_write(transport: MemoryTransport) -> None:
    codec = DataclassCodec(Report)
    value = [{"carrier": "AA", "delays": [1, -2], "by_day": [("mon", 1.5)], "note": None}]
    ((_, _, writer, _, _),) = sent(target_of(transport, codec), batch(value, None, arrow_type(codec)))
    (payload,) = events_of(transport)[writer]
    assert codec.decode(payload) == REPORT
    assert payload == codec.encode(REPORT)


def test_logical_types_survive(transport: MemoryTransport) -> None:
    logical = {
        "id": ("string", "uuid", uuid.UUID(int=7)),
        "at": ("long", "timestamp-micros", datetime.datetime(2024, 5, 1, 12, 0, 0, 5, datetime.UTC)),
        "local": ("long", "local-timestamp-millis", datetime.datetime(2024, 5, 1, 12)),
        "day": ("int", "date", datetime.date(2024, 5, 1)),
    }
    fields = [{"name": n, "type": {"type": plain, "logicalType": kind}} for n, (plain, kind, _) in logical.items()]
    codec = AvroCodec({"type": "record", "name": "Logical", "fields": fields})
    value = {name: str(value) if name == "id" else value for name, (_, _, value) in logical.items()}
    ((_, _, writer, _, _),) = sent(target_of(transport, codec), batch([value], None, arrow_type(codec)))
    assert [codec.decode(event) for event in events_of(transport)[writer]] == [
        {n: v for n, (_, _, v) in logical.items()}
    ]


def test_events_that_are_encoded_already_stay_as_they_are(transport: MemoryTransport) -> None:
    codec = DataclassCodec(Report)
    ((_, _, writer, _, _),) = sent(target_of(transport, codec), batch([codec.encode(REPORT)]))
    assert events_of(transport)[writer] == [codec.encode(REPORT)]


def test_an_avro_type_that_is_bytes_itself_is_encoded(transport: MemoryTransport) -> None:
    codec = AvroCodec({"type": "bytes"})
    ((_, _, writer, _, _),) = sent(target_of(transport, codec), batch([b"raw"]))
    assert [codec.decode(event) for event in events_of(transport)[writer]] == [b"raw"]


class Rows:
    """As much of a DataFrame as the driver's side asks for."""

    def __init__(self, written: list[tuple[Any, ...]]) -> None:
        self.written = written

    def mapInArrow(self, *_: object) -> Rows:
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        return self.written


@pytest.fixture
def any_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_events, "event_columns", lambda frame, _: frame)


def outbox_sends(outbox: BatchOutbox, *written: tuple[Any, ...]) -> int:
    rows: Any = Rows(list(written))
    return outbox.send(rows)


def manifests(transport: Transport) -> list[BatchEvents]:
    return [record for record in records(transport) if isinstance(record, BatchEvents)]


@pytest.mark.usefixtures("any_columns")
def test_one_manifest_names_what_every_send_of_a_run_wrote(transport: MemoryTransport) -> None:
    outbox = BatchOutbox(target_of(transport))
    assert outbox_sends(outbox, (1, 2, "c", 5, 50), (0, 1, "b", 3, 30), (0, 0, "a", 1, 10)) == 9
    assert outbox_sends(outbox, (0, 0, "d", 2, 20)) == 2
    assert manifests(transport) == []  # nothing counts before the function has returned
    outbox.finish()
    writers = (BatchWriter(0, "a", 1), BatchWriter(1, "b", 3), BatchWriter(2, "c", 5), BatchWriter(0, "d", 2))
    assert manifests(transport) == [BatchEvents(12, "reader", writers, "life")]


@pytest.mark.usefixtures("any_columns")
def test_a_batch_that_sends_nothing_says_so_and_replaces_what_an_earlier_run_named(transport: MemoryTransport) -> None:
    outbox = BatchOutbox(target_of(transport))
    assert outbox_sends(outbox) == 0
    outbox.finish()
    assert [m.writers for m in manifests(transport)] == [()]


@pytest.mark.usefixtures("any_columns")
def test_more_than_the_coordinator_holds_is_refused_before_anything_counts(transport: MemoryTransport) -> None:
    outbox = BatchOutbox(target_of(transport, bytes_max=100))
    outbox_sends(outbox, (0, 0, "a", 1, 60))
    with pytest.raises(ConfigurationError, match=r"have sent 101 bytes.*it holds at most 100 \(max_held_bytes\)"):
        outbox_sends(outbox, (0, 0, "b", 1, 41))
    assert outbox_sends(outbox, (0, 0, "c", 1, 40)) == 1
    outbox.finish()
    assert [w.writer for w in manifests(transport)[-1].writers] == ["a", "c"]


@pytest.mark.usefixtures("any_columns")
def test_more_writers_than_a_record_can_name_are_refused(transport: MemoryTransport) -> None:
    outbox = BatchOutbox(target_of(transport))
    outbox_sends(outbox, *((n, 0, f"writer-{n:012}", 1, 1) for n in range(30_000)))
    with pytest.raises(ConfigurationError, match=r"30000 writers have sent events.*coalesce"):
        outbox.finish()
    assert manifests(transport) == []


class Broken(MemoryTransport):
    """A broker that takes nothing."""

    def writer(self) -> Any:
        writer = super().writer()
        append = writer.append

        def fails(at: Any, value: bytes, key: Any, on_outcome: Any) -> None:
            append(at, value, key, lambda *_: on_outcome(None, AppendFailed("no answer")))

        writer.append = fails  # type: ignore[method-assign]
        return writer


@pytest.mark.usefixtures("any_columns")
def test_what_the_broker_does_not_take_counts_for_nobody() -> None:
    broken = Broken(MemoryBroker())
    broken.create_topics(SETTINGS.topic_specs)
    with pytest.raises(AppendFailed, match=r"not certain to be in penstock\.flights\.acks\[0\].*no answer"):
        sent(target_of(broken), batch([b"a"]))
    outbox = BatchOutbox(target_of(broken))
    outbox_sends(outbox, (0, 0, "a", 1, 1))
    with pytest.raises(AppendFailed, match="none of them counts"):
        outbox.finish()


@pytest.mark.kafka
def test_frames_stand_in_the_log_before_a_task_says_so(kafka_broker: EmbeddedBroker) -> None:
    settings = replace(SETTINGS, name=f"batch-events-{uuid.uuid4().hex[:8]}")
    transport = KafkaTransport(kafka_broker.bootstrap)
    transport.create_topics(settings.topic_specs)
    topic = settings.topics.acks
    make = partial(KafkaTransport.from_config, KafkaConfig(kafka_broker.bootstrap, {}))
    target = EventsTarget(make, topic, "reader", 12, "life", 3, 1 << 24, None)
    many = [b"%d" % n for n in range(25_000)]
    rows = sent(target, *(batch(many[at : at + 10_000]) for at in range(0, len(many), 10_000)))
    found = events_of(transport, topic)
    assert [found[row[2]] for row in rows] == [many]
    transport.close()


class Columns:
    """A DataFrame of which only the columns are looked at."""

    def __init__(self, schema: str) -> None:
        self.schema = _columns_of(schema)
        self.selected: tuple[str, ...] = ()

    def select(self, *names: str) -> Columns:
        self.selected = names
        return self


def _columns_of(schema: str) -> StructType:
    """As much of Spark's own notation as these tests need; Spark's own parser would need a JVM."""
    types: dict[str, DataType] = {
        "binary": BinaryType(),
        "string": StringType(),
        "int": IntegerType(),
        "long": LongType(),
    }
    fields = [part.split(" ") for part in schema.split(", ") if part]
    nested = StructType([StructField("name", StringType()), StructField("limit", LongType(), True)])
    return StructType([StructField(name, types.get(kind, nested)) for name, kind in fields])


@dataclass
class Rule:
    name: str
    limit: int | None


def columns_sent(transport: Transport, schema: str, codec: Codec | None = None) -> tuple[str, ...]:
    frame: Any = Columns(schema)
    event_columns(frame, target_of(transport, codec))
    selected: tuple[str, ...] = frame.selected
    return selected


def test_only_the_event_and_its_subtask_are_sent(transport: MemoryTransport) -> None:
    assert columns_sent(transport, "offset long, subtask int, event binary") == ("event", "subtask")
    assert columns_sent(transport, "event string") == ("event",)
    assert columns_sent(transport, "event rule", DataclassCodec(Rule)) == ("event",)
    assert columns_sent(transport, "event binary", DataclassCodec(Rule)) == ("event",)


@pytest.mark.parametrize(("schema", "typed", "message"), [
    ("number int", False, "are the column 'event' of a DataFrame.*this one has number"),
    ("", False, "this one has no columns"),
    ("event int", False, "is int, and events to the coordinator of operator 'reader' are binary or string"),
    ("event rule", False, "is struct<name:string,limit:bigint>, and .* of operator 'reader' are binary or string"),
    ("event string", True, "is string, and .* of operator 'reader' are struct<name:string,limit:bigint>, or b"),
    ("event binary, subtask string", False, "'subtask' of send_to_coordinator is string; it must be a whole number"),
])  # fmt: skip
def test_other_columns_are_refused_before_anything_runs(
    transport: MemoryTransport, schema: str, typed: bool, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        columns_sent(transport, schema, DataclassCodec(Rule) if typed else None)
