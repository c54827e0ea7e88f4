"""A produce request as it goes over the wire, which no library writes for the benchmark."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from benchmarks.one_request import OneRequest, _batch, _crc, _varint

PARTITIONS = 3


def test_the_checksum_is_castagnolis() -> None:
    assert _crc(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    ("number", "written"), [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (64, b"\x80\1"), (300, b"\xd8\4")]
)
def test_numbers_are_zigzagged(number: int, written: bytes) -> None:
    assert _varint(number) == written


def test_a_batch_says_how_long_it_is() -> None:
    batch = _batch(bytes(100))
    (length,) = struct.unpack_from(">i", batch, 8)
    assert len(batch) == 12 + length


def test_a_partition_that_refuses_its_record_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=_refuse_the_last, args=(server,))
        answering.start()
        request = OneRequest(f"127.0.0.1:{server.getsockname()[1]}", "topic", PARTITIONS, b"value")
        try:
            request.send()
            with pytest.raises(RuntimeError, match="partition 2 has refused a record: error 3"):
                request.answered()
        finally:
            request.close()
            answering.join(30)


def _refuse_the_last(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        connection.recv(length, socket.MSG_WAITALL)
        each = b"".join(struct.pack(">ihqqq", n, 3 * (n == PARTITIONS - 1), 0, -1, 0) for n in range(PARTITIONS))
        answer = struct.pack(">iih", 0, 1, 5) + b"topic" + struct.pack(">i", PARTITIONS) + each + struct.pack(">i", 0)
        connection.sendall(struct.pack(">i", len(answer)) + answer)
