"""Statuses are followed from the topic alone, in their order, whatever else stands there."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.client import status_follower
from penstock.client.job_client import JobClient
from penstock.client.status_follower import Heard
from penstock.client.status_log import LOOK_BACK
from penstock.schemas.codec import encode
from penstock.schemas.errors import BrokerUnreachable, TopicMissing, WrittenByNewer
from penstock.schemas.status import JobStatus, PendingStatus
from penstock.transport.memory import MemoryBroker, MemoryReader, MemoryTransport
from penstock.transport.ports import LogRecord, OffsetRange, Partition
from tests.dashboard.statuses import checkpoint, operator, status, subtask

from ..coordinator.jobs import Plan, make_job

SPECS = make_job(Plan()).settings.topic_specs


class Transport(MemoryTransport):
    """Its readers are silent, as Kafka's are, while the broker is away, and where a topic was made anew."""

    silent = away = False

    def offsets(self, partitions: object, timeout_s: float = 30.0) -> Mapping[Partition, OffsetRange]:
        if self.away:
            raise BrokerUnreachable("no broker answers")
        return super().offsets(partitions, timeout_s)  # type: ignore[arg-type]

    def reader(self, positions: Mapping[Partition, int]) -> MemoryReader:
        transport = self

        class Reader(MemoryReader):
            def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
                return [] if transport.silent or transport.away else super().poll(timeout_s, records_max)

        return Reader(self.broker, positions)


@pytest.fixture
def transport() -> Transport:
    made = Transport(MemoryBroker())
    made.create_topics(SPECS)
    return made


@pytest.fixture
def client(transport: Transport) -> JobClient:
    return JobClient(transport, "job")


def tell(transport: Transport, *told: JobStatus | bytes) -> Partition:
    partition = Partition(JobClient(transport, "job").topics.status, 0)
    writer = transport.writer()
    for each in told:
        writer.append(partition, each if isinstance(each, bytes) else encode(each))
    assert writer.flush(5.0)
    writer.close(0.0)
    return partition


def test_a_follower_begins_some_minutes_ago_and_goes_on(transport: Transport, client: JobClient) -> None:
    partition = tell(transport, *(status(second) for second in range(LOOK_BACK + 5)), b"garbage")
    with client.follow() as follower:
        assert not follower.caught_up
        found = []
        while not follower.caught_up:
            found += follower.poll(1.0)
        were_there = [status(second) for second in range(6, LOOK_BACK + 5)]
        assert found == [Heard(each, each.at_ms) for each in were_there]
        assert follower.poll(0.0) == []
        tell(transport, status(999))
        assert [each.status for each in follower.poll(5.0)] == [status(999)]
        transport.truncate({partition: LOOK_BACK})
        tell(transport, status(1000))
        assert [each.status for each in follower.poll(5.0)] == [status(1000)]


def test_what_comes_is_heard_by_the_clock_of_whoever_listens(transport: Transport, client: JobClient) -> None:
    with client.follow() as follower:
        before_ms = int(1000 * time.time())
        tell(transport, status(0))
        (heard,) = follower.poll(5.0)
        assert before_ms <= heard.at_ms <= 1000 * time.time() + 1


@pytest.mark.parametrize("silent", [True, False])
def test_a_topic_that_was_made_anew_is_not_read_on(
    transport: Transport, client: JobClient, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr(status_follower, "ASK_AFTER_S", 0.0)
    tell(transport, *map(status, range(5)))
    with client.follow() as follower:
        assert len(follower.poll(5.0)) == 5
        transport.silent = silent
        transport.delete_topics([client.topics.status])
        transport.create_topics(SPECS)
        tell(transport, status(0))
        with pytest.raises(
            TopicMissing, match="recreated: offset 5 was read, and it ends at 1" if silent else "deleted"
        ):
            follower.poll(0.0)


def test_a_topic_that_was_made_anew_while_nobody_could_look_is_not_read_on(
    transport: Transport, client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine slept meanwhile, and the job of that name now has told as much as the one before."""
    tell(transport, *map(status, range(3)))
    with client.follow() as follower:
        assert len(follower.poll(5.0)) == 3
        transport.silent = True
        transport.delete_topics([client.topics.status])
        transport.create_topics(SPECS)
        tell(transport, *map(status, range(9)))
        asleep_until = time.time() + 3600.0
        monkeypatch.setattr(status_follower.time, "time", lambda: asleep_until)
        for _ in range(2):
            with pytest.raises(TopicMissing, match="recreated: offset 3 was read, and it ends at 9"):
                follower.poll(0.0)
            asleep_until += 60.0


def test_a_broker_that_is_away_is_an_error_and_no_silence(
    transport: Transport, client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_follower, "ASK_AFTER_S", 0.0)
    tell(transport, status(0))
    with client.follow() as follower:
        transport.away = True
        with pytest.raises(BrokerUnreachable):
            follower.poll(0.0)
        transport.away = False
        assert [each.status for each in follower.poll(0.0)] == [status(0)]


def test_a_newer_release_that_tells_the_status_is_an_error_until_another_does(
    transport: Transport, client: JobClient
) -> None:
    newer = encode(status(0))[:2] + bytes(8) + b"a body"
    tell(transport, status(0), newer, newer)
    with client.follow() as follower:
        assert len(follower.poll(0.0)) == 1, "a reply or two of a newer release keep nobody from looking"
        tell(transport, newer)
        for _ in range(2):
            with pytest.raises(
                WrittenByNewer, match=r"the newest records of .*job.status.* written by a newer Penstock"
            ):
                follower.poll(0.0)
        tell(transport, status(9))
        assert [each.status for each in follower.poll(0.0)] == [status(9)]


@pytest.mark.parametrize(
    "changes",
    [
        {"last_duration_s": math.nan},
        {"operators": (operator(subtask(0, silent_s=math.inf)),)},
        {"pending": (PendingStatus(5, False, math.nan, "reader/0"),)},
        {"at_ms": 10**18},
        {"checkpoints": (checkpoint(5, triggered_at_ms=10**18),)},
    ],
)
def test_a_status_with_times_that_are_none_is_passed_over(
    transport: Transport, client: JobClient, changes: dict[str, Any]
) -> None:
    """The dashboard could not show it, nor JSON hold it."""
    tell(transport, status(1), replace(status(2), **changes))
    assert client.status() == status(1)
    with client.follow() as follower:
        assert [each.status for each in follower.poll(1.0)] == [status(1)]
