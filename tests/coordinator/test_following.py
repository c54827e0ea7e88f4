"""Statuses are followed from the topic alone, in their order, whatever else stands there."""

from __future__ import annotations

from penstock.coordinator import following
from penstock.coordinator.client import JobClient
from penstock.schemas.codec import encode
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition
from tests.dashboard.statuses import status

from .jobs import Plan, make_job


def test_a_follower_begins_some_minutes_ago_and_goes_on() -> None:
    transport = MemoryTransport(MemoryBroker())
    client = JobClient(transport, "job")
    transport.create_topics(make_job(Plan()).settings.topic_specs)
    writer, partition = transport.writer(), Partition(client.topics.status, 0)
    for second in range(following.LOOK_BACK + 5):
        writer.append(partition, encode(status(second)))
    writer.append(partition, b"garbage")
    assert writer.flush(5.0)
    with client.follow() as follower:
        assert not follower.caught_up
        found = []
        while not follower.caught_up:
            found += follower.poll(1.0)
        assert found == [status(second) for second in range(6, following.LOOK_BACK + 5)]
        assert follower.poll(0.0) == []
        writer.append(partition, encode(status(999)))
        assert writer.flush(5.0)
        assert follower.poll(5.0) == [status(999)]
        transport.truncate({partition: following.LOOK_BACK})
        writer.append(partition, encode(status(1000)))
        assert follower.poll(5.0) == [status(1000)]
    writer.close(0.0)
