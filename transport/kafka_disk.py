"""How much room topics take on the brokers' disks: a question that the Kafka client does not ask.

DescribeLogDirs is one small request, written here by hand, over a plain connection. Where clients must encrypt or
authenticate it is not asked, and the answer is "not known".
"""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

_DESCRIBE_LOG_DIRS, _VERSION = 35, 1
_ANSWER_BYTES_MAX = 64 << 20


def is_plain(client_settings: Mapping[str, str]) -> bool:
    """Whether brokers are reached without encryption and authentication."""
    return client_settings.get("security.protocol", "plaintext").lower() == "plaintext"


def bytes_on_disk(brokers: Iterable[tuple[str, int]], timeout_s: float) -> Mapping[str, int] | None:
    """Bytes by topic, over all ``brokers`` (host, port) and so over all replicas; None where one does not tell."""
    end = time.monotonic() + timeout_s
    sizes: Counter[str] = Counter()
    for address in brokers:
        try:
            answer = _ask(address, end)
            told = list(_sizes(answer))
        except (OSError, EOFError, ValueError, struct.error):
            return None
        if not told:  # it has a folder at least; but not for this user
            return None
        for topic, size in told:
            sizes[topic] += size
    return sizes


def _ask(address: tuple[str, int], end: float) -> bytes:
    with socket.create_connection(address, timeout=max(0.05, end - time.monotonic())) as connection:
        # Behind the length: the header with API, version, correlation id and no client id; then: of every topic.
        request = struct.pack(">hhihi", _DESCRIBE_LOG_DIRS, _VERSION, 0, -1, -1)
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _receive(connection, 4, end))
        if not 4 <= length <= _ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {length} bytes")
        return _receive(connection, length, end)


def _receive(connection: socket.socket, count: int, end: float) -> bytes:
    received = bytearray()
    while len(received) < count:
        connection.settimeout(max(0.05, end - time.monotonic()))
        part = connection.recv(min(count - len(received), 1 << 20))
        if not part:
            raise EOFError
        received += part
    return bytes(received)


def _sizes(answer: bytes) -> Iterator[tuple[str, int]]:
    """(topic, bytes) of each partition; ("", 0) for a folder that holds none, so that an answer is not empty."""
    at = 8  # behind correlation id and throttle time
    folders, at = _number(answer, at)
    for _ in range(folders):
        (error,) = struct.unpack_from(">h", answer, at)
        if error:
            raise ValueError(f"a log folder with error {error}")
        _, at = _text(answer, at + 2)
        yield "", 0
        topics, at = _number(answer, at)
        for _ in range(topics):
            topic, at = _text(answer, at)
            partitions, at = _number(answer, at)
            for _ in range(partitions):
                _, size, _, _ = struct.unpack_from(">iqq?", answer, at)  # index, size, lag, whether it is to be moved
                at += 21
                yield topic, size


def _number(answer: bytes, at: int) -> tuple[int, int]:
    (number,) = struct.unpack_from(">i", answer, at)
    return max(0, number), at + 4


def _text(answer: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", answer, at)
    begin = at + 2
    if length < 0 or begin + length > len(answer):
        raise ValueError("a text that goes beyond the answer")
    return answer[begin : begin + length].decode(), begin + length
