"""A record to each of many partitions in a single request, which the client library cannot send."""

from __future__ import annotations

import socket
import struct
import time

from .raw import DEADLINE_S

_PRODUCE, _VERSION, _ALL = 0, 7, -1
_CASTAGNOLI = 0x82F63B78
_NONE = -1


class OneRequest:
    """A connection to the one broker, without a password, that appends the same record to each partition of a topic."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, value: bytes) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        batch = _batch(value)
        each = b"".join(struct.pack(">ii", n, len(batch)) + batch for n in range(partitions))
        name = topic.encode()
        body = (
            struct.pack(">hhih", _PRODUCE, _VERSION, 0, _NONE)
            + struct.pack(">hhii", _NONE, _ALL, round(1000 * DEADLINE_S), 1)
            + struct.pack(">h", len(name)) + name + struct.pack(">i", partitions) + each
        )  # fmt: skip
        self._request = struct.pack(">i", len(body)) + body

    def send(self) -> None:
        self._socket.sendall(self._request)

    def answered(self) -> None:
        """Reads the broker's answer to one ``send``. Raises RuntimeError if a partition refused the record."""
        (length,) = struct.unpack(">i", self._read(4))
        answer = self._read(length)
        (name,) = struct.unpack_from(">h", answer, 8)
        at = 10 + name
        (partitions,) = struct.unpack_from(">i", answer, at)
        for n in range(partitions):
            index, error = struct.unpack_from(">ih", answer, at + 4 + n * struct.calcsize(">ihqqq"))
            if error:
                raise RuntimeError(f"partition {index} has refused a record: error {error}")

    def close(self) -> None:
        self._socket.close()

    def _read(self, length: int) -> bytes:
        read = b""
        while len(read) < length:
            if not (more := self._socket.recv(length - len(read))):
                raise ConnectionError("the broker has closed the connection")
            read += more
        return read


def _batch(value: bytes) -> bytes:
    """One record without a key, as the broker keeps it."""
    record = b"\0\0\0" + _varint(_NONE) + _varint(len(value)) + value + b"\0"
    now = round(1000 * time.time())
    checked = struct.pack(">hiqqqhii", 0, 0, now, now, _NONE, _NONE, _NONE, 1) + _varint(len(record)) + record
    return struct.pack(">qiibI", 0, 9 + len(checked), _NONE, 2, _crc(checked)) + checked


def _varint(number: int) -> bytes:
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
