"""EmbeddedBroker with a real Kafka."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import (
    BrokerStartFailed,
    BrokerStartTimeout,
    BrokerStateError,
    DataDirInUse,
    EmbeddedBroker,
    PortInUse,
    launch,
)
from penstock.broker.ports import free_port
from penstock.broker.processes import identity

pytestmark = pytest.mark.kafka


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_records_go_in_and_out_and_the_log_is_written(tmp_path: Path, client: type[Any]) -> None:
    with EmbeddedBroker(tmp_path / "with é and space") as broker:
        pid = broker.pid
        kafka = client(broker.bootstrap)
        kafka.create_topic("t")
        kafka.produce("t", b"one", b"two")
        assert kafka.consume("t", 2) == [b"one", b"two"]
        assert "Kafka Server started" in broker.log_file.read_text()
    assert not broker.running
    assert identity(pid) is None


def test_data_and_address_survive_kill_and_stop(tmp_path: Path, client: type[Any]) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        address = broker.bootstrap
        kafka = client(address)
        kafka.create_topic("t")
        kafka.produce("t", b"before")

        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.bootstrap == address
        kafka.produce("t", b"between")
        broker.stop()
        broker.stop()

    with EmbeddedBroker(tmp_path / "data") as another:
        assert client(another.bootstrap).consume("t", 2) == [b"before", b"between"]


def test_a_paused_broker_answers_again_once_resumed(tmp_path: Path, client: type[Any]) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        kafka = client(broker.bootstrap)
        kafka.create_topic("t")
        broker.pause()
        stat = Path(f"/proc/{broker.pid}/stat")
        if stat.exists():
            assert stat.read_text().rpartition(")")[2].split()[0] == "T"
        broker.resume()
        kafka.produce("t", b"after")
        assert kafka.consume("t", 1) == [b"after"]
        broker.pause()
    assert not broker.running, "a paused broker can be stopped"


PARENT = """
import sys, time
from penstock.broker import EmbeddedBroker
broker = EmbeddedBroker(sys.argv[1]).start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_the_broker_dies_with_its_sigkilled_parent_and_its_data_can_be_used_at_once(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    data = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert identity(pid) is not None
        parent.kill()
        # No wait in between: the next broker itself waits for the dying one to let go of the data.
        with EmbeddedBroker(data) as broker:
            assert broker.running
            eventually(lambda: identity(pid) is None, "the broker of the killed parent is gone")


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PREVIOUS_BROKER_ENDS_S", 0.2)
    with EmbeddedBroker(tmp_path / "data") as broker:
        with pytest.raises(DataDirInUse, match=str(tmp_path)):
            EmbeddedBroker(tmp_path / "data").start()
        with pytest.raises(BrokerStateError, match="runs already"):
            broker.start()
        assert broker.running


def test_a_port_that_is_taken_is_named(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(PortInUse, match=str(taken_port)) as caught:
        EmbeddedBroker(tmp_path / "data", port=taken_port).start()
    assert caught.value.port == taken_port


def test_a_port_that_is_taken_after_it_was_found_free_is_named_too(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "require_free", lambda port: None)
    with pytest.raises(PortInUse, match=str(taken_port)):
        EmbeddedBroker(tmp_path / "data", port=taken_port).start()


@pytest.mark.parametrize("position", [0, 1], ids=["clients' port", "controller's port"])
def test_a_chosen_port_that_is_taken_before_kafka_has_it_is_chosen_anew(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    ports = [free_port() for _ in range(4)]
    ports[position] = taken_port
    remaining = iter(ports)
    monkeypatch.setattr(launch, "free_port", lambda: next(remaining))
    with EmbeddedBroker(tmp_path / "data") as broker:
        assert broker.port == ports[2]


def test_an_error_at_start_shows_the_brokers_own_words(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data", extra_properties={"authorizer.class.name": "no.such.Authorizer"})
    with pytest.raises(BrokerStartFailed, match=r"no\.such\.Authorizer") as caught:
        broker.start()
    assert " INFO " not in str(caught.value), "the reason is not buried under what else was logged"
    assert not broker.running


def test_a_broker_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data")
    broker.start()
    broker.stop()
    with pytest.raises(BrokerStartTimeout, match="did not answer"):
        broker.start(timeout_s=0.1)
    assert not broker.running


def test_calls_that_need_a_running_broker_say_so(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data")
    with pytest.raises(BrokerStateError, match="before its first start"):
        _ = broker.bootstrap
    for call in (broker.kill, broker.pause, broker.resume):
        with pytest.raises(BrokerStateError, match="does not run"):
            call()
    broker.stop()


def test_a_forked_child_neither_stops_the_broker_nor_keeps_it(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        child = os.fork()
        if child == 0:
            broker.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert broker.running


def test_a_secured_broker_starts_with_scram_users_and_an_authorizer(tmp_path: Path, client: type[Any]) -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="secret";'
    broker = EmbeddedBroker(
        tmp_path / "data",
        extra_properties={
            "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.broker.scram-sha-512.sasl.jaas.config": jaas,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
        },
        format_arguments=["--add-scram", "SCRAM-SHA-512=[name=admin,password=secret]"],
    )
    with broker:
        secrets = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": "secret",
        }
        kafka = client(broker.bootstrap, **secrets)
        kafka.create_topic("t")
        kafka.produce("t", b"one")
        assert kafka.consume("t", 1) == [b"one"]
