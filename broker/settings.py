"""The settings of a node: small, quick to start and to come back, and keeping what it is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidProperty
from .ports import HOST

LISTENER = "BROKER"
"""The name of the clients' listener: settings of its own start with `listener.name.broker.`."""

NODE_ID = 1


@dataclass(frozen=True)
class Member:
    """Settings of one node of a cluster."""

    cluster_id: str
    node_id: int
    controller_ports: Mapping[int, int]
    """Of every node, by its id."""


def server_properties(
    topics: Path, port: int, controller_port: int, extra: Mapping[str, str], member: Member | None = None
) -> dict[str, str]:
    """Everything for server.properties; `extra` wins, except over addresses and places.

    Raises InvalidProperty when `extra` has one of those.
    """
    node_id, controllers = (
        (NODE_ID, {NODE_ID: controller_port}) if member is None else (member.node_id, member.controller_ports)
    )
    fixed = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node}@{HOST}:{at}" for node, at in controllers.items()),
        "listeners": f"{LISTENER}://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"{LISTENER}://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": LISTENER,
        "log.dirs": str(topics),
    }
    taken = sorted(({*fixed, "log.dir", "broker.id", "controller.quorum.bootstrap.servers"}) & extra.keys())
    if taken:
        raise InvalidProperty(
            f"the embedded broker sets {', '.join(taken)} itself: leave it out of the extra properties, "
            "and use data_dir and port for the broker's place and address"
        )
    return {**_DEFAULTS, **extra, **fixed}


_DEFAULTS = {
    "listener.security.protocol.map": f"{LISTENER}:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    # One node can hold one copy; one partition is created and loaded faster than 50.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After a SIGKILL the node is let back in when its old session is over: 2.5 s instead of 11.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    # The log cleaner takes 128 MB by default, half of the heap.
    "log.cleaner.dedupe.buffer.size": "2097152",
    # Nothing goes because of its age or size: who wants that says so on the topic.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    # What was truncated is freed half a minute later, not five.
    "log.retention.check.interval.ms": "30000",
    "offsets.retention.minutes": "2147483647",
}


def render(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file. It is pure ASCII, since Java reads Latin-1 there."""
    return "".join(f"{_escape(key, ' =:#!')}={_escape(value, '')}\n" for key, value in properties.items())


def _escape(text: str, special: str) -> str:
    # Java counts in UTF-16 units: two escapes for what lies beyond the first 65,536 characters.
    units = memoryview(text.encode("utf-16-le")).cast("H")
    escaped = "".join(_escape_unit(chr(unit), special) for unit in units)
    # Java skips spaces at the start.
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _escape_unit(character: str, special: str) -> str:
    if character in special + "\\":
        return "\\" + character
    return character if " " <= character <= "~" else f"\\u{ord(character):04x}"
