"""What an audit reads, and of whom: jobs in memory that run, have run, or never were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from penstock import Job
from penstock.audit import Kind, audit
from penstock.audit.report import FINDINGS_MAX, TOLD_MAX, Place, Report
from penstock.client.job_client import JobClient
from penstock.coordinator.protocol.retention import truncation
from penstock.schemas.errors import JobRefused, NotAuthorized, TransportError
from penstock.schemas.settings import Restore
from penstock.testing import Faults
from penstock.transport import MemoryBroker, MemoryTransport, Partition
from penstock.transport.ports import Inspection, LogRecord, TopicInfo
from tests.coordinator.jobs import Plan, make_job
from tests.coordinator.jobs import run as run_plan
from tests.coordinator.jobs import wait_checkpoint as wait_plan_checkpoint
from tests.testing.jobs import Course, counting_job, ends_exactly, run, wait_checkpoint


def test_a_job_that_has_run_is_healthy_and_everything_is_counted() -> None:
    transport, course = MemoryTransport(MemoryBroker()), Course()
    job = counting_job(course, checkpoint={"retained": 3})
    with run(job, transport, Faults()) as running:
        ends_exactly(running, course)
    told: list[tuple[str, int, int]] = []
    report = audit(transport, job.name, job.prefix, progress=lambda *what: told.append(what))
    assert report.healthy, str(report)
    assert report.checked["completed checkpoints"] > 0
    assert report.checked["acks of completed checkpoints"] > 0
    assert {partition for partition, _, _ in told} >= {f"{job.settings.topics.acks}[0]"}
    assert all(done <= of for _, done, of in told)


def test_a_job_that_runs_is_healthy_all_the_while() -> None:
    transport, course = MemoryTransport(MemoryBroker()), Course()
    job = counting_job(course, checkpoint={"retained": 2})
    with run(job, transport, Faults()) as running:
        wait_checkpoint(running, course)
        for _ in range(20):
            report = audit(transport, job.name, job.prefix)
            assert report.healthy, str(report)
        ends_exactly(running, course)


def test_garbage_on_a_topic_that_bears_it_is_void_and_no_damage() -> None:
    transport, course = MemoryTransport(MemoryBroker()), Course()
    job = counting_job(course)
    with run(job, transport, Faults()) as running:
        ends_exactly(running, course)
    writer = transport.writer()
    writer.append(Partition(job.settings.topics.acks, 0), b"garbage")
    writer.append(Partition(job.settings.topics.events("reader"), 0), b"\xc3\x01garbage garbage")
    writer.close()
    report = audit(transport, job.name, job.prefix)
    assert report.healthy, str(report)
    assert report.void["unreadable records"] == 2


def test_a_job_that_goes_back_to_a_savepoint_is_healthy_before_its_next_checkpoint() -> None:
    """The acks topic has been truncated since, below what newer checkpoints had seen executed."""
    transport, plan = MemoryTransport(MemoryBroker()), Plan()
    job = make_job(plan, interval=None)
    acks = Partition(job.settings.topics.acks, 0)
    with run_plan(job, transport) as running:
        plan.wait_gateways(0)
        first, _, last = (running.client.savepoint(timeout_s=20).checkpoint_id for _ in range(3))
        assert running.client.stop(timeout_s=20).accepted
        running.wait(20)
        history = running.client.history()
    floors = truncation(job.settings, history)
    assert floors is not None and floors.acks == history.checkpoints[last].inbox_position
    transport.truncate({acks: floors.acks})
    plan = Plan()
    with run_plan(
        make_job(plan, interval=None), transport, options={"restore": Restore.CHECKPOINT, "restore_checkpoint": first}
    ):
        plan.wait_gateways(0)
        assert JobClient(transport, job.name).history().lineage == [first]
        report = audit(transport, job.name)
        assert report.healthy, str(report)


class Short(MemoryTransport):
    """At first one topic is not there; it is made a moment later, or this user may not see it."""

    lacks, hides = "", False

    def describe_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> Mapping[str, TopicInfo]:
        found = {name: info for name, info in super().describe_topics(names).items() if name != self.lacks}
        self.lacks = self.lacks if self.hides else ""
        return found

    def inspect(self, names: Iterable[str], timeout_s: float = 30.0) -> Inspection:
        asked = list(names)
        hidden = frozenset({self.lacks} & set(asked))
        return super().inspect(set(asked) - hidden)._replace(hidden=hidden)


@pytest.mark.parametrize("hides", [False, True], ids=["made meanwhile", "hidden"])
def test_a_topic_that_is_made_meanwhile_or_hidden_is_no_damage(hides: bool) -> None:
    transport, plan = Short(MemoryBroker()), Plan()
    job = make_job(plan)
    with run_plan(job, transport) as running:
        wait_plan_checkpoint(running, plan)
    transport.lacks, transport.hides = job.settings.topics.events("op"), hides
    report = audit(transport, job.name)
    assert report.healthy, str(report)
    assert report.unjudged["topics that this user may not see"] == hides
    if hides:
        transport.lacks = job.settings.topics.checkpoints
        with pytest.raises(NotAuthorized, match="this user may not see job job"):
            audit(transport, job.name)
        transport.lacks = ""


def test_a_job_that_never_was_is_refused() -> None:
    with pytest.raises(JobRefused, match="no job 'nobody'"):
        audit(MemoryTransport(MemoryBroker()), "nobody")


def test_a_flood_of_findings_is_counted_and_not_kept() -> None:
    report = Report("any")
    for offset in range(FINDINGS_MAX + 5):
        report.damage(Kind.SEQUENCE, Place("topic", 0), offset, "one thing", "another")
    report.take(report.__class__("any", findings=report.findings[:3]))
    assert (len(report.findings), report.more) == (FINDINGS_MAX, 8)
    assert f"and {FINDINGS_MAX - TOLD_MAX + 8} more" in str(report)


class MadeAnew(MemoryTransport):
    """While it is audited the job is purged, and begun again."""

    job: Job | None = None

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        if (job := self.job) is not None:
            self.job = None
            self.delete_topics(self.list_topics(job.settings.topics.root))
            self._run(job.name)
        return super().read_all(partition, timeout_s)

    def _run(self, name: str) -> None:
        plan = Plan()
        with run_plan(make_job(plan, name, interval=None), self) as running:
            plan.wait_gateways(0)
            assert running.client.stop(savepoint=True, timeout_s=20).accepted
            running.wait(20)


def test_a_job_that_is_purged_and_made_anew_while_it_is_audited_is_not_called_damaged() -> None:
    transport, plan = MadeAnew(MemoryBroker()), Plan()
    job = make_job(plan)
    with run_plan(job, transport) as running:
        wait_plan_checkpoint(running, plan)
        running.client.stop(timeout_s=20)
        running.wait(20)
    there = transport.offsets([Partition(job.settings.topics.acks, 0)])
    transport.truncate({partition: at.end for partition, at in there.items()})
    transport.job = job
    with pytest.raises(TransportError, match=r"was recreated while job job was audited.*Audit it once more"):
        audit(transport, job.name)
    assert audit(transport, job.name).healthy
