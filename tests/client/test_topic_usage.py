"""What jobs take of a broker, from the topics alone."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.topic_usage import Cost, jobs_on
from penstock.dashboard.job_list import row_of, state_told
from penstock.schemas.codec import encode
from penstock.schemas.errors import NotAuthorized, TopicMissing
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.topics import TopicSpec
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

from ..dashboard.statuses import status


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport(MemoryBroker())


def create(transport: MemoryTransport, name: str, prefix: str = "penstock", subtasks: int = 3) -> JobSettings:
    settings = JobSettings(name, (OperatorSettings("op", subtasks),), prefix=prefix)
    transport.create_topics(settings.topic_specs)
    return settings


def test_a_job_that_has_never_run_costs_its_topics(transport: MemoryTransport) -> None:
    create(transport, "flights")
    (job,) = jobs_on(transport, "penstock")
    assert (job.prefix, job.job, job.whole, job.status) == ("penstock", "flights", True, None)
    assert job.cost == Cost(topics=4, partitions=6, records=0, bytes=0)


def test_records_are_those_between_begin_and_end(transport: MemoryTransport) -> None:
    settings = create(transport, "flights")
    acks = Partition(settings.topics.acks, 0)
    writer = transport.writer()
    for _ in range(10):
        writer.append(acks, b"12345", b"key")
    transport.truncate({acks: 4})
    (job,) = jobs_on(transport, "penstock")
    assert (job.cost.records, job.cost.bytes) == (6, 6 * 8)


def test_only_those_under_the_prefix_and_none_whose_name_begins_alike(transport: MemoryTransport) -> None:
    for name, prefix in (("one", "pen"), ("two", "penstock"), ("three", "pen")):
        create(transport, name, prefix)
    transport.create_topics([TopicSpec("somebody.elses", 1), TopicSpec("a.b.acks", 1)])
    assert [(j.prefix, j.job) for j in jobs_on(transport, "pen")] == [("pen", "one"), ("pen", "three")]
    everybody = [("pen", "one"), ("pen", "three"), ("penstock", "two")]
    assert [(j.prefix, j.job) for j in jobs_on(transport, None)] == everybody


def test_jobs_are_looked_at_side_by_side(transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of many jobs takes as long as a few looks."""
    for name in ("one", "two"):
        create(transport, name)
    both, offsets = threading.Barrier(2), transport.offsets

    def together(*arguments: Any) -> Any:
        both.wait(30)
        return offsets(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(transport, "offsets", together)
        assert [job.job for job in jobs_on(transport, "penstock")] == ["one", "two"]


def test_a_status_is_as_old_as_it_was_when_it_was_read(transport: MemoryTransport) -> None:
    """A job that runs is not called gone because the list took long."""
    settings = create(transport, "flights")
    told = replace(status(), job="flights", at_ms=round(1000 * time.time()) - 1_000)
    transport.writer().append(Partition(settings.topics.status, 0), encode(told))
    (job,) = jobs_on(transport, "penstock")
    assert state_told(job) == "running"
    late = replace(job, looked_ms=told.at_ms + 1_500)
    assert (row_of(late).state, row_of(late).age_s) == ("running", 1.5)
    gone = replace(job, looked_ms=told.at_ms + 60_000)
    assert state_told(gone) == "gone"


def test_of_a_status_that_may_not_be_read_nobody_says_that_there_is_none(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = create(transport, "flights")
    transport.writer().append(Partition(settings.topics.status, 0), b"whatever it says")

    def refused(*_: object) -> None:
        raise NotAuthorized("this user lacks the right Read")

    monkeypatch.setattr(transport, "reader", refused)
    (job,) = jobs_on(transport, "penstock")
    assert (job.status, state_told(job), job.cost.topics) == (None, "hidden", 4)


def test_what_is_left_of_a_job_is_told_as_that(transport: MemoryTransport) -> None:
    settings = create(transport, "flights")
    transport.delete_topics([settings.topics.checkpoints])
    (job,) = jobs_on(transport, "penstock")
    assert not job.whole
    assert job.cost.topics == 3


def test_a_job_that_is_purged_meanwhile_is_counted_as_far_as_it_is_there(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = create(transport, "flights")
    offsets, gone = transport.offsets, [settings.topics.status]

    def going(partitions: object, timeout_s: float = 30.0) -> object:
        if gone:
            transport.delete_topics([gone.pop()])
            raise TopicMissing("it goes")
        return offsets(partitions, timeout_s)  # type: ignore[arg-type]

    monkeypatch.setattr(transport, "offsets", going)
    (job,) = jobs_on(transport, "penstock")
    assert (job.cost.topics, job.status) == (3, None)
