"""Asks a port whether a Kafka broker answers there, in Kafka's own protocol.

An open port is not enough: the broker listens before its metadata holds the broker itself, and clients that come in
between see a cluster of no brokers. The two requests here are small enough to need no client library.
"""

import socket
import struct
from enum import Enum, auto

from .ports import HOST

_API_VERSIONS, _METADATA = 18, 3
_ANSWER_TIMEOUT_S = 2.0
_ANSWER_BYTES_MAX = 1_000_000


class Answer(Enum):
    """What the port said."""

    NONE = auto()
    """Nothing usable: not there yet, or not Kafka."""
    READY = auto()
    """A broker that is part of its cluster."""
    GUARDED = auto()
    """A broker, which tells no more to a client that has not authenticated."""
    FOREIGN = auto()
    """A broker of another cluster."""


def ask(port: int, cluster_id: str) -> Answer:
    """Ask the port on loopback, within about 4 s, for the cluster of that id."""
    try:
        with socket.create_connection((HOST, port), timeout=_ANSWER_TIMEOUT_S) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            _exchange(connection, _API_VERSIONS, 0, b"")
            try:
                # Version 2 is the first that names the cluster; no topics are asked for.
                metadata = _exchange(connection, _METADATA, 2, struct.pack(">i", 0))
            except (ConnectionError, EOFError):
                return Answer.GUARDED
            brokers, found_id = _parse_metadata(metadata)
    except (OSError, EOFError, ValueError, struct.error, IndexError):
        return Answer.NONE
    if found_id != cluster_id:
        return Answer.FOREIGN
    return Answer.READY if brokers else Answer.NONE


def listens(port: int) -> bool:
    """Whether anything accepts connections there; all that can be seen of a TLS listener without its certificates."""
    try:
        socket.create_connection((HOST, port), timeout=_ANSWER_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _exchange(connection: socket.socket, api: int, version: int, body: bytes) -> bytes:
    # The header: API, version, correlation id, and a client id of length -1, which is none.
    request = struct.pack(">hhih", api, version, api, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (length,) = struct.unpack(">i", _receive(connection, 4))
    if not 4 <= length <= _ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {length} bytes")
    answer = _receive(connection, length)
    if struct.unpack_from(">i", answer)[0] != api:
        raise ValueError("an answer to something else")
    return answer[4:]


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise EOFError
        received += part
    return received


def _parse_metadata(answer: bytes) -> tuple[int, str | None]:
    """The number of brokers and the cluster's id, from a Metadata answer of version 2."""
    (brokers,) = struct.unpack_from(">i", answer)
    offset = 4
    for _ in range(brokers):
        _, offset = _string(answer, offset + 4)  # behind the node id: the host
        _, offset = _string(answer, offset + 4)  # behind the port: the rack
    return brokers, _string(answer, offset)[0]


def _string(answer: bytes, offset: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", answer, offset)
    start = offset + 2
    if length < 0:
        return None, start
    return answer[start : start + length].decode(), start + length
