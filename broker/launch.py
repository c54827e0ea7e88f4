"""Starts a node's process and waits until Kafka answers; the same for a guarded and for a detached process."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .errors import BrokerStartFailed, BrokerStartTimeout, DataDirInUse, LockTimeout, PortInUse
from .jars import Progress, kafka_jars
from .java import find_java
from .locks import file_lock
from .node import Node
from .ports import HOST, free_port, require_free
from .probe import Answer, ask, listens
from .processes import POLL_S, Process, kill
from .settings import LISTENER

_PORT_TRIES = 5
_PREVIOUS_BROKER_ENDS_S = 10.0

P = TypeVar("P", bound=Process)


@dataclass(frozen=True)
class Launched(Generic[P]):
    """A broker that answers at `port` on loopback."""

    process: P
    port: int


@dataclass(frozen=True)
class Spawn:
    """What a way of starting processes gets: a command, where its output goes, and what it is to inherit."""

    command: Sequence[str]
    output: Path
    lock_descriptor: int
    port: int


def launch(
    node: Node, port: int | None, start: Callable[[Spawn], P], timeout_s: float, progress: Progress | None
) -> Launched[P]:
    """Start the node's process with `start`, and return when Kafka answers.

    `timeout_s` (seconds) counts from when the jars are there. A `port` of None takes free ones.
    Raises any BrokerError but those of stopping; the process is gone then.
    """
    node.create()
    java = find_java()
    jars = kafka_jars(progress)
    deadline = time.monotonic() + timeout_s
    try:
        # The process inherits the lock, and thereby holds it exactly as long as it lives: a broker that is just ending,
        # such as that of a killed parent, is waited for, and no two ever write to the same data.
        with file_lock(node.lock_file, min(timeout_s, _PREVIOUS_BROKER_ENDS_S)) as lock:
            for attempt in range(1, _PORT_TRIES + 1):
                chosen, controller_port = _ports(node, port)
                command = node.command(java, jars, chosen, controller_port, deadline)
                started = time.time()
                process = start(Spawn(command, node.stderr_file, lock, chosen))
                try:
                    _wait_until_ready(node, process, chosen, started, deadline)
                except BrokerStartFailed:
                    taken = _port_that_was_taken(node, started)
                    kill(process)
                    if taken is not None and taken == port:
                        raise PortInUse(port) from None
                    if taken is None or attempt == _PORT_TRIES:
                        raise
                except BaseException:
                    kill(process)
                    raise
                else:
                    return Launched(process, chosen)
    except LockTimeout as error:
        raise DataDirInUse(
            f"another broker works on the data in {node.data_dir}: stop that one, or choose another data folder"
        ) from error
    raise AssertionError("unreachable: the last try returns or raises")


def _ports(node: Node, port: int | None) -> tuple[int, int]:
    if port is not None:
        require_free(port)
    if node.member is not None:
        return free_port() if port is None else port, node.member.controller_ports[node.member.node_id]
    chosen = free_port() if port is None else port
    while (controller_port := free_port()) == chosen:
        pass
    return chosen, controller_port


def _wait_until_ready(node: Node, process: Process, port: int, started: float, deadline: float) -> None:
    cluster_id = node.cluster_id
    mapping = node.extra_properties.get("listener.security.protocol.map", "").split(",")
    behind_tls = f"{LISTENER}:SSL" in mapping or f"{LISTENER}:SASL_SSL" in mapping
    while True:
        if behind_tls:
            ready = listens(port)
        else:
            ready = ask(port, cluster_id) in (Answer.READY, Answer.GUARDED)
        if not process.alive():
            raise BrokerStartFailed(
                f"the broker with data in {node.data_dir} ended while it started; its log says why:\n"
                + node.log_tail(started)
            )
        if ready:
            return
        if time.monotonic() >= deadline:
            raise BrokerStartTimeout(
                f"the broker with data in {node.data_dir} did not answer at {HOST}:{port} in time: allow it more, or "
                f"see what holds it up. The end of its log:\n{node.log_tail(started)}"
            )
        time.sleep(POLL_S)


def _port_that_was_taken(node: Node, started: float) -> int | None:
    """The port that the broker found taken, by its log: one can be taken between our choice and the broker's bind."""
    found = re.search(r"failed to bind to \S*?:(\d+)", node.said(started))
    return int(found[1]) if found else None
