"""One consumer and one producer for all readers and writers of a process: what the contract suite does not show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import AppendFailed, PositionUnavailable, TopicMissing
from penstock.transport import LogRecord, Partition, Reader, kafka_writer
from penstock.transport.kafka import KafkaTransport
from penstock.transport.kafka_shared import WAITING_BYTES_MAX, SharedKafkaTransport
from penstock.transport.kafka_writer import LINGER_MS

pytestmark = pytest.mark.kafka

DEADLINE_S = 30.0
BOUNDS = ("queue.buffering.max.kbytes", "queue.buffering.max.messages")
MakeTopic = Callable[..., str]
ReadRecords = Callable[[Reader, int], list[LogRecord]]
AppendAll = Callable[[Partition, list[bytes]], None]


@pytest.fixture
def transport(kafka_broker: EmbeddedBroker) -> Iterator[SharedKafkaTransport]:
    made = SharedKafkaTransport(kafka_broker.bootstrap)
    yield made
    made.close()


@pytest.fixture
def two(make_topic: MakeTopic) -> tuple[Partition, Partition]:
    topic = make_topic(2)
    return Partition(topic, 0), Partition(topic, 1)


def feeders() -> set[threading.Thread]:
    """Those alive; one of a test before this one may be just ending."""
    return {thread for thread in threading.enumerate() if thread.name == "penstock-kafka-feeder"}


def writers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "penstock-kafka-writer"}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        threading.Event().wait(0.01)


def test_many_readers_have_one_consumer_which_ends_with_the_last(
    transport: SharedKafkaTransport, make_topic: MakeTopic, append_all: AppendAll, read_records: ReadRecords
) -> None:
    before, topic = feeders(), make_topic(20)
    partitions = [Partition(topic, n) for n in range(20)]
    readers = [transport.reader({partition: 0}) for partition in partitions]
    assert len(feeders() - before) == 1
    for partition in partitions:
        append_all(partition, [b"%d" % partition.index])
    assert [read_records(reader, 1)[0].value for reader in readers] == [b"%d" % n for n in range(20)]
    for reader in readers:
        reader.close()
    wait_until(lambda: feeders() <= before, "the consumer's thread goes on without a reader")
    again = transport.reader({partitions[0]: 0})
    assert read_records(again, 1)[0].value == b"0"
    again.close()


def test_many_writers_have_one_producer_which_ends_with_the_last(
    transport: SharedKafkaTransport, two: tuple[Partition, Partition]
) -> None:
    before = writers()
    made = [transport.writer() for _ in range(20)]
    assert len(writers() - before) == 1
    for n, writer in enumerate(made):
        writer.append(two[n % 2], b"x")
    for writer in made:
        assert writer.flush(DEADLINE_S)
        writer.close()
    assert writers() <= before
    assert [held.end for held in transport.offsets(two).values()] == [10, 10]


@pytest.mark.parametrize(("kind", "settings", "lingers_ms"), [
    (KafkaTransport, {}, 0), (SharedKafkaTransport, {}, LINGER_MS), (SharedKafkaTransport, {"linger.ms": "3"}, "3"),
])  # fmt: skip
def test_records_of_many_writers_gather_and_their_queue_has_no_bound_but_theirs(
    monkeypatch: pytest.MonkeyPatch,
    kafka_broker: EmbeddedBroker,
    kind: type[KafkaTransport],
    settings: dict[str, str],
    lingers_ms: int | str,
) -> None:
    given, make = [], kafka_writer.make_client

    def noting(*arguments: Any) -> Any:
        given.append(tuple(arguments[2][name] for name in ("linger.ms", *BOUNDS)))
        return make(*arguments)

    monkeypatch.setattr(kafka_writer, "make_client", noting)
    transport = kind(kafka_broker.bootstrap, settings)
    for writer in [transport.writer(), transport.writer()]:
        writer.close()
    transport.close()
    assert {lingers for lingers, *_ in given} == {lingers_ms}
    unbounded = kind is SharedKafkaTransport
    assert all((bound == 2**31 - 1) is unbounded for _, *bounds in given for bound in bounds)


def test_a_partition_may_have_a_second_reader(
    transport: SharedKafkaTransport, partition: Partition, append_all: AppendAll, read_records: ReadRecords
) -> None:
    append_all(partition, [b"a", b"b"])
    first, second = transport.reader({partition: 0}), transport.reader({partition: 1})
    assert [record.value for record in read_records(first, 2)] == [b"a", b"b"]
    assert [record.value for record in read_records(second, 1)] == [b"b"]
    first.close()
    append_all(partition, [b"c"])
    assert [record.value for record in read_records(second, 1)] == [b"c"]
    second.close()


def test_a_reader_that_is_not_emptied_fetches_no_more_and_holds_up_nobody(
    transport: SharedKafkaTransport,
    two: tuple[Partition, Partition],
    append_all: AppendAll,
    read_records: ReadRecords,
) -> None:
    slow, quick = two
    size, count = 100_000, 3 * WAITING_BYTES_MAX // 100_000
    slow_reader, quick_reader = transport.reader({slow: 0}), transport.reader({quick: 0})
    append_all(slow, [bytes([n % 250]) * size for n in range(count)])
    wait_until(lambda: bool(slow_reader._given_back), "the slow one's partition is still being fetched")  # type: ignore[attr-defined]
    waiting = slow_reader._bytes  # type: ignore[attr-defined]
    append_all(quick, [b"quick"])
    assert [record.value for record in read_records(quick_reader, 1)] == [b"quick"]
    assert slow_reader._bytes == waiting < count * size  # type: ignore[attr-defined]
    assert [record.offset for record in read_records(slow_reader, count)] == list(range(count))
    slow_reader.close()
    quick_reader.close()


def test_what_is_lost_of_one_partition_is_told_to_its_reader_alone(
    transport: SharedKafkaTransport,
    two: tuple[Partition, Partition],
    append_all: AppendAll,
    read_records: ReadRecords,
) -> None:
    lost, whole = two
    append_all(lost, [b"a", b"b", b"c"])
    transport.truncate({lost: 2})
    readers = transport.reader({lost: 0}), transport.reader({whole: 0})
    with pytest.raises(PositionUnavailable) as caught:
        read_records(readers[0], 1)
    assert caught.value.partition == lost
    append_all(whole, [b"x"])
    assert [record.value for record in read_records(readers[1], 1)] == [b"x"]
    readers[0].seek(lost, 2)
    assert [record.value for record in read_records(readers[0], 1)] == [b"c"]
    for reader in readers:
        reader.close()


def test_a_topic_that_is_missing_is_told_to_who_asks_for_it_alone(
    transport: SharedKafkaTransport, partition: Partition
) -> None:
    missing = Partition(partition.topic + ".not-there", 0)
    refused: list[Exception] = []
    fine: list[object] = []

    def ask(what: Partition) -> None:
        try:
            fine.append(transport.offsets([what])[what])
        except TopicMissing as error:
            refused.append(error)

    threads = [threading.Thread(target=ask, args=(what,)) for what in [partition, missing] * 10]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (len(fine), len(refused)) == (10, 10)


def test_when_an_append_fails_every_writer_fails_and_new_ones_have_a_new_producer(
    transport: SharedKafkaTransport, partition: Partition
) -> None:
    one, other = transport.writer(), transport.writer()
    other.append(partition, b"stands")
    assert other.flush(DEADLINE_S)
    with pytest.raises(AppendFailed):
        one.append(Partition(partition.topic, 99), b"nowhere")
    for writer in (one, other):
        with pytest.raises(AppendFailed):
            writer.append(partition, b"too late")
        writer.close(0.0)
    anew = transport.writer()
    anew.append(partition, b"stands too")
    assert anew.flush(DEADLINE_S)
    anew.close()
    assert transport.offsets([partition])[partition].end == 2


def test_a_writer_that_is_closed_leaves_the_others_theirs(
    transport: SharedKafkaTransport, partition: Partition
) -> None:
    one, other = transport.writer(), transport.writer()
    outcomes: list[int | None] = []
    one.append(partition, b"a", on_outcome=lambda offset, _: outcomes.append(offset))
    one.close()
    with pytest.raises(AppendFailed, match="closed"):
        one.append(partition, b"b")
    other.append(partition, b"c", on_outcome=lambda offset, _: outcomes.append(offset))
    assert other.flush(DEADLINE_S)
    assert outcomes == [0, 1]
    one.close()
    other.close()
