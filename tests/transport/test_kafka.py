"""What only the Kafka transport has: settings, processes, and a broker that is not there."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.schemas.errors import BrokerUnreachable, ConfigurationError, TransportError
from penstock.schemas.plan import Role
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.topics import TopicSpec
from penstock.transport import Partition
from penstock.transport.kafka import KafkaConfig, KafkaTransport
from penstock.transport.requirements import require, require_visible

pytestmark = pytest.mark.kafka

SECRET = "hunter2-hunter2"


def nobody_listens_here() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def in_a_fork(action: Callable[[], str]) -> str:
    """What ``action`` returns, or the error it raises, in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = action()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return answer


def test_no_broker_is_an_error_that_names_the_address_within_the_deadline() -> None:
    address = nobody_listens_here()
    transport = KafkaTransport(address)
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=address):
        transport.check(1.0)
    with pytest.raises(BrokerUnreachable, match=address):
        transport.create_topics([TopicSpec("penstock.x.y", 1)], timeout_s=1.0)
    with pytest.raises(BrokerUnreachable, match=address):
        transport.claim_log("penstock.x.y", "x", timeout_s=1.0)
    with pytest.raises(BrokerUnreachable, match=address):
        transport.read_all(Partition("penstock.x.y", 0), timeout_s=1.0)
    assert time.monotonic() - began < 12.0


def test_a_config_travels_to_another_process_and_makes_the_same_transport() -> None:
    transport = KafkaTransport("127.0.0.1:9", {"client.id": "me"}, append_timeout_s=7.0)
    config = pickle.loads(pickle.dumps(transport.config))
    assert config == transport.config
    assert KafkaTransport.from_config(config).config == transport.config


def test_client_settings_never_show_their_values() -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    address = nobody_listens_here()
    transport = KafkaTransport(address, {**settings, "sasl.password": SECRET})
    assert SECRET not in repr(transport)
    assert SECRET not in repr(transport.config)
    assert "sasl.password" in repr(transport.config)
    with pytest.raises(BrokerUnreachable) as caught:
        transport.check(1.0)
    assert SECRET not in str(caught.value)


def test_a_refused_client_setting_is_named_without_its_value() -> None:
    transport = KafkaTransport("127.0.0.1:9", {"no.such.password": SECRET})
    with pytest.raises(ConfigurationError, match=r"no\.such\.password") as caught:
        transport.check(1.0)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "isolation.level", "group.id", "bootstrap.servers"])
def test_a_client_setting_that_the_guarantees_rest_on_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        KafkaConfig("127.0.0.1:9", {name: "x"})


@pytest.mark.parametrize("limit", ["many", "100", "-1"])
def test_a_useless_record_limit_is_refused(limit: str) -> None:
    with pytest.raises(ConfigurationError, match=r"message\.max\.bytes"):
        KafkaConfig("127.0.0.1:9", {"message.max.bytes": limit})


def test_the_largest_record_follows_the_client_setting(kafka_broker: EmbeddedBroker) -> None:
    transport = KafkaTransport(kafka_broker.bootstrap, {"message.max.bytes": "50000"})
    assert 40_000 < transport.max_record_bytes < 50_000


def test_handles_refuse_to_work_after_a_fork(kafka_broker: EmbeddedBroker) -> None:
    transport = KafkaTransport(kafka_broker.bootstrap)
    topic = "penstock.fork.used-before"
    partition = Partition(topic, 0)
    transport.create_topics([TopicSpec(topic, 1)])
    writer, reader, log = transport.writer(), transport.reader({partition: 0}), transport.claim_log(topic, topic)
    for action in (
        lambda: str(transport.offsets([partition])),
        lambda: str(writer.append(partition, b"x")),
        lambda: str(reader.poll(0.0)),
        lambda: str(log.commit([("a", b"x")])),
    ):
        answer = in_a_fork(action)
        assert answer.startswith("TransportError: ")
        assert "do not survive a fork" in answer
    writer.close()
    reader.close()
    log.close()


def test_a_transport_first_used_after_a_fork_works(kafka_broker: EmbeddedBroker) -> None:
    transport = KafkaTransport(kafka_broker.bootstrap)
    assert "broker" in in_a_fork(lambda: transport.check(20.0))
    assert "broker" in transport.check(20.0)


FORKS_WITH_OPEN_HANDLES = """
import gc, os, sys
from penstock.transport import Partition
from penstock.transport.kafka import KafkaTransport
bootstrap, topic = sys.argv[1:]
partition = Partition(topic, 0)
transport = KafkaTransport(bootstrap)
handles = [transport.reader({partition: 0}), transport.writer(), transport.claim_log(topic, topic)]
handles[0].poll(0.1)
child = os.fork()
if child == 0:
    del transport, handles
    gc.collect()
    sys.exit(7)
answer = os.waitpid(child, 0)[1]
handles[1].append(partition, b"x")
assert handles[1].flush(20)
for handle in handles:
    handle.close()
sys.exit(os.waitstatus_to_exitcode(answer))
"""


