"""The source as Spark calls it, without Spark: in the planner's process, and in a task."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.schemas.errors import ConfigurationError, JobRefused, UnreadableRecord
from penstock.spark_integration.streaming.options import SourceOptions
from penstock.spark_integration.streaming.reading import EventsRange
from penstock.spark_integration.streaming.source import PenstockSource, StreamReader
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .fake_coordinator import OPERATOR, Events, FakeCoordinator, topics_of

JOB = "flights"
GIVEN = {
    "job": JOB,
    "operator": OPERATOR,
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.sasl.password": "hush-hush",
    "maxWait": "0",
    "coordinatorTimeout": "20",
}
FIRST: Events = [[b"a", b"b", b"c", b"d"], [b"x"]]
SECOND: Events = [[], [b"y", b"z"]]
ALL = ReadAllAvailable()


@pytest.fixture
def fake() -> Iterator[FakeCoordinator]:
    transport = MemoryTransport(MemoryBroker())
    with FakeCoordinator(transport, topics_of(transport, JOB, 2), 2) as fake:
        yield fake


@pytest.fixture
def single() -> Iterator[FakeCoordinator]:
    transport = MemoryTransport(MemoryBroker())
    with FakeCoordinator(transport, topics_of(transport, JOB, 1), 1) as fake:
        yield fake


def reader_of(fake: FakeCoordinator, **options: str) -> StreamReader:
    return StreamReader(SourceOptions.parse({**GIVEN, **options}), lambda: fake.transport)


def as_stored(offset: dict[str, Any]) -> dict[str, Any]:
    """The offset as Spark gives it back."""
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]


def rows_in(batches: Iterator[pyarrow.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def events_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[bytes]]:
    """The batch's events, by partition."""
    return [
        [row["event"] for batch in reader.read(part) for row in batch.to_pylist()]
        for part in reader.partitions(start, end)
    ]


def test_batches_follow_one_another_and_the_same_offset_says_that_there_is_none(fake: FakeCoordinator) -> None:
    fake.offer(FIRST, SECOND)
    reader = reader_of(fake)
    start = as_stored(reader.initialOffset())
    one = as_stored(reader.latestOffset(start, ALL))
    two = as_stored(reader.latestOffset(one, ALL))
    assert events_of(reader, start, one) == FIRST
    assert events_of(reader, one, two) == SECOND
    assert (one["previous"], one["checkpoint"], two["previous"], two["checkpoint"]) == (-1, 1, 1, 2)
    assert json.dumps(reader.latestOffset(two, ALL)) == json.dumps(two)
    assert fake.completed == [1, 2]


def test_a_batch_can_be_read_again_by_another_query_process_without_the_coordinator(fake: FakeCoordinator) -> None:
    fake.offer(FIRST, SECOND)
    reader = reader_of(fake)
    start = as_stored(reader.initialOffset())
    end = as_stored(reader.latestOffset(start, ALL))
    reader.stop()
    fake.mute = True
    asked = len(fake.requests)
    again = reader_of(fake)
    assert events_of(again, as_stored(again.initialOffset()), end) == FIRST
    assert len(fake.requests) == asked


def test_a_restarted_query_goes_on_behind_what_spark_stored(fake: FakeCoordinator) -> None:
    fake.offer(FIRST, SECOND)
    reader = reader_of(fake)
    one = as_stored(reader.latestOffset(as_stored(reader.initialOffset()), ALL))
    lost = as_stored(reader.latestOffset(one, ALL))
    reader.stop()
    again = reader_of(fake)
    two = as_stored(again.latestOffset(one, ALL))
    assert (lost["checkpoint"], two["checkpoint"], two["previous"]) == (2, 3, 1)
    assert two["epoch"] > one["epoch"]
    assert events_of(again, one, two) == SECOND
    assert fake.completed == [1]


def test_a_small_batch_travels_with_its_partitions_and_a_large_one_is_read_by_its_tasks(fake: FakeCoordinator) -> None:
    large = [[b"x" * 40_000] * 2, [b"z"]]
    fake.offer(FIRST, SECOND, large, SECOND)
    reader = reader_of(fake)
    task = reader_of(fake)
    start = as_stored(reader.initialOffset())
    for batch, travels in ((FIRST, False), (SECOND, True), (large, False), (SECOND, True)):
        end = as_stored(reader.latestOffset(start, ALL))
        planned = [pickle.loads(pickle.dumps(part)) for part in reader.partitions(start, end)]
        assert [part.records is not None for part in planned] == [travels, travels]
        assert reader.getCache(start, end) is None
        assert [rows_in(task.read(part)) for part in planned] == [
            rows_in(task.read(dataclasses.replace(part, records=None))) for part in planned
        ]
        assert [[row["event"] for row in rows_in(task.read(part))] for part in planned] == batch
        start = end
    reader.stop()


def test_rows_of_a_single_partition_are_handed_over_once_and_its_task_could_make_them(single: FakeCoordinator) -> None:
    single.offer([[b"a"]], [[b"b", b"c"]], [[]])
    reader = reader_of(single)
    start = as_stored(reader.initialOffset())
    for events, handed in (([b"a"], False), ([b"b", b"c"], True), ([], True)):
        end = as_stored(reader.latestOffset(start, ALL))
        (part,) = reader.partitions(start, end)
        rows = reader.getCache(start, end)
        assert (rows is not None) == handed
        assert rows is None or rows_in(rows) == rows_in(reader.read(part))
        assert [row["event"] for row in rows_in(reader.read(part))] == events
        assert reader.getCache(start, end) is None
        start = end
    reader.stop()


