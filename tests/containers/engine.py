"""The container engine, and a Kafka in a container of it."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # its image cannot be had without a registry

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

ROOT = Path(__file__).parents[2]
REQUIRED_VARIABLE = "PENSTOCK_REQUIRE_ENGINE"
IMAGE_VARIABLE = "PENSTOCK_KAFKA_IMAGE"
READY_S = 120
LOOPBACK = "127.0.0.1"


def load_builder() -> ModuleType:
    """docker/build.py, which is a program and in no package."""
    spec = importlib.util.spec_from_file_location("penstock_docker_build", ROOT / "docker" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def require_engine() -> None:
    """Skips where no engine answers; fails there if one is required, as in CI."""
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=60, check=False)
        why = "" if asked.returncode == 0 else (asked.stderr or asked.stdout).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        refuse(
            "no container engine answers `docker info`: install one (docker.io on Debian and Ubuntu) and start it"
            f" (systemctl start docker, or dockerd as root), or name one in DOCKER_HOST ({why.splitlines()[-1]})"
        )


def refuse(why: str) -> NoReturn:
    """Skips the test; fails it where an engine is required."""
    if os.environ.get(REQUIRED_VARIABLE, "") not in ("", "0"):
        pytest.fail(f"{why}; and {REQUIRED_VARIABLE} forbids to skip this", pytrace=False)
    pytest.skip(why)


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind((LOOPBACK, 0))
        port: int = chosen.getsockname()[1]
        return port


class KafkaInContainer:
    """One broker at one address, for clients on this machine and in the network; its container may be replaced.

    For any image that keeps the contract of apache/kafka.
    """

    def __init__(self, image: str, network: Network, alias: str) -> None:
        self.image, self.network, self.alias = image, network, alias
        self.port = free_port()  # known before the start, because the broker tells it to its clients
        self.volume = f"penstock-test-{alias}-{self.port}"
        self.container = self._new()

    @property
    def bootstrap(self) -> str:
        """For clients on this machine."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def bootstrap_inside(self) -> str:
        """For clients in the network."""
        return f"{self.alias}:9094"

    def start(self) -> None:
        self.container.start()

    def pause(self) -> None:
        self.container.get_wrapped_container().pause()

    def unpause(self) -> None:
        self.container.get_wrapped_container().unpause()

    def remove(self) -> None:
        """As with SIGKILL and rm: what it had on its volume stays, since only volumes without a name go with it."""
        self.container.stop(force=True, delete_volume=True)

    def replace(self) -> None:
        """A new container at the same address, on the same volume."""
        self.container = self._new()
        self.start()

    def close(self) -> None:
        client = self.container.get_docker_client().client
        self.container.stop()
        client.volumes.get(self.volume).remove(force=True)
        client.close()

    def _new(self) -> DockerContainer:
        container = DockerContainer(self.image).with_network(self.network).with_network_aliases(self.alias)
        ports: dict[str, Any] = container.ports
        ports["9092/tcp"] = (LOOPBACK, self.port)
        container.with_volume_mapping(self.volume, "/var/lib/kafka/data", "rw")
        for name, value in self._settings().items():
            container.with_env(f"KAFKA_{name}", value)
        return container.waiting_for(LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(READY_S))

    def _settings(self) -> dict[str, str]:
        return {
            "NODE_ID": "1",
            "PROCESS_ROLES": "broker,controller",
            "LISTENERS": "HOST://:9092,INSIDE://:9094,CONTROLLER://:9093",
            "ADVERTISED_LISTENERS": f"HOST://{self.bootstrap},INSIDE://{self.bootstrap_inside}",
            "LISTENER_SECURITY_PROTOCOL_MAP": "HOST:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "INTER_BROKER_LISTENER_NAME": "INSIDE",
            "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
            "LOG_DIRS": "/var/lib/kafka/data",
            "AUTO_CREATE_TOPICS_ENABLE": "false",
            "OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
            "TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "TRANSACTION_STATE_LOG_NUM_PARTITIONS": "1",
            # A broker that was killed is let back in when its old session is over.
            "BROKER_SESSION_TIMEOUT_MS": "1000",
            "BROKER_HEARTBEAT_INTERVAL_MS": "200",
        }
