"""The one request that is written by hand, against ports that answer it with anything."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.transport.kafka import KafkaTransport
from penstock.transport.kafka_disk import bytes_on_disk


@contextmanager
def answering(answer: bytes | None) -> Iterator[tuple[str, int]]:
    """A port that answers one request: with ``answer`` behind its length; None: with silence."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1_000)
                if answer is not None:
                    connection.sendall(struct.pack(">i", len(answer)) + answer)
                over.wait(10.0)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[:2]
        over.set()
        thread.join(10.0)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def folder(*topics: tuple[str, list[int]], error: int = 0) -> bytes:
    told = struct.pack(">h", error) + text("/data") + struct.pack(">i", len(topics))
    for name, sizes in topics:
        told += text(name) + struct.pack(">i", len(sizes))
        told += b"".join(struct.pack(">iqq?", index, size, 0, False) for index, size in enumerate(sizes))
    return told


def answer(*folders: bytes) -> bytes:
    return struct.pack(">iii", 0, 0, len(folders)) + b"".join(folders)


def test_sizes_are_added_over_partitions_and_folders() -> None:
    with answering(answer(folder(("a", [1, 2]), ("b", [4])), folder(("a", [8])))) as address:
        assert bytes_on_disk([address], 5.0) == {"": 0, "a": 11, "b": 4}


def test_replicas_count() -> None:
    with answering(answer(folder(("a", [1])))) as one, answering(answer(folder(("a", [2])))) as other:
        assert bytes_on_disk([one, other], 5.0) == {"": 0, "a": 3}


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(answer(), id="nothing-for-this-user"),
        pytest.param(answer(folder(("a", [1]), error=56)), id="a-folder-that-failed"),
        pytest.param(answer(folder(("a", [1])))[:-3], id="cut-off"),
        pytest.param(struct.pack(">iiih", 0, 0, 1, 0) + struct.pack(">h", 999), id="a-text-that-goes-on"),
        pytest.param(b"HTTP", id="something-else"),
    ],
)
def test_what_is_no_answer_is_not_known(said: bytes) -> None:
    with answering(said) as address:
        assert bytes_on_disk([address], 5.0) is None


def test_silence_is_not_known_within_its_time() -> None:
    with answering(None) as address:
        assert bytes_on_disk([address], 0.3) is None


def test_a_broker_behind_authentication_is_not_asked() -> None:
    transport = KafkaTransport("127.0.0.1:1", {"security.protocol": "SASL_SSL"})
    assert transport.topic_bytes(["a"]) is None
