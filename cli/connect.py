"""Which broker a command talks to, and with which client settings. Their values are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ..broker import detached_status, start_detached
from ..client.job_client import JobClient
from ..schemas.errors import JobRefused
from ..schemas.topics import DEFAULT_PREFIX, TopicNames
from ..transport.kafka import KafkaTransport
from ..transport.ports import Transport
from .console import Console
from .exits import NoBrokerKnown, UsageError

CHECK_TIMEOUT_S = 10.0

BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        envvar="PENSTOCK_BROKER",
        metavar="HOST:PORT",
        help="The Kafka broker; without one, the broker that `penstock broker start` started.",
    ),
]
PrefixOption = Annotated[
    str, typer.Option("--prefix", envvar="PENSTOCK_PREFIX", help="What all topics of the jobs begin with.")
]
ClientConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        envvar="PENSTOCK_CLIENT_CONFIG",
        metavar="FILE",
        help="librdkafka client settings (SASL, TLS, ...), one key=value per line.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
LOOPBACK = "127.0.0.1"
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Serve Prometheus metrics, /livez and /readyz on this port (0: a free one).",
    ),
]
MetricsHostOption = Annotated[
    str,
    typer.Option("--metrics-host", metavar="ADDRESS", help="Where --metrics-port listens; 0.0.0.0: on all addresses."),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True)
class Connection:
    """An address and the client settings that go with it."""

    bootstrap: str
    client_settings: dict[str, str] = field(repr=False)

    def transport(self) -> KafkaTransport:
        return KafkaTransport(self.bootstrap, self.client_settings)


def connection(broker: str | None, client_config: Path | None, *, start: Console | None = None) -> Connection:
    """Where to connect to. With ``start``, the detached broker is started where none is named and none runs."""
    settings = {} if client_config is None else read_client_config(client_config)
    in_file = settings.pop("bootstrap.servers", None)
    if broker or in_file:
        return Connection(checked_address(broker or in_file or ""), settings)
    running = detached_status()
    if running is None:
        if start is None:
            raise NoBrokerKnown(
                "no broker: name one with --broker HOST:PORT (or PENSTOCK_BROKER), or start the embedded one with"
                " `penstock broker start`"
            )
        start.say("starting the embedded Kafka broker (penstock broker stop ends it)")
        running = start_detached(progress=start.say)
    return Connection(running.bootstrap, settings)


def checked_address(address: str) -> str:
    for part in address.split(","):
        found = _ADDRESS.fullmatch(part.strip())
        if found is None or not 0 < int(found[2]) < 65536:
            raise UsageError(
                f"--broker {address!r}: {part.strip()!r} is no HOST:PORT (several are separated by commas)"
            )
    return address


def read_client_config(path: Path) -> dict[str, str]:
    """The settings of a key=value file; # begins a comment line. Messages name lines and keys, never values."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--client-config {path} cannot be read: {why}") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--client-config {path}, line {number}: key=value is expected")
        settings[key.strip()] = value.strip()
    return settings


@contextmanager
def connected(broker: str | None, client_config: Path | None) -> Iterator[KafkaTransport]:
    """A transport whose broker has answered."""
    transport = connection(broker, client_config).transport()
    try:
        transport.check(CHECK_TIMEOUT_S)
        yield transport
    finally:
        transport.close()


@contextmanager
def job_client(
    job: str, broker: str | None, prefix: str, client_config: Path | None, *, left: bool = False
) -> Iterator[JobClient]:
    """A job that exists; with ``left`` also what is left of one that was purged half."""
    TopicNames(prefix, job)
    with connected(broker, client_config) as transport:
        yield existing_job(transport, job, prefix, left=left)


def existing_job(transport: Transport, job: str, prefix: str, *, left: bool = False) -> JobClient:
    """A job that exists, else UsageError; with ``left`` also what is left of one that was purged half."""
    TopicNames(prefix, job)
    client = JobClient(transport, job, prefix)
    try:
        if not (left and client.leftovers()):
            client.require()
    except JobRefused as error:
        raise UsageError(str(error)) from None
    return client


__all__ = [
    "DEFAULT_PREFIX",
    "Connection",
    "connected",
    "connection",
    "existing_job",
    "job_client",
    "read_client_config",
]
