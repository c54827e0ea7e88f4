"""One partition's range becomes rows: exactly the events that were planned, or an error that says what is wrong."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.schemas.codec import Record, encode
from penstock.schemas.errors import JobRefused, SequenceGap, TransportError, UnreadableRecord
from penstock.schemas.events import CheckpointAborted, EventFrame, TriggerCheckpoint
from penstock.schemas.frames import pack
from penstock.schemas.topics import TopicSpec
from penstock.schemas.user_codec import DataclassCodec
from penstock.spark_integration.streaming import reading
from penstock.spark_integration.streaming.event_types import BINARY, EventType, described, event_type
from penstock.spark_integration.streaming.reading import EventsRange, read_range
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

TOPIC = "penstock.flights.reader.events"
EPOCH, CHECKPOINT = 3, 8


def frame(sequence: int, *events: bytes, epoch: int = EPOCH) -> EventFrame:
    return EventFrame(epoch, 0, sequence, *pack(events))


def marker(sequence: int, checkpoint: int = CHECKPOINT, epoch: int = EPOCH) -> TriggerCheckpoint:
    return TriggerCheckpoint(epoch, checkpoint, sequence, False, False)


def log_of(*records: Record | bytes, subtask: int = 1) -> MemoryTransport:
    """A log with these records in the subtask's partition, written in the year 1970, a second apart."""
    times = iter(range(1000, 10_000_000, 1000))
    transport = MemoryTransport(MemoryBroker(), now_ms=lambda: next(times))
    transport.create_topics([TopicSpec(TOPIC, 2)])
    writer = transport.writer()
    for record in records:
        writer.append(Partition(TOPIC, subtask), record if isinstance(record, bytes) else encode(record))
    return transport


def range_of(transport: MemoryTransport, sequence: int = 0, begin: int = 0) -> EventsRange:
    end = transport.offsets([Partition(TOPIC, 1)])[Partition(TOPIC, 1)].end
    return EventsRange(TOPIC, 1, begin, end, sequence, EPOCH, CHECKPOINT)


def read(
    transport: MemoryTransport, part: EventsRange | None = None, event: EventType = BINARY, timeout_s: float = 20.0
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in read_range(transport, part or range_of(transport), event, timeout_s):
        rows += batch.to_pylist()
    return rows


def events_in(rows: Sequence[dict[str, Any]]) -> list[Any]:
    return [row["event"] for row in rows]


def test_rows_say_what_they_are_and_where_they_stood() -> None:
    rows = read(log_of(frame(5, b"a", b""), frame(7, b"ccc"), marker(8)), EventsRange(TOPIC, 1, 0, 3, 5, 3, 8))
    assert [{**row, "timestamp": row["timestamp"].timestamp()} for row in rows] == [
        {"subtask": 1, "sequence": 5, "checkpoint_id": 8, "event": b"a", "offset": 0, "timestamp": 1.0},
        {"subtask": 1, "sequence": 6, "checkpoint_id": 8, "event": b"", "offset": 0, "timestamp": 1.0},
        {"subtask": 1, "sequence": 7, "checkpoint_id": 8, "event": b"ccc", "offset": 1, "timestamp": 2.0},
    ]


def test_only_frames_of_the_batchs_epoch_count() -> None:
    transport = log_of(
        frame(9, b"older", epoch=2),
        frame(0, b"a"),
        frame(1, b"newer", epoch=4),
        b"garbage",
        marker(1, checkpoint=7),
        CheckpointAborted(EPOCH, 7, "declined"),
        marker(0, epoch=2),
        frame(1, b"b"),
        marker(2),
        frame(2, b"of the next batch"),
    )
    whole = range_of(transport)
    assert events_in(read(transport, dataclasses.replace(whole, end=whole.end - 1))) == [b"a", b"b"]


def test_a_batch_without_events_for_this_subtask_has_no_rows() -> None:
    assert read(log_of(marker(0))) == []
    assert read(log_of(frame(0, b"older", epoch=2), marker(4)), EventsRange(TOPIC, 1, 0, 2, 4, 3, 8)) == []


def test_a_range_may_begin_and_end_within_the_log() -> None:
    transport = log_of(frame(0, b"before"), marker(1, 7), frame(1, b"mine"), marker(2), frame(2, b"behind"))
    assert events_in(read(transport, EventsRange(TOPIC, 1, 2, 4, 1, EPOCH, CHECKPOINT))) == [b"mine"]


def test_what_does_not_count_may_stand_behind_the_marker() -> None:
    """A coordinator that was replaced goes on writing until it knows."""
    assert events_in(read(log_of(frame(0, b"mine"), marker(1), frame(7, b"void", epoch=2), b"garbage"))) == [b"mine"]


def test_what_its_writer_repeats_counts_once() -> None:
    tail = [frame(1, b"b"), marker(2)]
    assert events_in(read(log_of(frame(0, b"a"), *tail, *tail))) == [b"a", b"b"]
    transport = log_of(frame(0, b"a"), marker(1, 7), frame(0, b"a"), marker(1, 7), frame(1, b"mine"), marker(2))
    assert events_in(read(transport, EventsRange(TOPIC, 1, 2, 6, 1, EPOCH, CHECKPOINT))) == [b"mine"]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([frame(0, b"a"), marker(1), frame(1, b"b")], "offset 2 holds events behind the marker"),
        ([frame(1, b"b"), marker(2)], "event of sequence 0 is missing: offset 0 holds 1 events from 1"),
        ([frame(0, b"a"), frame(2, b"c"), marker(3)], "event of sequence 1 is missing: offset 1 holds"),
        ([frame(0, b"a"), frame(0, b"a", b"b"), marker(2)], "sequence 1 is missing: offset 1 holds 2 events from 0"),
        ([frame(0, b"a"), b"garbage", marker(2)], "events of sequence 1 to 1 are missing before the marker"),
        ([marker(2)], "events of sequence 0 to 1 are missing before the marker"),
        ([frame(0, b"a"), frame(1, b"b")], "the marker of the batch is not among its records"),
        ([frame(0, b"a"), marker(1, checkpoint=9)], "the marker of the batch is not among its records"),
        ([frame(0, b"a"), marker(1, epoch=4)], "the marker of the batch is not among its records"),
        ([frame(0, b"a"), b"garbage"], "the marker of the batch is not among its records"),
    ],
)
def test_a_range_that_is_not_whole_is_an_error(records: list[Record | bytes], message: str) -> None:
    with pytest.raises(SequenceGap, match=rf"{TOPIC}\[1\], offsets 0 to \d+ \(checkpoint 8, epoch 3\).*{message}"):
        read(log_of(*records))


