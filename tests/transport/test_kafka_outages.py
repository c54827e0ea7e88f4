"""A broker that is away, for a while or for too long (protocol, section 11)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import AppendFailed, Fenced, OutcomeUnknown
from penstock.schemas.topics import TopicSpec
from penstock.transport import LogRecord, Partition, Reader
from penstock.transport.kafka import KafkaTransport

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0
ReadRecords = Callable[[Reader, int], list[LogRecord]]


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka-outages") / "data") as broker:
        yield broker


@pytest.fixture
def partition(own_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Partition:
    topic = f"penstock.outages.{request.node.name[:100].replace('_', '-')}"
    KafkaTransport(own_broker.bootstrap).create_topics([TopicSpec(topic, 1)])
    return Partition(topic, 0)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {DEADLINE_S} s"
        time.sleep(0.01)


def test_records_queued_while_the_broker_is_killed_and_restarted_arrive_once_and_in_order(
    own_broker: EmbeddedBroker, partition: Partition, read_records: ReadRecords
) -> None:
    transport = KafkaTransport(own_broker.bootstrap)
    offsets: list[int | None] = []
    writer, reader = transport.writer(), transport.reader({partition: 0})
    for i in range(1_000):
        writer.append(partition, b"%d" % i, None, lambda offset, error: offsets.append(offset))
    first = read_records(reader, 1)
    own_broker.kill()
    for i in range(1_000, 2_000):
        writer.append(partition, b"%d" % i, None, lambda offset, error: offsets.append(offset))
    assert not writer.flush(0.2)
    while reader.poll(0.2):
        pass  # what it had fetched ahead; then nothing, and no error
    own_broker.start()
    began = time.monotonic()
    assert writer.flush(DEADLINE_S)
    assert time.monotonic() - began < 15.0
    assert offsets == list(range(2_000))
    reader.seek(partition, first[-1].offset + 1)
    records = first + read_records(reader, 2_000 - len(first))
    assert [record.value for record in records] == [b"%d" % i for i in range(2_000)]
    writer.append(partition, b"after")
    assert [record.value for record in read_records(reader, 1)] == [b"after"]
    writer.close()
    reader.close()


def test_a_reader_goes_on_by_itself_after_a_restart(
    own_broker: EmbeddedBroker, partition: Partition, read_records: ReadRecords
) -> None:
    transport = KafkaTransport(own_broker.bootstrap)
    writer, reader = transport.writer(), transport.reader({partition: 0})
    writer.append(partition, b"before")
    assert [record.value for record in read_records(reader, 1)] == [b"before"]
    own_broker.kill()
    assert reader.poll(0.5) == []
    own_broker.start()
    writer.append(partition, b"after")
    assert [record.value for record in read_records(reader, 1)] == [b"after"]
    writer.close()
    reader.close()


def test_after_too_long_an_outage_the_writer_fails_and_leaves_no_hole(
    own_broker: EmbeddedBroker, partition: Partition
) -> None:
    """Protocol, section 6: nothing may follow a record that the broker did not certainly take."""
    transport = KafkaTransport(own_broker.bootstrap, append_timeout_s=1.0)
    outcomes: list[tuple[int | None, Exception | None]] = []
    writer = transport.writer()
    writer.append(partition, b"0", None, lambda offset, error: outcomes.append((offset, error)))
    assert writer.flush(DEADLINE_S)
    own_broker.pause()
    appended = 1
    try:
        failure: AppendFailed | None = None
        end = time.monotonic() + DEADLINE_S
        while failure is None and time.monotonic() < end:
            try:
                writer.append(partition, b"%d" % appended, None, lambda offset, error: outcomes.append((offset, error)))
                appended += 1
                time.sleep(0.01)  # paces the appends; nothing is waited for
            except AppendFailed as error:
                failure = error
        assert "nothing may follow" in str(failure)
        assert "within 1.0 s" in str(failure)
        wait_for(lambda: len(outcomes) == appended, "an outcome for every append")
    finally:
        own_broker.resume()
    assert outcomes[0] == (0, None)
    for offset, error in outcomes[1:]:
        assert offset is None
        assert isinstance(error, AppendFailed)
    successor = transport.writer()
    successor.append(partition, b"successor")
    assert successor.flush(DEADLINE_S)
    successor.close()
    writer.close()
    *before, last = [record.value for record in transport.read_all(partition)]
    assert last == b"successor"
    assert before == [b"%d" % i for i in range(len(before))]


def test_a_full_queue_is_waited_for_and_then_an_error(own_broker: EmbeddedBroker, partition: Partition) -> None:
    transport = KafkaTransport(own_broker.bootstrap, {"queue.buffering.max.messages": "10"}, queue_full_timeout_s=0.5)
    writer = transport.writer()
    for _ in range(1_000):
        writer.append(partition, b"x")  # waits for room again and again
    assert writer.flush(DEADLINE_S)
    own_broker.pause()
    try:
        for _ in range(10):
            writer.append(partition, b"y")
        with pytest.raises(AppendFailed, match="stayed full"):
            writer.append(partition, b"z")
        with pytest.raises(AppendFailed, match="nothing may follow"):
            writer.append(partition, b"z")
    finally:
        own_broker.resume()
    writer.close()
    values = [record.value for record in transport.read_all(partition)]
    assert values[:1_000] == [b"x"] * 1_000
    assert b"z" not in values


def test_closing_gives_every_record_an_outcome(own_broker: EmbeddedBroker, partition: Partition) -> None:
    outcomes: list[tuple[int | None, Exception | None]] = []
    writer = KafkaTransport(own_broker.bootstrap).writer()
    own_broker.pause()
    try:
        for _ in range(10):
            writer.append(partition, b"x", None, lambda offset, error: outcomes.append((offset, error)))
        writer.close(0.2)
    finally:
        own_broker.resume()
    assert [(offset, type(error)) for offset, error in outcomes] == [(None, AppendFailed)] * 10
    assert "closed" in str(outcomes[0][1])


def test_a_commit_without_an_answer_is_unknown_and_ends_the_owner(
    own_broker: EmbeddedBroker, partition: Partition
) -> None:
    """Protocol, section 7.7."""
    transport = KafkaTransport(own_broker.bootstrap, commit_timeout_s=1.0)
    owner = transport.claim_log(partition.topic, partition.topic)
    owner.commit([("a", b"1")])
    own_broker.pause()
    try:
        with pytest.raises(OutcomeUnknown, match="next owner"):
            owner.commit([("a", b"2"), ("b", b"2")])
        with pytest.raises(Fenced):
            owner.commit([("a", b"3")])
        owner.close()
    finally:
        own_broker.resume()
    successor = transport.claim_log(partition.topic, partition.topic)
    values = [record.value for record in transport.read_all(partition)]
    assert values in ([b"1"], [b"1", b"2", b"2"])
    successor.commit([("a", b"4")])
    successor.close()
    assert [record.value for record in transport.read_all(partition)] == [*values, b"4"]


def test_a_commit_outlasts_a_short_outage(own_broker: EmbeddedBroker, partition: Partition) -> None:
    transport = KafkaTransport(own_broker.bootstrap)
    owner = transport.claim_log(partition.topic, partition.topic)
    owner.commit([("a", b"1")])
    own_broker.kill()
    own_broker.start()
    owner.commit([("a", b"2")])
    owner.close()
    assert [record.value for record in transport.read_all(partition)] == [b"1", b"2"]


def test_many_small_records_are_queued_through_an_outage(own_broker: EmbeddedBroker, partition: Partition) -> None:
    """Section 11: more than librdkafka's default of 100,000, which one busy subtask has in ten seconds."""
    writer = KafkaTransport(own_broker.bootstrap).writer()
    failed: list[Exception] = []
    own_broker.pause()
    try:
        for _ in range(150_000):
            writer.append(partition, b"x", None, lambda _, error: failed.append(error) if error else None)
    finally:
        own_broker.resume()
    assert writer.flush(DEADLINE_S)
    assert not failed
    writer.close()