def test_a_forked_child_that_drops_inherited_handles_ends_normally(kafka_broker: EmbeddedBroker) -> None:
    topic = "penstock.fork.dropped"
    KafkaTransport(kafka_broker.bootstrap).create_topics([TopicSpec(topic, 1)])
    program = [sys.executable, "-c", FORKS_WITH_OPEN_HANDLES, kafka_broker.bootstrap, topic]
    assert subprocess.run(program, timeout=60, check=False).returncode == 7


def test_a_process_that_closes_nothing_ends_normally(kafka_broker: EmbeddedBroker) -> None:
    topic = "penstock.fork.unclosed"
    KafkaTransport(kafka_broker.bootstrap).create_topics([TopicSpec(topic, 1)])
    unclosed = FORKS_WITH_OPEN_HANDLES.split("child =")[0]
    program = [sys.executable, "-c", unclosed, kafka_broker.bootstrap, topic]
    assert subprocess.run(program, timeout=60, check=False).returncode == 0


ABANDONS_A_TRANSACTION = """
import os, signal, sys
from confluent_kafka import Producer
bootstrap, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "transaction.timeout.ms": 600000})
producer.list_topics(timeout=20)
producer.init_transactions(20)
producer.begin_transaction()
producer.produce(topic, b"committed", b"key", 0)
producer.commit_transaction(20)
producer.begin_transaction()
producer.produce(topic, b"abandoned", b"key", 0)
producer.flush(20)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_owners_open_transaction_does_not_stall_its_successor(kafka_broker: EmbeddedBroker) -> None:
    """Failure matrix: a transaction left open by a killed coordinator."""
    transport = KafkaTransport(kafka_broker.bootstrap)
    topic = "penstock.abandoned.log"
    partition = Partition(topic, 0)
    transport.create_topics([TopicSpec(topic, 1, {"cleanup.policy": "compact"})])
    killed = subprocess.run(
        [sys.executable, "-c", ABANDONS_A_TRANSACTION, kafka_broker.bootstrap, topic], timeout=60, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(TransportError, match=r"transaction that is still open"):
        transport.read_all(partition, timeout_s=1.0)
    owner = transport.claim_log(topic, topic)
    began = time.monotonic()
    assert [record.value for record in transport.read_all(partition)] == [b"committed"]
    assert time.monotonic() - began < 5.0
    owner.commit([("key", b"mine")])
    assert [record.value for record in transport.read_all(partition)] == [b"committed", b"mine"]
    owner.close()


def test_a_broker_that_creates_topics_by_itself_is_given_no_reason_to(tmp_path: Path) -> None:
    """As Kafka does unless it is told otherwise; what it creates so has its own defaults, and deletes by age."""
    settings = JobSettings("job", (OperatorSettings("op", 2),))
    with EmbeddedBroker(tmp_path / "data", extra_properties={"auto.create.topics.enable": "true"}) as broker:
        transport = KafkaTransport(broker.bootstrap)
        require_visible(settings.topics, transport)
        assert transport.inspect([settings.topics.acks]).cluster
        require(settings, transport, [Role.COORDINATOR], 30.0, creates=True)
        assert transport.list_topics("") == sorted(spec.name for spec in settings.topic_specs)
        transport.close()


def test_nobody_brings_back_topics_of_a_purged_job(tmp_path: Path) -> None:
    """A coordinator or a task that outlives the purge writes on, on a broker that creates topics by itself."""
    settings = JobSettings("job", (OperatorSettings("op", 2),))
    acks, log = Partition(settings.topics.acks, 0), settings.topics.checkpoints
    with EmbeddedBroker(tmp_path / "data", extra_properties={"auto.create.topics.enable": "true"}) as broker:
        transport = KafkaTransport.from_config(
            KafkaConfig(broker.bootstrap, append_timeout_s=8.0, commit_timeout_s=8.0)
        )
        transport.create_topics(settings.topic_specs)
        writer, owner = transport.writer(), transport.claim_log(log, log)
        writer.append(acks, b"before", None, lambda *_: None)
        owner.commit([("key", b"before")])
        assert writer.flush(10.0)
        transport.delete_topics([spec.name for spec in settings.topic_specs])
        failed: list[Exception | None] = []
        writer.append(acks, b"behind", None, lambda _, error: failed.append(error))
        with pytest.raises(TransportError):
            owner.commit([("key", b"behind")])
        writer.flush(20.0)
        assert isinstance(failed[0], TransportError)
        assert transport.list_topics("penstock.") == []
        writer.close()
        owner.close()
        transport.close()


def test_a_broker_that_does_not_allow_our_sizes_gets_the_topic_without_them(kafka_broker: EmbeddedBroker) -> None:
    """Managed brokers allow some settings within bounds of their own, and others not at all."""
    transport = KafkaTransport(kafka_broker.bootstrap)
    kept, name = {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}, "penstock.sizes-not-allowed.x"
    transport.create_topics([TopicSpec(name, 2, {**kept, "segment.bytes": "1"}), TopicSpec(name + ".beside", 1, kept)])
    settings = transport.inspect([name]).topics[name].settings or {}
    assert settings.items() >= kept.items()
    assert settings["segment.bytes"] != "1"
    with pytest.raises(TransportError, match=r"sizes-not-allowed.y"):
        transport.create_topics([TopicSpec("penstock.sizes-not-allowed.y", 1, {"retention.ms": "soon"})])
    transport.close()