def test_a_frame_that_contradicts_itself_is_an_error() -> None:
    for broken in (
        EventFrame(EPOCH, 0, 0, 2, b"\1\0\0\0", b"a"),
        EventFrame(EPOCH, 0, 0, 1, b"\2\0\0\0", b"a"),
        EventFrame(EPOCH, 0, 0, 2, b"\xff\xff\xff\xff\2\0\0\0", b"a"),
    ):
        with pytest.raises(UnreadableRecord, match="contradict"):
            read(log_of(broken, marker(broken.count)))


def test_a_truncated_log_is_refused_with_the_ways_out() -> None:
    transport = log_of(frame(0, b"a"), frame(1, b"b"), marker(2))
    part = range_of(transport)
    transport.truncate({Partition(TOPIC, 1): 1})
    with pytest.raises(
        JobRefused, match=r"not in the log any more.*offset 0 is wanted.*Use the newest Spark checkpoint"
    ):
        read(transport, part)


def test_a_topic_that_was_made_anew_and_is_shorter_is_refused() -> None:
    with pytest.raises(JobRefused, match="not in the log any more"):
        read(log_of(), EventsRange(TOPIC, 1, 4, 6, 0, EPOCH, CHECKPOINT))


def test_a_log_that_ends_too_early_is_waited_for_until_the_deadline() -> None:
    with pytest.raises(TransportError, match=r"stopped at offset 1: nothing for 0.1 s"):
        read(log_of(frame(0, b"a")), EventsRange(TOPIC, 1, 0, 3, 0, EPOCH, CHECKPOINT), timeout_s=0.1)


def test_many_rows_come_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ROWS_MAX", 4)
    monkeypatch.setattr(reading, "BYTES_MAX", 100)
    events = [b"%d" % i for i in range(11)] + [b"x" * 60, b"y" * 60, b"z"]
    frames = [frame(i, *events[i : i + 2]) for i in range(0, 14, 2)]
    transport = log_of(*frames, marker(14))
    batches = list(read_range(transport, range_of(transport), BINARY, 20.0))
    assert [batch.num_rows for batch in batches] == [4, 4, 4, 2]
    assert [row["sequence"] for batch in batches for row in batch.to_pylist()] == list(range(14))
    assert [row["event"] for batch in batches for row in batch.to_pylist()] == events
    monkeypatch.setattr(reading, "ROWS_MAX", 1000)
    sizes = [batch.num_rows for batch in read_range(transport, range_of(transport), BINARY, 20.0)]
    assert sizes == [14]
    monkeypatch.setattr(reading, "BYTES_MAX", 70)
    sizes = [batch.num_rows for batch in read_range(transport, range_of(transport), BINARY, 20.0)]
    assert sizes == [12, 2]


def test_a_reader_that_is_left_halfway_closes_its_handle() -> None:
    transport = log_of(frame(0, b"a"), marker(1))
    closed: list[bool] = []
    made = transport.reader

    def reader(positions: Any) -> Any:
        found = made(positions)
        found.close = lambda: closed.append(True)  # type: ignore[method-assign]
        return found

    transport.reader = reader  # type: ignore[method-assign]
    rows = read_range(transport, range_of(transport), BINARY, 20.0)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert closed == [True]


@dataclasses.dataclass
class Rule:
    name: str
    limit: int | None
    tags: list[str]


RULES = DataclassCodec(Rule)


def test_events_of_a_dataclass_become_structs() -> None:
    event = event_type(described(RULES))
    sent = [Rule("a", 1, ["x"]), Rule("b", None, [])]
    rows = read(log_of(frame(0, *map(RULES.encode, sent)), marker(2)), event=event)
    assert events_in(rows) == [dataclasses.asdict(rule) for rule in sent]


def test_an_event_that_the_codec_cannot_read_is_named() -> None:
    transport = log_of(
        frame(0, RULES.encode(Rule("a", 1, []))), frame(1, RULES.encode(Rule("b", 1, [])), b"?"), marker(3)
    )
    with pytest.raises(
        UnreadableRecord, match=r"event of sequence 2 at offset 1 of .*expected Avro 'penstock.user.Rule'"
    ):
        read(transport, event=event_type(described(RULES)))


def test_a_partition_travels_to_its_task() -> None:
    part = EventsRange(TOPIC, 1, 4, 6, 0, EPOCH, CHECKPOINT)
    assert pickle.loads(pickle.dumps(part)) == part
