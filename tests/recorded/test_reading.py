"""A job's log is read in the order of its times, whole, with bounded memory, and what cannot be read is told."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from penstock.recorded import reading, start_position
from penstock.recorded.formatting import events_of, kind_of, line_of, readable
from penstock.recorded.job import RecordedJob
from penstock.recorded.reading import Gone, LogReading, Recorded
from penstock.recorded.selection import Selection, kinds_named
from penstock.schemas.codec import encode
from penstock.schemas.errors import ConfigurationError, JobRefused, PositionUnavailable, TransportError
from penstock.schemas.events import EventFrame, Reset
from penstock.schemas.frames import pack
from penstock.schemas.ids import SubtaskId
from penstock.schemas.topics import TopicSpec
from penstock.transport import MemoryBroker, MemoryTransport, Partition

from .conftest import Ran


@pytest.fixture
def clocked() -> tuple[MemoryTransport, list[Partition]]:
    """Two partitions whose records' times, in tens, take turns."""
    ticks = itertools.count(0, 10)
    transport = MemoryTransport(MemoryBroker(now_ms=lambda: next(ticks)))
    transport.create_topics([TopicSpec("t", 2)])
    return transport, [Partition("t", 0), Partition("t", 1)]


def append(transport: MemoryTransport, partition: Partition, *values: bytes) -> None:
    writer = transport.writer()
    for value in values:
        writer.append(partition, value)
    writer.close()


def said(found: Iterator[Recorded | Gone] | LogReading) -> list[str]:
    return [str(one) if isinstance(one, Gone) else f"{one.partition.index}@{one.offset}" for one in found]


def test_records_of_several_partitions_come_in_the_order_of_their_times(
    clocked: tuple[MemoryTransport, list[Partition]],
) -> None:
    transport, (one, other) = clocked
    for partition in (one, other, other, one, other):
        append(transport, partition, encode(Reset(1, 2)))
    assert said(LogReading(transport, {one: 0, other: 0})) == ["0@0", "1@0", "1@1", "0@1", "1@2"]
    assert said(LogReading(transport, {one: 1, other: 2})) == ["0@1", "1@2"]


