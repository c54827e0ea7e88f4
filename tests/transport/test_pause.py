"""Contract of Reader.pause, for both transports and through testing's faults (transport/ports.py)."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import PenstockError, PositionUnavailable, TopicMissing
from penstock.testing import Faults, FaultyTransport
from penstock.testing.processes import Process
from penstock.testing.transport import FaultyReader
from penstock.transport import LogRecord, MemoryBroker, MemoryTransport, Partition, Reader, Transport, kafka_reader
from penstock.transport.kafka import KafkaConfig, KafkaTransport
from penstock.transport.kafka_reader import KafkaReader
from penstock.transport.kafka_shared import SharedKafkaTransport

DEADLINE_S = 30.0
MakeTopic = Callable[..., str]
ReadRecords = Callable[[Reader, int], list[LogRecord]]
AppendAll = Callable[[Partition, list[bytes]], None]


@pytest.fixture(
    params=[
        "memory",
        "memory-faulty",
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("kafka-shared", marks=pytest.mark.kafka),
    ]
)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Also through the wrapper that tests put around each."""
    made: Transport
    if request.param.startswith("memory"):
        made = MemoryTransport(MemoryBroker())
    else:
        broker: EmbeddedBroker = request.getfixturevalue("kafka_broker")
        made = (SharedKafkaTransport if request.param == "kafka-shared" else KafkaTransport)(broker.bootstrap)
    yield FaultyTransport(made) if request.param.endswith("faulty") else made
    made.close()


@pytest.fixture
def two(make_topic: MakeTopic) -> tuple[Partition, Partition]:
    topic = make_topic(2)
    return Partition(topic, 0), Partition(topic, 1)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def offsets(records: list[LogRecord], partition: Partition) -> list[int]:
    return [record.offset for record in records if record.partition == partition]


