"""Quotas of a broker, set over Kafka's own protocol: the Python client has no call for it, and no tool is at hand."""

from __future__ import annotations

import socket
import struct

_ALTER_CLIENT_QUOTAS = 49
_TIMEOUT_S = 10.0


def set_quota(bootstrap: str, client_id: str, **limits: float | None) -> None:
    """Limits every client of that id, by Kafka's names: ``producer_byte_rate`` and ``consumer_byte_rate`` (bytes per
    second), ``request_percentage``. None takes a limit away. For a broker without TLS; RuntimeError where it refuses.
    """
    host, _, port = bootstrap.rpartition(":")
    entity = struct.pack(">i", 1) + _text("client-id") + _text(client_id)
    operations = b"".join(
        _text(key) + struct.pack(">d?", 0.0 if value is None else value, value is None) for key, value in limits.items()
    )
    body = struct.pack(">i", 1) + entity + struct.pack(">i", len(limits)) + operations + b"\0"
    request = struct.pack(">hhih", _ALTER_CLIENT_QUOTAS, 0, 1, -1) + body
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
    _, _, entries, error = struct.unpack_from(">iiih", answer)
    if entries != 1 or error != 0:
        raise RuntimeError(f"the broker at {bootstrap} refused a quota for {client_id}: error {error}")


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise RuntimeError("the broker closed the connection: does it speak version 0 of AlterClientQuotas?")
        data += part
    return data