def test_a_partition_that_runs_ahead_is_paused_and_loses_nothing(
    clocked: tuple[MemoryTransport, list[Partition]], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, (one, other) = clocked
    append(transport, one, *[b"x" * 100] * 500)
    append(transport, other, *[b"y" * 100] * 500)
    append(transport, one, b"last")
    monkeypatch.setattr(reading, "AHEAD_BYTES_MAX", 1_000)
    held: list[int] = []
    log = LogReading(transport, {one: 0, other: 0})
    found = []
    for record in log:
        found.append(record)
        held.append(sum(lane.bytes for lane in log._lanes.values()))
    assert said(iter(found)) == [f"0@{i}" for i in range(500)] + [f"1@{i}" for i in range(500)] + ["0@500"]
    assert max(held) <= 2 * 1_000 * (100 + 256), "a poll of each, at most"


def test_a_thousand_partitions_are_merged_without_a_look_at_all_for_each_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count()
    transport = MemoryTransport(MemoryBroker(now_ms=lambda: next(ticks)))
    transport.create_topics([TopicSpec("t", 1_000)])
    partitions = [Partition("t", index) for index in range(1_000)]
    writer = transport.writer()
    for number in range(20_000):
        writer.append(partitions[number % 1_000], b"%d" % number)
    writer.close()
    looks, lacks = itertools.count(), reading._Lane.lacks.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(reading._Lane, "lacks", property(lambda lane: (next(looks), lacks(lane))[1]))
    log = LogReading(transport, dict.fromkeys(partitions, 0))
    assert [found.at.value for found in log if isinstance(found, Recorded)] == [b"%d" % n for n in range(20_000)]
    assert next(looks) < 10 * 20_000


def test_what_is_read_ahead_of_many_partitions_is_bounded_for_all_of_them_together(
    clocked: tuple[MemoryTransport, list[Partition]],
) -> None:
    transport, (one, other) = clocked
    assert LogReading(transport, {one: 0, other: 0})._ahead_bytes_max == reading.AHEAD_BYTES_MAX
    transport.create_topics([TopicSpec("many", 10_000)])
    many = dict.fromkeys((Partition("many", index) for index in range(10_000)), 0)
    assert LogReading(transport, many)._ahead_bytes_max * 10_000 <= reading.AHEAD_BYTES_ALL


def test_what_nobody_can_read_is_told_as_such(clocked: tuple[MemoryTransport, list[Partition]]) -> None:
    transport, (one, _) = clocked
    append(transport, one, b"garbage", encode(Reset(1, 2)))
    garbage, reset = list(LogReading(transport, {one: 0}))
    assert isinstance(garbage, Recorded)
    assert isinstance(reset, Recorded)
    assert (garbage.record, reset.record) == (None, Reset(1, 2))
    assert "unreadable" in line_of(garbage)
    assert "foreign record: garbage" in line_of(garbage)


def test_what_is_truncated_while_it_is_read_is_told_and_reading_goes_on(
    clocked: tuple[MemoryTransport, list[Partition]],
) -> None:
    transport, (one, _) = clocked
    append(transport, one, *[encode(Reset(1, 2))] * 5)
    log = LogReading(transport, {one: 1})
    transport.truncate({one: 3})
    assert said(log) == ["offsets 1 to 2 of t[0] have been truncated away", "0@3", "0@4"]


def test_following_goes_on_with_what_is_appended(clocked: tuple[MemoryTransport, list[Partition]]) -> None:
    transport, (one, other) = clocked
    append(transport, one, encode(Reset(1, 2)))
    found = LogReading(transport, {one: 0, other: 0}).read(follow_s=20.0)
    assert said(itertools.islice(found, 1)) == ["0@0"]
    threading.Timer(0.05, append, (transport, other, encode(Reset(1, 3)))).start()
    assert said(itertools.islice(found, 1)) == ["1@0"]
    found.close()


def test_following_ends_when_its_time_is_over(clocked: tuple[MemoryTransport, list[Partition]]) -> None:
    transport, (one, other) = clocked
    assert said(LogReading(transport, {one: 0, other: 0}).read(follow_s=0.05)) == []


def test_a_partition_that_gives_nothing_is_an_error_that_says_where(
    clocked: tuple[MemoryTransport, list[Partition]],
) -> None:
    transport, (one, _) = clocked
    with pytest.raises(TransportError, match=r"t\[0\] gave nothing for 0.05 s at offset 0, and ends at 7"):
        list(LogReading(transport, {one: 0}, {one: 7}, patience_s=0.05))


# ---- a job


def test_the_operators_and_partitions_of_a_job_are_known_from_its_topics(ran: Ran) -> None:
    job = ran.recorded
    assert job.operators == {"op": 2}
    assert job.subtasks("op", 1) == [SubtaskId("op", 1)]
    with pytest.raises(JobRefused, match=r"no operator 'other' on this broker; there is: op"):
        job.subtasks("other")
    with pytest.raises(JobRefused, match=r"no subtask 2: .*subtasks 0 to 1"):
        job.subtasks("op", 2)
    with pytest.raises(JobRefused, match=r"there is: ran"):
        RecordedJob(ran.transport, "never")


def read_events(ran: Ran, begins: start_position.Begins) -> list[bytes]:
    events: list[bytes] = []
    for found in LogReading(ran.transport, begins.offsets):
        assert isinstance(found, Recorded)
        if isinstance(found.record, EventFrame):
            events += events_of(found.record) or []
    return events


def test_a_checkpoint_gives_the_position_that_it_names(ran: Ran) -> None:
    job = ran.recorded
    first, second = ran.checkpoints
    subtask = SubtaskId("op", 0)
    begins = start_position.from_checkpoint(job, job.checkpoint(second), [subtask], acks=True)
    assert read_events(ran, begins) == [b"c0", b"c1", b"c2"]
    operator = job.checkpoint(second).operator("op")
    assert operator is not None
    assert begins.offsets[job.acks] == operator.inbox_position
    older = start_position.from_checkpoint(job, job.checkpoint(first), [subtask], acks=False)
    assert read_events(ran, older)[-6:] == [b"b0", b"b1", b"b2", b"c0", b"c1", b"c2"]


def test_what_has_been_truncated_behind_an_older_checkpoint_is_said(ran: Ran) -> None:
    job = ran.recorded
    first, second = ran.checkpoints
    subtask = SubtaskId("op", 0)
    position = job.checkpoint(second).subtasks[subtask].event_position
    ran.transport.truncate({job.events(subtask): position})
    begins = start_position.from_checkpoint(job, job.checkpoint(first), [subtask], acks=False)
    assert begins.offsets == {job.events(subtask): position}
    assert "have been truncated away" in begins.notes[0]


def test_an_offset_that_is_gone_or_never_was_is_refused_with_what_there_is(ran: Ran) -> None:
    job = ran.recorded
    partition = job.events(SubtaskId("op", 0))
    ran.transport.truncate({partition: 2})
    with pytest.raises(PositionUnavailable, match=r"holds offsets 2 to \d+, and 1 is none of them"):
        start_position.from_offset(job, partition, 1, acks=False)
    with pytest.raises(PositionUnavailable):
        start_position.from_offset(job, partition, 10_000, acks=False)
    assert start_position.from_offset(job, partition, 2, acks=True).offsets.keys() == {partition, job.acks}


def test_times_are_how_long_ago_or_iso() -> None:
    assert start_position.time_ms("10m", 1_000_000) == 400_000
    assert start_position.time_ms("1.5s", 10_000) == 8_500
    assert start_position.time_ms("1970-01-01T00:00:02+00:00", 0) == 2_000
    for wrong in ("yesterday", "10", "10 parsecs", "-5m", ""):
        with pytest.raises(ConfigurationError, match="is no time"):
            start_position.time_ms(wrong, 0)


def test_a_selection_is_an_operators_records_of_some_subtasks_and_kinds(ran: Ran) -> None:
    job = ran.recorded
    begins = start_position.from_the_beginning(job, [job.events(SubtaskId("op", 1)), job.acks])
    found = [one for one in LogReading(ran.transport, begins.offsets) if isinstance(one, Recorded)]
    selection = Selection("op", [1])
    kinds = {kind_of(type(one.record)) for one in found if selection.takes(one)}
    assert {"run-started", "hello", "start", "event-frame", "trigger-checkpoint", "checkpoint-ack"} <= kinds
    assert "coordinator-heartbeat" not in kinds
    assert not any(Selection("other", [1]).takes(one) for one in found if kind_of(type(one.record)) == "hello")
    only = Selection("op", [1], kinds_named(["hello", "control"]))
    assert {kind_of(type(one.record)) for one in found if only.takes(one)} >= {"hello", "start"}
    assert not Selection("op", [1], kinds_named(["events"])).wants_acks
    assert not Selection("op", [1], kinds_named(["acks"])).wants_events
    with pytest.raises(ConfigurationError, match="'helo' is no kind of record; there are the groups"):
        kinds_named(["helo"])


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b'{"a": 1}', '{"a": 1}'),
        ("größe\n".encode(), "größe\\n"),
        (b"\x00\xff", "0x00ff"),
        (b"\x1b[31m", "0x1b5b33316d"),
        (b"", "''"),
        (b"x" * 200, "x" * 80 + "... (200 bytes)"),
    ],
)
def test_a_payload_is_text_where_it_is_and_hexadecimal_else(payload: bytes, shown: str) -> None:
    assert readable(payload) == shown


def test_a_frame_is_one_line_with_its_numbers_and_its_first_events() -> None:
    transport = MemoryTransport(MemoryBroker(now_ms=lambda: 0))
    transport.create_topics([TopicSpec("penstock.job.op.events", 2)])
    frame = EventFrame(3, 52, 10, *pack([b"a", b"b", b"c", b"d"]))
    append(transport, Partition("penstock.job.op.events", 1), encode(frame))
    (found,) = LogReading(transport, {Partition("penstock.job.op.events", 1): 0})
    assert isinstance(found, Recorded)
    where, _, _, subtask, epoch, attempt, kind, sequence, *what = line_of(found).split()
    assert (where, subtask, epoch, attempt, kind, sequence) == ("events/1@0", "1", "3", "52", "event-frame", "10..13")
    assert " ".join(what) == "a | b | c | and 1 more"