def raised(reader: Reader, error: type[PenstockError] = PositionUnavailable) -> Any:
    """What a poll raises; fails when nothing comes in time, or a record."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        try:
            assert reader.poll(0.5) == []
        except error as caught:
            return caught
    pytest.fail(f"no {error.__name__} came within {DEADLINE_S} s")


def test_nothing_of_a_paused_partition_is_returned_while_others_go_on(
    transport: Transport, two: tuple[Partition, Partition], append_all: AppendAll, read_records: ReadRecords
) -> None:
    paused, other = two
    reader = transport.reader({paused: 0, other: 0})
    append_all(paused, numbered(10))
    assert offsets(read_records(reader, 10), paused) == list(range(10))
    reader.pause(paused)
    for n in range(5):
        append_all(paused, numbered(1_000))
        append_all(other, [b"x"])
        assert [(record.partition, record.offset) for record in read_records(reader, 1)] == [(other, n)]
    assert reader.poll(0.3) == []
    reader.close()


@pytest.mark.parametrize("offset", [0, 3, 5, 6, 400, 999, 1_000], ids=lambda offset: f"to-{offset}")
def test_a_seek_resumes_exactly_there_and_forgets_what_was_fetched_ahead(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords, offset: int
) -> None:
    append_all(partition, numbered(1_000))
    reader = transport.reader({partition: 0})
    assert offsets(reader.poll(DEADLINE_S, 5), partition)[0] == 0
    reader.pause(partition)
    assert reader.poll(0.3) == []
    reader.seek(partition, offset)
    append_all(partition, [b"last"])
    assert offsets(read_records(reader, 1_001 - offset), partition) == list(range(offset, 1_001))
    reader.close()


def test_pause_and_seek_at_once_again_and_again_read_exactly_from_the_offset(
    transport: Transport, two: tuple[Partition, Partition], append_all: AppendAll
) -> None:
    one, other = two
    append_all(one, numbered(1_000))
    reader = transport.reader({one: 0, other: 0})
    for offset in (0, 700, 3, 3, 999, 0, 500, 499, 998, 1):
        reader.pause(one)
        reader.seek(one, offset)
        first = reader.poll(DEADLINE_S, 2)
        assert offsets(first, one) == list(range(offset, offset + len(first)))
        assert first
    reader.close()


def test_a_pause_before_the_first_poll_and_a_seek_behind_it(
    transport: Transport, two: tuple[Partition, Partition], append_all: AppendAll, read_records: ReadRecords
) -> None:
    paused, other = two
    append_all(paused, numbered(10))
    append_all(other, numbered(1))
    for _ in range(10):
        reader = transport.reader({paused: 0, other: 0})
        reader.pause(paused)
        assert offsets(read_records(reader, 1), other) == [0]
        reader.seek(paused, 8)
        assert offsets(read_records(reader, 2), paused) == [8, 9]
        reader.close()


def test_a_second_pause_changes_nothing(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(10))
    reader = transport.reader({partition: 0})
    for offset in (7, 8):
        reader.pause(partition)
        reader.pause(partition)
        assert reader.poll(0.3) == []
        reader.pause(partition)
        reader.seek(partition, offset)  # one seek ends them all
        assert offsets(read_records(reader, 10 - offset), partition) == list(range(offset, 10))
    reader.close()


def test_a_seek_of_another_partition_leaves_it_paused(
    transport: Transport, two: tuple[Partition, Partition], append_all: AppendAll, read_records: ReadRecords
) -> None:
    paused, other = two
    for partition in two:
        append_all(partition, numbered(20))
    reader = transport.reader({paused: 0, other: 0})
    reader.pause(paused)
    for offset in (15, 0, 19):
        reader.seek(other, offset)
        records = read_records(reader, 20 - offset)
        assert [(record.partition, record.offset) for record in records] == [(other, n) for n in range(offset, 20)]
    assert reader.poll(0.3) == []
    reader.seek(paused, 18)
    assert offsets(read_records(reader, 2), paused) == [18, 19]
    reader.close()


def test_a_pause_survives_that_another_partition_begins_again_after_an_error(
    transport: Transport, two: tuple[Partition, Partition], append_all: AppendAll, read_records: ReadRecords
) -> None:
    """Over Kafka a seek is refused then, and the partition is begun again."""
    paused, lost = two
    for partition in two:
        append_all(partition, numbered(10))
    transport.truncate({lost: 6})
    reader = transport.reader({paused: 0, lost: 2})
    reader.pause(paused)
    assert raised(reader).partition == lost
    reader.seek(lost, 6)
    assert [(r.partition, r.offset) for r in read_records(reader, 4)] == [(lost, offset) for offset in range(6, 10)]
    assert reader.poll(0.3) == []
    reader.seek(paused, 3)
    assert offsets(read_records(reader, 7), paused) == list(range(3, 10))
    reader.close()


def test_every_partition_may_be_paused_and_one_of_them_resumed(
    transport: Transport, two: tuple[Partition, Partition], append_all: AppendAll, read_records: ReadRecords
) -> None:
    for partition in two:
        append_all(partition, numbered(5))
    reader = transport.reader(dict.fromkeys(two, 0))
    for partition in two:
        reader.pause(partition)
    assert reader.poll(0.3) == []
    reader.seek(two[1], 2)
    assert [(r.partition, r.offset) for r in read_records(reader, 3)] == [(two[1], offset) for offset in (2, 3, 4)]
    assert reader.poll(0.3) == []
    reader.close()


def test_a_lost_position_is_silent_while_paused_and_raised_after_a_seek_to_it(
    transport: Transport, two: tuple[Partition, Partition], append_all: AppendAll, read_records: ReadRecords
) -> None:
    lost, other = two
    append_all(lost, numbered(10))
    append_all(other, numbered(1))
    transport.truncate({lost: 6})
    reader = transport.reader({lost: 2, other: 0})
    reader.pause(lost)
    assert offsets(read_records(reader, 1), other) == [0]
    assert reader.poll(0.5) == []
    reader.seek(lost, 3)
    gone = raised(reader)
    assert "offset 3 is wanted, offsets 6 to 10 are available" in str(gone)
    assert gone.partition == lost
    reader.seek(lost, 7)
    assert offsets(read_records(reader, 3), lost) == [7, 8, 9]
    reader.close()


def test_a_position_that_is_truncated_away_during_a_pause_is_nothing_to_raise(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, numbered(10))
    reader = transport.reader({partition: 0})
    assert offsets(reader.poll(DEADLINE_S, 2), partition)[0] == 0
    reader.pause(partition)
    transport.truncate({partition: 9})
    assert reader.poll(0.5) == []
    reader.seek(partition, 9)
    assert offsets(read_records(reader, 1), partition) == [9]
    reader.close()


def test_two_lost_positions_are_both_raised_and_a_pause_silences_its_own(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    topic = make_topic(3)
    partitions = {Partition(topic, index) for index in range(3)}
    for partition in partitions:
        append_all(partition, numbered(10))
        transport.truncate({partition: 6})
    reader = transport.reader(dict.fromkeys(partitions, 2))
    first: Partition = raised(reader).partition
    reader.pause(first)
    second: Partition = raised(reader).partition
    assert second in partitions - {first}
    (third,) = partitions - {first, second}
    reader.pause(third)
    reader.seek(second, 1)
    assert raised(reader).partition == second
    reader.seek(third, 1)
    reader.pause(second)
    assert raised(reader).partition == third
    reader.close()


def test_a_topic_that_is_deleted_while_it_is_paused_is_missing_after_the_seek(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll, read_records: ReadRecords
) -> None:
    paused, other = Partition(make_topic(), 0), Partition(make_topic(), 0)
    append_all(paused, numbered(3))
    reader = transport.reader({paused: 0, other: 0})
    assert len(read_records(reader, 3)) == 3
    reader.pause(paused)
    transport.delete_topics([paused.topic])
    append_all(other, [b"x"])
    assert offsets(read_records(reader, 1), other) == [0]
    assert reader.poll(1.0) == []
    reader.seek(paused, 3)
    assert paused.topic in str(raised(reader, TopicMissing))
    reader.close()


def test_pausing_a_partition_that_is_not_read_is_an_error(transport: Transport, partition: Partition) -> None:
    reader = transport.reader({partition: 0})
    with pytest.raises(ValueError, match="does not read"):
        reader.pause(Partition(partition.topic, 7))
    reader.close()


def test_truncating_above_the_end_names_the_partition(transport: Transport, partition: Partition) -> None:
    with pytest.raises(PositionUnavailable) as caught:
        transport.truncate({partition: 5})
    assert caught.value.partition == partition


def test_a_lost_position_keeps_its_partition_through_pickle() -> None:
    for partition in (None, Partition("penstock.job.data", 3)):
        copy = pickle.loads(pickle.dumps(PositionUnavailable("gone", partition)))
        assert (str(copy), copy.partition) == ("gone", partition)


def test_a_pause_forgets_what_a_fault_holds_back(
    transport: Transport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    faults = Faults()
    lag = faults.lag(process="lagging")
    append_all(partition, numbered(3))
    reader = FaultyTransport(transport, faults, process="lagging").reader({partition: 0})
    assert reader.poll(0.0) == []
    while not lag.caught:
        reader.poll(0.05)
    reader.pause(partition)
    lag.release()
    assert reader.poll(0.3) == []
    reader.seek(partition, 1)
    assert offsets(read_records(reader, 2), partition) == [1, 2]
    reader.close()


# ---- what only Kafka's client does: errors and records wait in a queue, and each error comes once

ONE, OTHER = Partition("penstock.job.data", 0), Partition("penstock.job.data", 1)


class ScriptedMessage:
    def __init__(self, partition: Partition, offset: int, error: int | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.index

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset


class ScriptedConsumer:
    """Has exactly the given messages in its queue, and each partition has offsets 6 to 10."""

    def __init__(self) -> None:
        self.queue: deque[ScriptedMessage] = deque()
        self.assigned: dict[tuple[str, int], int] = {}
        self.sought: list[int] = []
        self.refuses_seeks = False
        self.available: tuple[int, int] | KafkaError | None = (6, 10)

    def consume(self, count: int, timeout: float) -> list[ScriptedMessage]:
        return [self.queue.popleft() for _ in range(min(count, len(self.queue)))]

    def assign(self, positions: list[TopicPartition]) -> None:
        self.assigned = {(p.topic, p.partition): p.offset for p in positions}

    def incremental_assign(self, positions: list[TopicPartition]) -> None:
        for p in positions:
            assert (p.topic, p.partition) not in self.assigned
            self.assigned[p.topic, p.partition] = p.offset

    def incremental_unassign(self, positions: list[TopicPartition]) -> None:
        for p in positions:
            del self.assigned[p.topic, p.partition]

    def seek(self, position: TopicPartition) -> None:
        if self.refuses_seeks:
            raise KafkaException(KafkaError(KafkaError._STATE))
        assert (position.topic, position.partition) in self.assigned
        self.sought.append(position.offset)

    def get_watermark_offsets(self, position: TopicPartition, timeout: float) -> tuple[int, int] | None:
        if isinstance(self.available, KafkaError):
            raise KafkaException(self.available)
        return self.available


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> ScriptedConsumer:
    made = ScriptedConsumer()
    monkeypatch.setattr(kafka_reader, "make_client", lambda *_: made)
    return made


def scripted_reader() -> KafkaReader:
    return KafkaReader(KafkaConfig("127.0.0.1:9"), {ONE: 2, OTHER: 7})


LOST = KafkaError._AUTO_OFFSET_RESET


def test_an_error_that_waits_in_the_queue_is_not_raised_after_a_pause(consumer: ScriptedConsumer) -> None:
    reader = scripted_reader()
    consumer.queue.extend([ScriptedMessage(ONE, 2, LOST), ScriptedMessage(OTHER, 7)])
    reader.pause(ONE)
    assert [(record.partition, record.offset) for record in reader.poll(0.0)] == [(OTHER, 7)]
    assert reader.poll(0.0) == []
    assert list(consumer.assigned) == [OTHER]  # so nothing of it is fetched


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("paused", [False, True])
def test_an_error_that_waits_in_the_queue_is_not_said_of_the_position_of_a_later_seek(
    consumer: ScriptedConsumer, refused: bool, paused: bool
) -> None:
    reader = scripted_reader()
    if paused:
        reader.pause(ONE)
    reader.seek(ONE, 8)
    consumer.queue.extend([ScriptedMessage(ONE, 2, LOST), ScriptedMessage(ONE, 8)])
    consumer.refuses_seeks = refused
    assert [record.offset for record in reader.poll(0.0)] == [8]
    assert reader.poll(0.0) == []
    # The error may have stopped the partition: it is begun once more.
    assert consumer.assigned[ONE] == 8 if refused else consumer.sought[-1] == 8


@pytest.mark.parametrize("code", [LOST, KafkaError.OFFSET_OUT_OF_RANGE])
def test_a_seek_to_a_position_that_is_lost_too_is_raised_by_the_error_before_it(
    consumer: ScriptedConsumer, code: int
) -> None:
    reader = scripted_reader()
    consumer.queue.append(ScriptedMessage(ONE, 2, code))
    reader.seek(ONE, 5)
    with pytest.raises(PositionUnavailable, match="offset 5 is wanted, offsets 6 to 10"):
        reader.poll(0.0)


@pytest.mark.parametrize("answer", [
    None, KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError.LEADER_NOT_AVAILABLE),
])  # fmt: skip
def test_a_position_of_which_nobody_answers_whether_it_is_lost_is_not_given_up(
    consumer: ScriptedConsumer, answer: KafkaError | None
) -> None:
    reader = scripted_reader()
    consumer.available = answer
    consumer.queue.append(ScriptedMessage(ONE, 2, LOST))
    assert reader.poll(0.0) == []
    assert consumer.sought == [2]
    consumer.available = (6, 10)
    consumer.queue.append(ScriptedMessage(ONE, 2, LOST))
    with pytest.raises(PositionUnavailable, match="offset 2 is wanted, offsets 6 to 10"):
        reader.poll(0.0)


def test_a_lost_position_tells_why_nobody_may_ask_what_there_is(consumer: ScriptedConsumer) -> None:
    reader = scripted_reader()
    consumer.available = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer.queue.append(ScriptedMessage(ONE, 2, LOST))
    with pytest.raises(PositionUnavailable, match=r"could not be asked .*TOPIC_AUTHORIZATION_FAILED"):
        reader.poll(0.0)


def test_a_truncation_that_was_seen_is_raised_though_the_offset_exists_again(consumer: ScriptedConsumer) -> None:
    reader = scripted_reader()
    consumer.queue.append(ScriptedMessage(OTHER, 7, KafkaError._LOG_TRUNCATION))
    with pytest.raises(PositionUnavailable, match="offset 7 is wanted"):
        reader.poll(0.0)


@pytest.mark.parametrize("seek", [False, True])
def test_an_error_that_waits_behind_records_is_forgotten_by_a_pause_and_by_a_seek(
    consumer: ScriptedConsumer, seek: bool
) -> None:
    reader = scripted_reader()
    consumer.queue.extend([ScriptedMessage(ONE, 2, LOST), ScriptedMessage(OTHER, 7)])
    assert len(reader.poll(0.0)) == 1
    if seek:
        reader.seek(ONE, 6)
    else:
        reader.pause(ONE)
    assert reader.poll(0.0) == []


def test_a_pause_leaves_another_partitions_error_that_came_behind_its_own(consumer: ScriptedConsumer) -> None:
    reader = KafkaReader(KafkaConfig("127.0.0.1:9"), {ONE: 2, OTHER: 3})
    consumer.queue.extend([ScriptedMessage(ONE, 2, LOST), ScriptedMessage(OTHER, 3, LOST)])
    consumer.queue.appendleft(ScriptedMessage(OTHER, 3))
    assert len(reader.poll(0.0)) == 1
    reader.pause(ONE)
    with pytest.raises(PositionUnavailable) as caught:
        reader.poll(0.0)
    assert caught.value.partition == OTHER
    assert reader.poll(0.0) == []


def test_what_the_client_says_of_a_missing_topic_concerns_only_those_that_are_read(consumer: ScriptedConsumer) -> None:
    reader = scripted_reader()
    reader.pause(ONE)
    reader._events.topic_missing = f"{ONE.topic}: unknown"
    with pytest.raises(TopicMissing):
        reader.poll(0.0)  # OTHER is read
    reader.pause(OTHER)
    reader._events.topic_missing = f"{ONE.topic}: unknown"
    consumer.queue.append(ScriptedMessage(ONE, 0, KafkaError.UNKNOWN_TOPIC_OR_PART))
    assert reader.poll(0.0) == []


def test_a_missing_topic_is_raised_while_one_of_its_partitions_is_read(consumer: ScriptedConsumer) -> None:
    reader = scripted_reader()
    reader.pause(ONE)
    consumer.queue.append(ScriptedMessage(OTHER, 7, KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(TopicMissing, match=OTHER.topic):
        reader.poll(0.0)


def test_a_pause_leaves_another_partitions_error_behind_what_a_fault_holds(consumer: ScriptedConsumer) -> None:
    faults = Faults()
    faults.lag(process="lagging")
    reader = FaultyReader(faults, Process("lagging", faults.changed), scripted_reader())
    consumer.queue.append(ScriptedMessage(OTHER, 7))
    assert reader.poll(0.0) == []
    consumer.queue.append(ScriptedMessage(ONE, 2, LOST))
    assert reader.poll(0.0) == []
    reader.pause(OTHER)
    with pytest.raises(PositionUnavailable) as caught:
        reader.poll(0.0)
    assert caught.value.partition == ONE
    faults.clear()
