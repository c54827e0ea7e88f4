"""Jobs on one broker whose names begin alike: whatever becomes of one, the other goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client.job_client import list_jobs
from penstock.schemas.errors import Backpressure, JobRefused
from penstock.schemas.topics import TopicNames, TopicSpec
from penstock.testing.local import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport, Transport
from tests.coordinator.jobs import PATIENCE_S, Plan, make_job, run, wait_checkpoint, wait_recovered

NEIGHBOURS = ["a2", "a-b", "aa"]
"""Of the job ``a``."""


def stopped(running: LocalJob) -> None:
    assert running.client.stop(timeout_s=PATIENCE_S).accepted
    running.wait(PATIENCE_S)


def purged(one: LocalJob, plan: Plan) -> None:
    stopped(one)
    assert all(name.startswith("penstock.a.") for name in one.client.purge())


def crashed(one: LocalJob, plan: Plan) -> None:
    for _ in range(3):
        one.crash_subtask("op", 0)
        one.crash_coordinator()
        one.replace_coordinator()
        wait_recovered(one, plan)


def flooding(one: LocalJob, plan: Plan) -> None:
    plan.wait_gateways(0)
    for n in range(20_000):
        try:
            plan.gateways[0].send_event(b"%d" % n)
        except Backpressure:
            break


def failing(one: LocalJob, plan: Plan) -> None:
    assert plan.coordinator is not None
    plan.coordinator.context.fail_job("told to")
    wait_recovered(one, plan)


def started_over(one: LocalJob, plan: Plan) -> None:
    """A second coordinator takes the job over while the first is at work."""
    one.replace_coordinator()
    wait_recovered(one, plan)


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("happens", [purged, crashed, flooding, failing, started_over])
def test_what_becomes_of_one_leaves_the_other_as_it_was(name: str, happens: Callable[[LocalJob, Plan], None]) -> None:
    transport = MemoryTransport(MemoryBroker())
    ours, theirs = Plan(), Plan()
    with run(make_job(ours, "a"), transport) as one, run(make_job(theirs, name), transport) as other:
        wait_checkpoint(one, ours)
        wait_checkpoint(other, theirs)
        before = transport.describe_topics([spec.name for spec in other.settings.topic_specs])
        happens(one, ours)
        theirs.gateways[0].send_event(b"behind it")
        theirs.wait_handled(b"behind it")
        wait_checkpoint(other, theirs)
        status = other.service.status() if other.service is not None else None
        assert status is not None
        assert (status.epoch, status.failovers_global, status.failovers_region) == (1, 0, 0)
        assert transport.describe_topics(list(before)) == before
        assert theirs.count("reset_to_checkpoint") == _resets_when_it_begins(theirs)
        other.check()


def _resets_when_it_begins(plan: Plan) -> int:
    """How often a coordinator that nobody rolled back is reset: at most when it begins."""
    names = plan.names()
    return names[: names.index("start") + 1].count("reset_to_checkpoint")


def test_jobs_of_one_name_under_two_prefixes_are_two_jobs() -> None:
    transport = MemoryTransport(MemoryBroker())
    plans = {prefix: Plan() for prefix in ("team-a", "team-ab")}
    jobs = {prefix: make_job(plan, "a").renamed("a", prefix=prefix) for prefix, plan in plans.items()}
    with run(jobs["team-a"], transport) as one, run(jobs["team-ab"], transport) as other:
        wait_checkpoint(one, plans["team-a"])
        wait_checkpoint(other, plans["team-ab"])
        purged_names = _purge(one)
        assert all(name.startswith("team-a.") for name in purged_names)
        wait_checkpoint(other, plans["team-ab"])
    assert (list_jobs(transport, "team-a"), list_jobs(transport, "team-ab")) == ([], ["a"])


def _purge(running: LocalJob) -> list[str]:
    stopped(running)
    return running.client.purge()


def test_a_job_whose_topics_lose_records_is_refused_and_its_neighbour_is_not() -> None:
    transport: Transport = MemoryTransport(MemoryBroker())
    acks = TopicNames("penstock", "a").acks
    transport.create_topics([TopicSpec(acks, 1, {"retention.ms": "604800000"})])
    theirs = Plan()
    with run(make_job(theirs, "a2"), transport) as other:
        service = run(make_job(Plan(), "a"), transport, subtasks=False).service
        assert service is not None
        with pytest.raises(JobRefused, match=r"penstock.a.acks: [\s\S]*retention.ms is 604800000 and must be -1"):
            service.start().wait(PATIENCE_S)
        wait_checkpoint(other, theirs)
