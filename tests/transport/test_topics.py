"""Contract of the administrative half of a transport, for both transports."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.schemas.access import Operation
from penstock.schemas.errors import PositionUnavailable, TopicMissing
from penstock.schemas.topics import TopicSpec
from penstock.transport import OffsetRange, Partition, Transport

MakeTopic = Callable[..., str]
AppendAll = Callable[[Partition, list[bytes]], None]


def test_check_says_who_answers(transport: Transport) -> None:
    assert "broker" in transport.check(10.0)


def test_a_created_topic_is_described_and_listed(transport: Transport, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    described = transport.describe_topics([topic, topic + ".missing"])
    assert list(described) == [topic]
    assert described[topic].partitions == 3
    assert described[topic].topic_id
    assert transport.list_topics(topic) == [topic]
    assert transport.list_topics(topic + ".") == []


def test_creating_again_keeps_topic_and_records(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    topic = make_topic(2)
    append_all(Partition(topic, 1), [b"x"])
    before = transport.describe_topics([topic])
    transport.create_topics([TopicSpec(topic, 1), TopicSpec(topic + ".beside", 1)])
    assert transport.describe_topics([topic]) == before
    assert [r.value for r in transport.read_all(Partition(topic, 1))] == [b"x"]
    assert transport.list_topics(topic) == [topic, topic + ".beside"]


def test_a_topic_with_too_few_partitions_is_given_more_and_keeps_what_it_holds(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    topic = make_topic(2)
    append_all(Partition(topic, 1), [b"x"])
    before = transport.describe_topics([topic])[topic].topic_id
    transport.create_topics([TopicSpec(topic, 5)])
    described = transport.describe_topics([topic])[topic]
    assert (described.partitions, described.topic_id) == (5, before)
    append_all(Partition(topic, 4), [b"y"])
    assert [r.value for r in transport.read_all(Partition(topic, 1))] == [b"x"]
    assert [r.value for r in transport.read_all(Partition(topic, 4))] == [b"y"]


def test_a_topic_is_never_given_fewer_partitions(transport: Transport, make_topic: MakeTopic) -> None:
    topic = make_topic(5)
    transport.create_topics([TopicSpec(topic, 2)])
    assert transport.describe_topics([topic])[topic].partitions == 5


def test_an_inspection_tells_what_a_topic_is_and_how_it_is_set_up(transport: Transport, make_topic: MakeTopic) -> None:
    topic = make_topic(2, {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    found = transport.inspect([topic, topic + ".missing"])
    assert list(found.topics) == [topic] and not found.hidden
    facts = found.topics[topic]
    assert facts.info == transport.describe_topics([topic])[topic]
    assert facts.settings is not None
    assert (facts.settings["retention.ms"], facts.settings["message.timestamp.type"]) == ("-1", "LogAppendTime")
    assert facts.operations is None or facts.operations == frozenset(Operation)
    assert found.cluster and found.cluster == transport.inspect([]).cluster


def test_a_recreated_topic_is_empty_and_has_another_id(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    topic = make_topic(1)
    partition = Partition(topic, 0)
    append_all(partition, [b"x"])
    before = transport.describe_topics([topic])[topic].topic_id
    first = transport.first_epoch()
    transport.delete_topics([topic, topic + ".missing"])
    assert transport.first_epoch() >= first > 0
    assert transport.describe_topics([topic]) == {}
    transport.create_topics([TopicSpec(topic, 1)])
    assert transport.describe_topics([topic])[topic].topic_id != before
    assert transport.offsets([partition]) == {partition: OffsetRange(0, 0)}


def test_a_writer_goes_on_in_a_recreated_topic(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    """P-4.1.7: no broker fences the writer of events that a frozen coordinator has."""
    topic = make_topic(1)
    partition, frozen = Partition(topic, 0), transport.writer()
    frozen.append(partition, b"before")
    assert frozen.flush(10.0)
    transport.delete_topics([topic])
    transport.create_topics([TopicSpec(topic, 1)])
    append_all(partition, [b"anew"])
    frozen.append(partition, b"after")
    assert frozen.flush(10.0)
    assert [record.value for record in transport.read_all(partition)] == [b"anew", b"after"]
    frozen.close()


def test_offsets_are_those_of_the_first_record_and_behind_the_last(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    topic = make_topic(2)
    one, other = Partition(topic, 0), Partition(topic, 1)
    append_all(one, [b"x"] * 10)
    transport.truncate({one: 4})
    assert transport.offsets([one, other]) == {one: OffsetRange(4, 10), other: OffsetRange(0, 0)}
    assert transport.offsets([]) == {}


def test_a_time_gives_the_first_offset_at_or_behind_it(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    topic = make_topic(2)
    one, other = Partition(topic, 0), Partition(topic, 1)
    append_all(one, [b"a"])
    first = transport.read_all(one)[0].timestamp_ms
    deadline = time.monotonic() + 10
    while transport.read_all(one)[-1].timestamp_ms == first:
        assert time.monotonic() < deadline
        append_all(one, [b"b"])
    records = transport.read_all(one)
    behind = next(r for r in records if r.timestamp_ms > first)
    assert transport.offsets_at({one: 0, other: 0}) == {one: 0, other: 0}
    assert transport.offsets_at({one: first}) == {one: 0}
    assert transport.offsets_at({one: first + 1}) == {one: behind.offset}
    assert transport.offsets_at({one: records[-1].timestamp_ms + 1}) == {one: len(records)}
    transport.truncate({one: behind.offset})
    assert transport.offsets_at({one: 0}) == {one: behind.offset}
    assert transport.offsets_at({}) == {}


def test_the_time_of_a_missing_partition_is_an_error(transport: Transport, make_topic: MakeTopic) -> None:
    with pytest.raises(TopicMissing):
        transport.offsets_at({Partition(make_topic(1) + ".missing", 0): 0})


def test_truncating_again_or_lower_changes_nothing(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    partition = Partition(make_topic(1), 0)
    append_all(partition, [b"x"] * 10)
    transport.truncate({partition: 4})
    transport.truncate({partition: 4})
    transport.truncate({partition: 2})
    transport.truncate({})
    assert transport.offsets([partition]) == {partition: OffsetRange(4, 10)}


def test_truncating_beyond_the_end_is_an_error(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    partition = Partition(make_topic(1), 0)
    append_all(partition, [b"x"] * 3)
    with pytest.raises(PositionUnavailable, match="offset 9") as caught:
        transport.truncate({partition: 9})
    assert str(partition) in str(caught.value)


def test_asking_for_a_missing_topic_is_topic_missing(transport: Transport, make_topic: MakeTopic) -> None:
    missing = Partition(make_topic(1) + ".missing", 0)
    with pytest.raises(TopicMissing, match=missing.topic):
        transport.offsets([missing])
    with pytest.raises(TopicMissing, match=missing.topic):
        transport.truncate({missing: 0})
    with pytest.raises(TopicMissing, match=missing.topic):
        transport.read_all(missing)


def test_timestamps_are_the_present_with_and_without_log_append_time(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    before = time.time_ns() // 1_000_000
    for settings in ({}, {"message.timestamp.type": "LogAppendTime"}):
        partition = Partition(make_topic(1, settings), 0)
        append_all(partition, [b"x"])
        (record,) = transport.read_all(partition)
        assert before <= record.timestamp_ms <= time.time_ns() // 1_000_000


def test_what_a_topic_takes_grows_with_its_records(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    full, empty = make_topic(2), make_topic()
    append_all(Partition(full, 1), [b"x" * 1_000] * 50)
    sizes = transport.topic_bytes([full, empty, full + ".missing"])
    assert sizes is not None
    assert sizes.keys() == {full, empty}
    assert sizes[empty] == 0
    assert 50_000 <= sizes[full] < 70_000
    append_all(Partition(full, 0), [b"x" * 1_000] * 50)
    again = transport.topic_bytes([full])
    assert again is not None
    assert again[full] >= sizes[full] + 50_000