def test_rows_that_cannot_be_made_are_left_to_the_task_which_says_why(single: FakeCoordinator) -> None:
    single.offer([[b"a"]], [[b"no record of this schema"]])
    avro = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}'
    reader = reader_of(single, eventSchema=avro)
    one = as_stored(reader.latestOffset(start := as_stored(reader.initialOffset()), ALL))
    reader.partitions(start, one)
    two = as_stored(reader.latestOffset(one, ALL))
    (part,) = reader.partitions(one, two)
    assert isinstance(part, EventsRange)
    assert part.records is not None
    assert reader.getCache(one, two) is None
    with pytest.raises(UnreadableRecord, match="event of sequence 1 at offset"):
        list(reader.read(part))
    reader.stop()


def test_an_equal_start_and_end_has_no_partitions(fake: FakeCoordinator) -> None:
    reader = reader_of(fake)
    start = as_stored(reader.initialOffset())
    assert reader.partitions(start, start) == []


def test_every_subtask_has_a_partition_also_where_it_has_no_events(fake: FakeCoordinator) -> None:
    fake.offer([[], []])
    reader = reader_of(fake)
    start = as_stored(reader.initialOffset())
    end = as_stored(reader.latestOffset(start, ALL))
    assert events_of(reader, start, end) == [[], []]


def test_a_batch_behind_another_start_is_refused(fake: FakeCoordinator) -> None:
    fake.offer(FIRST, SECOND)
    reader = reader_of(fake)
    start = as_stored(reader.initialOffset())
    one = as_stored(reader.latestOffset(start, ALL))
    two = as_stored(reader.latestOffset(one, ALL))
    with pytest.raises(JobRefused, match="planned behind checkpoint 1, and Spark runs it behind checkpoint -1"):
        reader.partitions(start, two)


def test_offsets_of_a_purged_job_are_refused_before_anything_is_asked(fake: FakeCoordinator) -> None:
    fake.offer(FIRST)
    reader = reader_of(fake)
    start = as_stored(reader.initialOffset())
    end = as_stored(reader.latestOffset(start, ALL)) | {"history": "of another life"}
    asked = len(fake.requests)
    for refused in (lambda: reader.latestOffset(end, ALL), lambda: reader.partitions(start, end)):
        with pytest.raises(JobRefused, match="topics have been deleted since"):
            refused()
    assert len(fake.requests) == asked


def test_available_now_plans_one_batch_and_says_that_it_has_been_committed(fake: FakeCoordinator) -> None:
    fake.offer(FIRST, SECOND)
    reader = reader_of(fake)
    reader.prepareForTriggerAvailableNow()
    start = as_stored(reader.initialOffset())
    one = as_stored(reader.latestOffset(start, ALL))
    assert events_of(reader, start, one) == FIRST
    assert fake.completed == []
    for _ in range(2):
        assert reader.latestOffset(one, ALL) == one
    fake.await_(lambda: fake.told[:1] == [1], "BatchCommitted(1)")
    assert len(fake.requests) == 1


def test_available_now_without_events_ends_at_once(fake: FakeCoordinator) -> None:
    reader = reader_of(fake)
    reader.prepareForTriggerAvailableNow()
    start = as_stored(reader.initialOffset())
    assert reader.latestOffset(start, ALL) == start
    fake.offer(FIRST)
    assert reader.latestOffset(start, ALL) == start
    reader.stop()
    assert (len(fake.requests), fake.told) == (1, [])


def test_available_now_in_a_restarted_query_plans_behind_the_batch_that_ran_again(fake: FakeCoordinator) -> None:
    fake.offer(FIRST, SECOND)
    reader = reader_of(fake)
    one = as_stored(reader.latestOffset(as_stored(reader.initialOffset()), ALL))
    reader.stop()
    again = reader_of(fake)
    again.prepareForTriggerAvailableNow()
    assert events_of(again, as_stored(again.initialOffset()), one) == FIRST
    two = as_stored(again.latestOffset(one, ALL))
    assert events_of(again, one, two) == SECOND
    assert again._read_ahead is None
    assert again.latestOffset(two, ALL) == two


def test_a_reader_that_was_used_can_be_pickled_and_makes_handles_of_its_own(fake: FakeCoordinator) -> None:
    made = StreamReader(SourceOptions.parse(GIVEN))
    assert pickle.loads(pickle.dumps(made))._options == made._options
    reader = reader_of(fake)
    reader.initialOffset()
    remade, arguments = reader.__reduce__()
    assert remade(*arguments)._planner is None
    reader.stop()
    reader.stop()


def test_the_source_knows_its_columns() -> None:
    source = PenstockSource(GIVEN)
    assert source.schema().simpleString() == (
        "struct<subtask:int,sequence:bigint,checkpoint_id:bigint,event:binary,offset:bigint,timestamp:timestamp>"
    )
    avro = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}'
    typed = PenstockSource({**GIVEN, "eventSchema": avro})
    assert typed.schema()["event"].dataType.simpleString() == "struct<x:bigint>"
    with pytest.raises(ConfigurationError, match=r"has columns of its own.*leave .schema"):
        source.streamReader(typed.schema())
    with pytest.raises(ConfigurationError, match=r"use spark\.readStream, and not spark.read"):
        source.reader(source.schema())


def test_no_offset_and_no_partition_holds_a_secret(fake: FakeCoordinator) -> None:
    fake.offer(FIRST)
    reader = reader_of(fake)
    start = as_stored(reader.initialOffset())
    end = reader.latestOffset(start, ALL)
    shown = json.dumps([start, end]) + repr(reader.partitions(start, end)) + repr(reader._options)
    assert "hush-hush" not in shown
    assert b"hush-hush" not in pickle.dumps(reader.partitions(start, end))
