"""A broker that is away, for a while or for too long (protocol, section 11)."""

from __future__ import annotations

import itertools
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import AppendFailed, BrokerUnreachable, Fenced, OutcomeUnknown
from penstock.schemas.topics import TopicSpec
from penstock.transport import LogRecord, Partition, Reader, kafka_admin
from penstock.transport.kafka import KafkaTransport
from tests.rounds import rounds

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0
ReadRecords = Callable[[Reader, int], list[LogRecord]]


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka-outages") / "data") as broker:
        yield broker


@pytest.fixture
def partition(own_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Partition:
    topic = f"penstock.outages.{re.sub('[^a-z0-9]', '-', request.node.name[:100])}"
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
    stands = [record.value for record in transport.read_all(partition)]
    stands.remove(b"successor")  # what the broker had been sent before it stood still may come behind it
    assert stands == [b"%d" % i for i in range(len(stands))]


def test_a_full_queue_is_waited_for_and_then_an_error(own_broker: EmbeddedBroker, partition: Partition) -> None:
    queue_of_10 = {"queue.buffering.max.messages": "10"}
    patient = KafkaTransport(own_broker.bootstrap, queue_of_10, queue_full_timeout_s=DEADLINE_S).writer()
    for _ in range(1_000):
        patient.append(partition, b"x")  # waits for room again and again
    assert patient.flush(DEADLINE_S)
    patient.close()
    transport = KafkaTransport(own_broker.bootstrap, queue_of_10, queue_full_timeout_s=0.5)
    writer = transport.writer()
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


# Topics and offsets: one client asks for as long as a transport lives.


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_transports_that_asked_before_and_during_a_freeze_are_answered_after_it(
    own_broker: EmbeddedBroker, partition: Partition, round_: int
) -> None:
    transports = [KafkaTransport(own_broker.bootstrap) for _ in range(8)]
    for transport in transports:
        transport.offsets([partition])
    thawed = threading.Event()

    def ask(transport: KafkaTransport) -> None:
        asked_after = False
        while not asked_after:  # the last question is one that was asked after the thaw
            asked_after = thawed.is_set()
            transport.list_topics(partition.topic, DEADLINE_S)
            assert partition.topic in transport.describe_topics([partition.topic], DEADLINE_S)
            assert transport.offsets([partition], DEADLINE_S)[partition].end == 0

    with ThreadPoolExecutor(len(transports)) as threads:
        own_broker.pause()
        try:
            questions = [threads.submit(ask, transport) for transport in transports]
            threading.Event().wait(2.5)  # this is the fault; a second of it has the broker fenced when it thaws
        finally:
            own_broker.resume()
            thawed.set()
        for question in questions:
            question.result()
    for transport in transports:
        transport.close()


def test_a_transport_is_answered_by_a_broker_that_is_fenced_again_and_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """What a thaw does once and by chance: a broker that is alone and fenced tells of topics, and of no broker."""
    often_fenced = {"broker.heartbeat.interval.ms": "1500", "broker.session.timeout.ms": "1000"}
    folder = tmp_path_factory.mktemp("kafka-fenced") / "data"
    with EmbeddedBroker(folder, extra_properties=often_fenced) as broker:
        transport, witness = KafkaTransport(broker.bootstrap), KafkaTransport(broker.bootstrap)
        transport.create_topics([TopicSpec("penstock.outages.fenced", 1)], DEADLINE_S)
        fenced, end = 0, time.monotonic() + DEADLINE_S
        while fenced < 3:
            assert time.monotonic() < end, f"fenced {fenced} times: this test provokes nothing"
            assert transport.describe_topics(["penstock.outages.fenced"], DEADLINE_S)
            fenced += "with 0 broker" in witness.check(DEADLINE_S)
        transport.close()
        witness.close()


class FakeClient:
    """Stands in for the admin's client. Asked for the cluster it answers, says an error, or never answers."""

    def __init__(self, error: int | None, gone: Callable[[], None]) -> None:
        self.error = error
        self.asked = threading.Semaphore(0)
        weakref.finalize(self, gone)

    def list_topics(self, timeout: float) -> Any:
        self.asked.release()
        if self.error is None:
            return SimpleNamespace(cluster_id="fake", brokers={}, topics={})
        if self.error == KafkaError._TRANSPORT:
            threading.Event().wait(timeout)
        raise KafkaException(KafkaError(self.error))

    def describe_topics(self, _names: object, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked.release()
        future: Future[Any] = Future()
        if self.error is None:
            future.set_result(SimpleNamespace(topic_id="id", partitions=[0]))
        return {"topic": future}

    def poll(self, _timeout: float) -> None:
        pass


class FakeClients:
    """What an admin is given to ask, one after the other; the last of ``errors`` holds for all further ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: int | None) -> None:
        self.errors = itertools.chain(errors, itertools.repeat(errors[-1]))
        self.made = 0
        self.may_go = threading.Event()
        self.may_go.set()
        self.gone: list[str] = []  # the threads that freed one
        monkeypatch.setattr(kafka_admin, "make_client", self.make)
        monkeypatch.setattr(kafka_admin, "_ATTEMPT_S", 0.05)

    def make(self, *_arguments: object) -> FakeClient:
        self.made += 1
        return FakeClient(next(self.errors), self.free)

    def free(self) -> None:
        assert self.may_go.wait(DEADLINE_S)
        self.gone.append(threading.current_thread().name)


NEVER = KafkaError._TRANSPORT


def test_a_client_that_never_answers_is_replaced_within_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "_SILENT_S", 0.0)
    clients = FakeClients(monkeypatch, NEVER, None)
    transport = KafkaTransport("127.0.0.1:9")
    assert "fake" in transport.check(DEADLINE_S)
    wait_for(lambda: clients.gone == ["penstock-kafka-admin"], "the end of the silent client, in a thread of its own")
    assert "fake" in transport.check(DEADLINE_S)
    assert clients.made == 2


def test_what_ends_slowly_holds_up_no_question_and_is_at_most_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "_SILENT_S", 0.0)
    clients = FakeClients(monkeypatch, NEVER)
    clients.may_go.clear()
    transport = KafkaTransport("127.0.0.1:9")
    for _ in range(3):
        with pytest.raises(BrokerUnreachable):
            transport.check(0.3)  # several attempts
    assert (clients.made, clients.gone) == (2, [])
    clients.may_go.set()
    wait_for(lambda: len(clients.gone) == 1, "the end of the first client")
    with pytest.raises(BrokerUnreachable):
        transport.check(0.3)
    assert clients.made > 2


def test_short_deadlines_leave_a_client_the_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "_SILENT_S", DEADLINE_S)
    clients = FakeClients(monkeypatch, NEVER)
    transport = KafkaTransport("127.0.0.1:9")
    for _ in range(5):
        with pytest.raises(BrokerUnreachable):
            transport.check(0.1)
    assert clients.made == 1


def test_each_client_in_a_row_that_never_answers_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = FakeClients(monkeypatch, NEVER, NEVER, None)
    monkeypatch.setattr(kafka_admin, "_SILENT_S", 0.1)
    admin = KafkaTransport("127.0.0.1:9")._admin
    assert "fake" in admin.check(DEADLINE_S)
    assert clients.made == 3
    assert admin._silent_max_s == 0.1  # since one has answered
    clients = FakeClients(monkeypatch, NEVER)
    admin = KafkaTransport("127.0.0.1:9")._admin
    with pytest.raises(BrokerUnreachable):
        admin.check(1.0)
    assert admin._generation > 0
    assert admin._silent_max_s == pytest.approx(0.1 * 2**admin._generation)


def test_questions_of_several_threads_replace_a_silent_client_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "_SILENT_S", 0.0)
    clients = FakeClients(monkeypatch, NEVER, None)
    transport = KafkaTransport("127.0.0.1:9")
    with ThreadPoolExecutor(8) as threads:
        checks = [threads.submit(transport.check, DEADLINE_S) for _ in range(4)]
        described = [threads.submit(transport.describe_topics, ["topic"], DEADLINE_S) for _ in range(4)]
        assert all("fake" in check.result() for check in checks)
        assert all("topic" in found.result() for found in described)
    assert clients.made == 2
    wait_for(lambda: len(clients.gone) == 1, "the end of the silent client")


@pytest.mark.parametrize("code", [KafkaError._DESTROY, KafkaError._DESTROY_BROKER, KafkaError._PARTIAL])
def test_what_says_nothing_of_the_question_is_asked_again(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The client has been replaced under way; a new cluster's only broker is fenced."""
    FakeClients(monkeypatch, code)
    transport = KafkaTransport("127.0.0.1:9")
    client: Any = transport._admin._client()
    with ThreadPoolExecutor(1) as threads:
        check = threads.submit(transport.check, DEADLINE_S)
        for _ in range(3):
            assert client.asked.acquire(timeout=DEADLINE_S)
        client.error = None
        assert "fake" in check.result()
