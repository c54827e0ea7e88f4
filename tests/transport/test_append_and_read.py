"""Contract of Reader and Writer, for both transports (transport/ports.py)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from penstock.schemas.errors import AppendFailed, PositionUnavailable, TopicMissing
from penstock.transport import LogRecord, Partition, Reader, Transport

DEADLINE_S = 30.0
MakeTopic = Callable[..., str]
ReadRecords = Callable[[Reader, int], list[LogRecord]]
AppendAll = Callable[[Partition, list[bytes]], None]


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(begin, begin + count)]


def test_records_are_read_in_the_order_of_the_appends_with_consecutive_offsets(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(500))
    reader = transport.reader({partition: 0})
    records = read_records(reader, 500)
    reader.close()
    assert [r.value for r in records] == numbered(500)
    assert [r.offset for r in records] == list(range(500))
    assert {r.partition for r in records} == {partition}


def test_keys_come_back_and_no_key_stays_none(
    transport: Transport, partition: Partition, read_records: ReadRecords
) -> None:
    writer = transport.writer()
    writer.append(partition, b"a", b"key")
    writer.append(partition, b"b")
    writer.append(partition, b"", b"")
    assert writer.flush(DEADLINE_S)
    writer.close()
    reader = transport.reader({partition: 0})
    assert [(r.key, r.value) for r in read_records(reader, 3)] == [(b"key", b"a"), (None, b"b"), (b"", b"")]
    reader.close()


def test_every_append_has_one_outcome_in_the_order_of_the_appends(transport: Transport, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    outcomes: list[tuple[int, int | None, Exception | None]] = []
    writer = transport.writer()
    for i in range(300):
        writer.append(
            Partition(topic, i % 3), b"x", None, lambda offset, error, i=i: outcomes.append((i, offset, error))
        )
    assert writer.flush(DEADLINE_S)
    writer.close()
    assert outcomes == [(i, i // 3, None) for i in range(300)]


def test_an_outcome_comes_though_nobody_appends_or_flushes(transport: Transport, partition: Partition) -> None:
    came = threading.Event()
    writer = transport.writer()
    writer.append(partition, b"x", None, lambda offset, error: came.set())
    assert came.wait(DEADLINE_S)
    writer.close()


def test_an_outcome_may_append_the_next_record(
    transport: Transport, partition: Partition, read_records: ReadRecords
) -> None:
    writer = transport.writer()
    writer.append(partition, b"0", None, lambda offset, error: writer.append(partition, b"1"))
    reader = transport.reader({partition: 0})
    assert [r.value for r in read_records(reader, 2)] == [b"0", b"1"]
    reader.close()
    writer.close()


def test_poll_returns_as_soon_as_there_is_a_record(transport: Transport, partition: Partition) -> None:
    reader = transport.reader({partition: 0})
    assert reader.poll(0.0) == []
    writer = transport.writer()
    seen: list[LogRecord] = []
    began = time.monotonic()
    waiting = threading.Thread(target=lambda: seen.extend(reader.poll(DEADLINE_S)))
    waiting.start()
    writer.append(partition, b"x")
    waiting.join(DEADLINE_S)
    assert [r.value for r in seen] == [b"x"]
    assert time.monotonic() - began < DEADLINE_S / 2
    reader.close()
    writer.close()


def test_poll_returns_no_more_records_than_asked_for(
    transport: Transport, partition: Partition, append_all: AppendAll
) -> None:
    append_all(partition, numbered(50))
    reader = transport.reader({partition: 0})
    values: list[bytes | None] = []
    end = time.monotonic() + DEADLINE_S
    while len(values) < 50 and time.monotonic() < end:
        records = reader.poll(1.0, 7)
        assert len(records) <= 7
        values += [r.value for r in records]
    reader.close()
    assert values == numbered(50)


def test_a_reader_starts_at_its_position(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(10))
    reader = transport.reader({partition: 6})
    assert [r.offset for r in read_records(reader, 4)] == [6, 7, 8, 9]
    reader.close()


def test_seek_goes_back_and_forward_and_forgets_what_was_fetched_ahead(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(1_000))
    reader = transport.reader({partition: 0})
    assert reader.poll(DEADLINE_S, 5)[0].offset == 0
    for offset in (700, 3, 999, 0, 500, 499):
        reader.seek(partition, offset)
        first = reader.poll(DEADLINE_S, 2)
        assert first[0].offset == offset
        assert [r.offset for r in first] == list(range(offset, offset + len(first)))
    reader.close()


def test_seek_before_the_first_poll_wins_over_the_given_position(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(10))
    reader = transport.reader({partition: 0})
    reader.seek(partition, 8)
    assert [r.offset for r in read_records(reader, 2)] == [8, 9]
    reader.close()


def test_seek_moves_one_partition_and_leaves_the_others(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll, read_records: ReadRecords
) -> None:
    topic = make_topic(2)
    one, other = Partition(topic, 0), Partition(topic, 1)
    append_all(one, numbered(20))
    append_all(other, numbered(20))
    reader = transport.reader({one: 0, other: 0})
    read_records(reader, 40)
    reader.seek(one, 15)
    records = read_records(reader, 5)
    assert [(r.partition, r.offset) for r in records] == [(one, offset) for offset in range(15, 20)]
    reader.close()


def test_seeking_a_partition_that_is_not_read_is_an_error(transport: Transport, partition: Partition) -> None:
    reader = transport.reader({partition: 0})
    with pytest.raises(ValueError, match="does not read"):
        reader.seek(Partition(partition.topic, 7), 0)
    reader.close()


def test_a_reader_of_several_partitions_and_topics_gets_all_in_order_per_partition(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll, read_records: ReadRecords
) -> None:
    first, second = make_topic(3), make_topic(1)
    partitions = [Partition(first, 0), Partition(first, 1), Partition(first, 2), Partition(second, 0)]
    for n, partition in enumerate(partitions):
        append_all(partition, numbered(100, begin=1_000 * n))
    reader = transport.reader(dict.fromkeys(partitions, 0))
    records = read_records(reader, 400)
    reader.close()
    for n, partition in enumerate(partitions):
        assert [r.value for r in records if r.partition == partition] == numbered(100, begin=1_000 * n)


def test_several_readers_of_one_partition_each_get_everything(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    readers = [transport.reader({partition: 0}) for _ in range(3)]
    append_all(partition, numbered(100))
    for reader in readers:
        assert [r.value for r in read_records(reader, 100)] == numbered(100)
        reader.close()


def test_concurrent_appends_keep_the_order_of_each_thread(
    transport: Transport, partition: Partition, read_records: ReadRecords
) -> None:
    writer = transport.writer()
    barrier = threading.Barrier(4)

    def append(thread: int) -> None:
        barrier.wait(DEADLINE_S)
        for i in range(500):
            writer.append(partition, b"%d/%d" % (thread, i))

    threads = [threading.Thread(target=append, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert writer.flush(DEADLINE_S)
    writer.close()
    reader = transport.reader({partition: 0})
    records = read_records(reader, 2_000)
    reader.close()
    assert [r.offset for r in records] == list(range(2_000))
    for n in range(4):
        mine = [r.value for r in records if r.value is not None and r.value.startswith(b"%d/" % n)]
        assert mine == [b"%d/%d" % (n, i) for i in range(500)]


def test_a_record_as_large_as_allowed_passes(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, [b"x" * transport.max_record_bytes])
    reader = transport.reader({partition: 0})
    assert len(read_records(reader, 1)[0].value or b"") == transport.max_record_bytes
    reader.close()


def test_a_larger_record_is_refused_with_its_size_and_the_writer_goes_on(
    transport: Transport, partition: Partition, read_records: ReadRecords
) -> None:
    writer = transport.writer()
    with pytest.raises(AppendFailed, match=f"{transport.max_record_bytes + 1} bytes"):
        writer.append(partition, b"x" * (transport.max_record_bytes + 1))
    writer.append(partition, b"small")
    assert writer.flush(DEADLINE_S)
    writer.close()
    reader = transport.reader({partition: 0})
    assert [r.value for r in read_records(reader, 1)] == [b"small"]
    reader.close()


def test_after_a_failed_append_nothing_more_is_taken(transport: Transport, partition: Partition) -> None:
    missing = Partition(partition.topic + ".missing", 0)
    outcomes: list[tuple[int | None, Exception | None]] = []
    failed = threading.Event()

    def on_outcome(offset: int | None, error: Exception | None) -> None:
        outcomes.append((offset, error))
        failed.set()

    writer = transport.writer()
    writer.append(missing, b"x", None, on_outcome)
    assert failed.wait(DEADLINE_S)
    assert len(outcomes) == 1
    assert outcomes[0][0] is None
    assert isinstance(outcomes[0][1], AppendFailed)
    assert missing.topic in str(outcomes[0][1])
    with pytest.raises(AppendFailed, match="earlier append failed"):
        writer.append(partition, b"y")
    writer.close()
    assert transport.read_all(partition) == []


def test_a_closed_writer_takes_nothing(transport: Transport, partition: Partition) -> None:
    writer = transport.writer()
    writer.append(partition, b"x")
    writer.close(DEADLINE_S)
    with pytest.raises(AppendFailed, match="closed"):
        writer.append(partition, b"y")
    assert [r.value for r in transport.read_all(partition)] == [b"x"]


def test_reading_below_what_was_truncated_names_wanted_and_available_offsets(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(10))
    transport.truncate({partition: 6})
    reader = transport.reader({partition: 2})
    with pytest.raises(PositionUnavailable, match=r"offset 2 is wanted, offsets 6 to 10 are available") as caught:
        read_records(reader, 1)
    assert str(partition) in str(caught.value)
    reader.seek(partition, 6)
    assert [r.offset for r in read_records(reader, 4)] == [6, 7, 8, 9]
    reader.close()


def test_reading_beyond_the_end_is_position_unavailable(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(3))
    reader = transport.reader({partition: 9})
    with pytest.raises(PositionUnavailable, match=r"offset 9 is wanted, offsets 0 to 3 are available"):
        read_records(reader, 1)
    reader.close()


def test_a_reader_of_a_missing_topic_or_partition_is_refused(transport: Transport, partition: Partition) -> None:
    with pytest.raises(TopicMissing, match=partition.topic + ".missing"):
        transport.reader({partition: 0, Partition(partition.topic + ".missing", 0): 0})
    with pytest.raises(TopicMissing, match="1 partitions"):
        transport.reader({Partition(partition.topic, 1): 0})


def test_a_reader_notices_that_its_topic_is_gone(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, [b"x"])
    reader = transport.reader({partition: 0})
    read_records(reader, 1)
    transport.delete_topics([partition.topic])
    with pytest.raises(TopicMissing, match=partition.topic):
        read_records(reader, 1)
    reader.close()


def test_a_negative_position_is_an_error_and_not_a_word_for_the_end(transport: Transport, partition: Partition) -> None:
    with pytest.raises(ValueError, match="offset -1"):
        transport.reader({partition: -1})
    with pytest.raises(ValueError, match="offset -1"):
        transport.truncate({partition: -1})
    reader = transport.reader({partition: 0})
    with pytest.raises(ValueError, match="offset -2"):
        reader.seek(partition, -2)
    reader.close()


def test_closing_twice_is_fine(transport: Transport, partition: Partition) -> None:
    for closed in (transport.reader({partition: 0}), transport.writer(), transport.claim_log(partition.topic, "x")):
        closed.close()
        closed.close()
