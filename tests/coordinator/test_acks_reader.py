"""A range of the acks topic is read again, whatever of it is truncated meanwhile."""

from __future__ import annotations

from penstock.coordinator.acks_reader import read_range
from penstock.schemas.acks import RunStarted
from penstock.schemas.codec import encode
from penstock.schemas.topics import TopicSpec
from penstock.transport import MemoryBroker, MemoryTransport, Partition

ACKS = Partition("acks", 0)
COUNT = 3_000
"""More than one poll gives."""


def test_what_is_truncated_while_a_range_is_read_again_is_left_out() -> None:
    """By a coordinator that has been replaced: nothing of it is needed, and nobody else is at work."""
    transport = MemoryTransport(MemoryBroker())
    transport.create_topics([TopicSpec(ACKS.topic, 1)])
    writer = transport.writer()
    for _ in range(COUNT):
        writer.append(ACKS, encode(RunStarted("run", "here")))
    writer.close()
    reading = read_range(transport, ACKS, 0, COUNT, 5.0)
    offsets = [next(reading)[0]]
    transport.truncate({ACKS: 2_500})
    offsets += [offset for offset, _ in reading]
    assert offsets == [*range(1_000), *range(2_500, COUNT)]
    transport.truncate({ACKS: COUNT})
    assert list(read_range(transport, ACKS, 0, COUNT, 5.0)) == []
