"""Coordinators that stand by, in threads over logs in memory: who is at work, and who follows."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from penstock.client.job_client import JobClient
from penstock.coordinator import acks_reader, standby
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.service import CoordinatorService, instances_of
from penstock.coordinator.standby import StandbyService, Standing
from penstock.schemas.acks import AcksRecord, Command, CommandKind, CoordinatorHeartbeat
from penstock.schemas.checkpoints import JobFinished
from penstock.schemas.codec import MARKER, Record, decode, encode
from penstock.schemas.errors import BrokerUnreachable, JobRefused, TopicMissing
from penstock.schemas.status import BatchOutcome, Ending, JobStatus
from penstock.spark_integration.streaming.planner import Planner
from penstock.testing.faults import Faults
from penstock.testing.local import LocalJob
from penstock.testing.transport import FaultyFencedLog, FaultyTransport
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition, Transport

from .jobs import PATIENCE_S, Plan, make_job, run, wait_until

AFTER_S = 0.5


class Hosts:
    """Hosts of one job's coordinator, each with a plan and a view of the transport of its own."""

    def __init__(self, running: LocalJob) -> None:
        self.running = running
        self.made: list[StandbyService] = []
        self.plans: list[Plan] = []
        self.views: list[FaultyTransport] = []

    def start(self, options: CoordinatorOptions | None = None, **changes: Any) -> int:
        plan, view = Plan(), FaultyTransport(self._inner(), self.running.faults, process=f"host-{len(self.made)}")
        job = make_job(plan, **changes)
        host = StandbyService(
            job.settings,
            job.coordinators,
            view,
            job.restart,
            options or CoordinatorOptions(status_interval_s=0.02),
            takeover_after=AFTER_S,
        )
        self.plans.append(plan)
        self.views.append(view)
        self.made.append(host.start())
        return len(self.made) - 1

    def _inner(self) -> Transport:
        transport = self.running.transport
        return transport.inner if isinstance(transport, FaultyTransport) else transport

    def command(self, kind: CommandKind) -> None:
        """Asks for it without waiting for an answer."""
        self._write(self.running.settings.topics.acks, Command("a command", kind, "", b"", "a test"))

    def tell(self, status: JobStatus) -> None:
        """As a coordinator of the job would."""
        self._write(self.running.settings.topics.status, status)

    def _write(self, topic: str, record: Record) -> None:
        writer = self._inner().writer()
        writer.append(Partition(topic, 0), encode(record))
        writer.close()

    def active(self) -> list[int]:
        return [number for number, host in enumerate(self.made) if host.standing().active]

    def wait_active(self, *numbers: int) -> None:
        wait_until(lambda: self.active() == list(numbers), f"{numbers} at work")

    def wait_standing_by(self, *numbers: int) -> None:
        def there() -> bool:
            standing = [self.made[n].standing() for n in numbers]
            return all(not s.active and s.epoch > 0 for s in standing)

        wait_until(there, f"{numbers} standing by")

    def event_goes_through(self, number: int, event: bytes) -> None:
        """From the coordinator of a host to the subtask."""
        plan = self.plans[number]
        plan.wait_gateways(0)

        def through() -> bool:
            plan.gateways[0].send_event(event)
            return any(e == event for _, e in self.handled())

        wait_until(through, f"{event!r} handled")

    def handled(self) -> list[tuple[int, bytes]]:
        return self.subtasks.handled

    subtasks: Plan


@pytest.fixture
def hosts() -> Any:
    """A job whose subtasks run, without a coordinator."""
    subtasks = Plan()
    with run(make_job(subtasks), coordinator=False) as running:
        made = Hosts(running)
        made.subtasks = subtasks
        yield made
        for host, view in zip(made.made, made.views, strict=True):
            view.process.spare()
            host.leave()
        for host in made.made:
            wait_until(host.done, "a host that has left")


def test_the_first_is_at_work_at_once_and_those_behind_it_wait(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.start()
    hosts.wait_standing_by(1, 2)
    hosts.event_goes_through(0, b"one")
    assert hosts.active() == [0]
    assert hosts.running.client.standbys() == 3
    assert str(hosts.made[1].standing()).startswith("standing by: epoch 1 is at work (instance ")


def test_one_that_leaves_is_followed_by_one_other_and_the_job_goes_on(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.start()
    hosts.wait_standing_by(1, 2)
    hosts.event_goes_through(0, b"one")
    hosts.made[0].leave()
    outcome = hosts.made[0].wait(PATIENCE_S)
    assert outcome is not None and outcome.ending is Ending.LEFT
    hosts.wait_active(1)
    hosts.event_goes_through(1, b"two")
    assert hosts.active() == [1]
    assert hosts.plans[2].names() == []
    assert hosts.plans[0].count("close") == 1


def test_one_that_only_stood_by_leaves_quietly(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    hosts.made[1].leave()
    outcome = hosts.made[1].wait(PATIENCE_S)
    assert outcome is not None and outcome.ending is Ending.LEFT
    assert hosts.active() == [0]
    assert hosts.plans[1].names() == []


def test_one_that_dies_is_followed_after_its_session(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    hosts.views[0].crash()
    wait_until(lambda: hosts.made[1].standing().active, "the other at work")
    hosts.event_goes_through(1, b"after")


def test_one_that_freezes_is_followed_and_stands_by_when_it_thaws(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    hosts.views[0].freeze()
    wait_until(lambda: hosts.made[1].standing().active, "the other at work")
    hosts.event_goes_through(1, b"after")
    hosts.views[0].thaw()
    hosts.wait_active(1)
    hosts.wait_standing_by(0)
    assert hosts.plans[0].count("close") == 1
    hosts.made[1].leave()
    hosts.wait_active(0)
    hosts.event_goes_through(0, b"again")
    assert [status.epoch for status in [hosts.made[0].status()] if status is not None] == [3]


def test_a_callback_that_takes_long_is_no_reason_to_take_over(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    go_on = threading.Event()
    hosts.plans[0].wait_gateways(0)
    hosts.plans[0].does["checkpoint_coordinator"] = lambda _, n, result: (go_on.wait(PATIENCE_S), result.complete(b"0"))
    try:
        wait_until(lambda: hosts.made[1].standing().silent_s > 3 * AFTER_S, "a long silence")
        assert not hosts.made[1].standing().elected
        assert hosts.plans[1].names() == []
    finally:
        go_on.set()
    hosts.event_goes_through(0, b"after")


def test_a_standby_that_was_frozen_itself_and_whose_place_in_the_log_is_gone_goes_on_standing_by(
    hosts: Hosts,
) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    hosts.views[1].freeze()
    status = Partition(hosts.running.settings.topics.status, 0)
    seen = hosts.running.transport.offsets([status])[status].end
    wait_until(lambda: hosts.running.transport.offsets([status])[status].end > seen + 50, "more statuses")
    hosts.running.transport.truncate({status: seen + 50})
    before = hosts.made[1].standing()
    hosts.views[1].thaw()
    wait_until(lambda: hosts.made[1].standing() != before, "another look")
    hosts.wait_standing_by(1)
    assert hosts.active() == [0]
    hosts.made[0].leave()
    hosts.wait_active(1)
    hosts.event_goes_through(1, b"after")


def test_when_the_job_ends_all_its_hosts_do(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    assert hosts.running.client.stop(savepoint=True).accepted
    for host in hosts.made:
        outcome = host.wait(PATIENCE_S)
        assert outcome is not None and outcome.ending is Ending.STOPPED
    assert hosts.plans[1].names() == []


def test_one_that_dies_behind_the_end_of_the_job_leaves_nobody_waiting(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end stands in the log and nothing else does: no status, and no Stop for those that are at work."""
    commit = FaultyFencedLog.commit

    def last_deed(self: FaultyFencedLog, records: Sequence[tuple[str, bytes | None]]) -> None:
        commit(self, records)
        if any(value is not None and isinstance(decode(value), JobFinished) for _, value in records):
            hosts.views[0].crash()

    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    hosts.event_goes_through(0, b"one")
    monkeypatch.setattr(FaultyFencedLog, "commit", last_deed)
    hosts.command(CommandKind.STOP)
    outcome = hosts.made[1].wait(PATIENCE_S)
    assert outcome is not None and (outcome.ending, outcome.cause) == (Ending.STOPPED, "stopped by a test")
    status = hosts.running.client.status()
    assert status is not None and (status.state, status.cause) == ("stopped", "stopped by a test")
    wait_until(lambda: not hosts.running._process("op", 0).alive, "the subtask to leave")


def test_a_job_that_was_stopped_is_resumed_also_where_the_last_word_of_its_coordinator_was_lost(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    assert hosts.running.client.stop().accepted
    hosts.made[0].wait(PATIENCE_S)
    stopped = hosts.running.client.status()
    assert stopped is not None
    hosts.tell(dataclasses.replace(stopped, state="running"))
    hosts.start()
    hosts.wait_active(1)
    assert hosts.made[1].runtime is not None


def test_one_whose_file_has_another_parallelism_than_the_one_at_work_does_not_wait_to_follow_it(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    hosts.start(parallelism=2)
    with pytest.raises(JobRefused, match="op x 1, and this host's file has op x 2"):
        hosts.made[1].wait(PATIENCE_S)
    assert hosts.active() == [0]
    assert hosts.plans[1].names() == []


def test_one_that_stands_by_for_a_job_that_is_purged_does_not_take_up_the_next_of_that_name() -> None:
    broker, plan, faults = MemoryBroker(), Plan(), Faults()
    job = make_job(plan)
    views = [FaultyTransport(MemoryTransport(broker), faults, process=f"host-{n}") for n in range(3)]

    def start(view: FaultyTransport) -> StandbyService:
        options = CoordinatorOptions(status_interval_s=0.02)
        made = StandbyService(
            job.settings, job.coordinators, view, job.restart, options, takeover_after=AFTER_S
        ).start()
        wait_until(lambda: made.standing().epoch > 0, "a host that knows who is at work")
        return made

    hosts = [start(view) for view in views[:2]]
    views[1].freeze()
    client = JobClient(views[2], job.name)
    try:
        hosts[0].leave()
        hosts[0].wait(PATIENCE_S)
        client.purge()
        hosts.append(start(views[2]))
        views[1].thaw()
        with pytest.raises(JobRefused, match="has been purged and recreated since"):
            hosts[1].wait(PATIENCE_S)
        assert hosts[2].standing().active
    finally:
        hosts[-1].leave()
        hosts[-1].wait(PATIENCE_S)


@pytest.mark.parametrize("kept", [(), ("status",)], ids=["all", "all-but-status"])
def test_a_standby_of_a_job_that_is_purged_for_good_ends_with_an_error(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, kept: tuple[str, ...]
) -> None:
    monkeypatch.setattr(standby, "_MISSING_S", 0.2)
    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    hosts.views[0].freeze()
    topics, transport = hosts.running.settings.topics, hosts._inner()
    transport.delete_topics([name for name in transport.list_topics(topics.root) if name.split(".")[-1] not in kept])
    with pytest.raises(TopicMissing):
        hosts.made[1].wait(PATIENCE_S)


def test_one_without_standby_that_has_much_to_read_is_not_taken_for_dead(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_range, reading = acks_reader.read_range, threading.Event()

    def much(*arguments: Any) -> Iterator[tuple[int, AcksRecord]]:
        reading.set()
        began = time.monotonic()
        while time.monotonic() < began + 4 * AFTER_S:
            threading.Event().wait(0.02)
            yield 0, CoordinatorHeartbeat(1, "an old one")
        yield from read_range(*arguments)

    hosts.start()
    hosts.wait_active(0)
    hosts.start()
    hosts.wait_standing_by(1)
    monkeypatch.setattr(acks_reader, "read_range", much)
    plan = Plan()
    job = make_job(plan)
    made = instances_of(job.settings, job.coordinators, hosts._inner(), CoordinatorOptions(status_interval_s=0.02))
    alone = CoordinatorService(made, job.restart).start()
    try:
        assert reading.wait(PATIENCE_S)
        hosts.wait_standing_by(0, 1)
        plan.wait_gateways(0)
        assert not alone.done()
        assert [status.epoch for status in [alone.status()] if status is not None] == [2]
    finally:
        alone.leave()
        alone.wait(PATIENCE_S)


@pytest.mark.parametrize("times", [1, 10_000])
def test_a_topic_that_a_broker_does_not_know_for_a_moment_ends_nobody(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    offsets, left = FaultyTransport.offsets, [times]

    def unknown(self: FaultyTransport, partitions: Iterable[Partition], timeout_s: float = 30.0) -> Any:
        if self is hosts.views[-1] and left[0]:
            left[0] -= 1
            raise TopicMissing("the broker does not know it (as the test wants it)")
        return offsets(self, partitions, timeout_s)

    hosts.start()
    hosts.wait_active(0)
    monkeypatch.setattr(standby, "_MISSING_S", 0.3)
    hosts.start()
    hosts.wait_standing_by(1)
    monkeypatch.setattr(FaultyTransport, "offsets", unknown)
    if times > 1:
        with pytest.raises(TopicMissing):
            hosts.made[1].wait(PATIENCE_S)
    else:
        wait_until(lambda: not left[0], "a broker that does not know it")
        hosts.wait_standing_by(1)
        hosts.made[0].leave()
        hosts.wait_active(1)


@pytest.mark.damages_logs("a record of a newer release in the checkpoint log")
def test_what_would_be_refused_is_refused_when_it_begins_to_stand_by(hosts: Hosts) -> None:
    hosts.start()
    hosts.wait_active(0)
    writer = hosts.running.transport.writer()
    writer.append(Partition(hosts.running.settings.topics.checkpoints, 0), MARKER + b"newer-v9", b"key")
    writer.close()
    hosts.start()
    with pytest.raises(JobRefused, match="written by a newer"):
        hosts.made[1].wait(PATIENCE_S)
    assert hosts.active() == [0]


def test_a_broker_that_is_away_while_it_takes_over_is_waited_for(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    claim: Callable[..., Any] = FaultyTransport.claim_log

    def away_once(self: FaultyTransport, topic: str, owner: str, timeout_s: float = 30.0) -> Any:
        if not refused:
            refused.append(topic)
            raise BrokerUnreachable("no broker answered (as the test wants it)")
        return claim(self, topic, owner, timeout_s)

    monkeypatch.setattr(FaultyTransport, "claim_log", away_once)
    hosts.start()
    hosts.wait_active(0)
    assert refused
    hosts.event_goes_through(0, b"after")


def test_a_query_is_answered_by_whoever_is_at_work() -> None:
    """Protocol, section 10: what was prepared by the one before is what Spark's decision is about."""
    broker, plans, hosts = MemoryBroker(), [Plan(), Plan()], []
    for plan in plans:
        job = make_job(plan)
        settings = dataclasses.replace(job.settings, driven_by_query=True)
        options = CoordinatorOptions(status_interval_s=0.02)
        host = StandbyService(
            settings, job.coordinators, MemoryTransport(broker), job.restart, options, takeover_after=AFTER_S
        )
        hosts.append(host.start())
        wait_until(lambda: hosts[0].standing().active, "the first at work")
    planner = Planner(
        lambda: MemoryTransport(broker), settings.topics, "op", wait_s=0.05, timeout_s=PATIENCE_S, resend_s=0.2
    )
    try:
        assert planner.plan(-1).outcome is BatchOutcome.NOTHING
        plans[0].gateways[0].send_event(b"a")
        first = planner.plan(-1)
        assert first.outcome is BatchOutcome.PLANNED
        hosts[0].leave()
        wait_until(lambda: hosts[1].standing().active, "the second at work")
        assert planner.plan(first.checkpoint_id).outcome is BatchOutcome.NOTHING
        assert ("reset_to_checkpoint", first.checkpoint_id, b"0") in plans[1].calls
        assert JobClient(MemoryTransport(broker), settings.name).history().last_id == first.checkpoint_id
    finally:
        planner.close()
        for host in hosts:
            host.leave()
            host.wait(PATIENCE_S)


def test_what_a_host_does_is_told_in_words() -> None:
    told = {
        "taking over": Standing(True, 0),
        "coordinating, epoch 8": Standing(True, 8, "abc"),
        "standing by: no coordinator is known yet; no broker": Standing(False, 0, error="no broker"),
        "standing by: no coordinator since epoch 7 (left)": Standing(False, 7, "abc", state="left"),
        "standing by: epoch 7 is at work (instance 01234567), last seen 2.5 s ago, elected to follow it": Standing(
            False, 7, "0123456789", 2.5, elected=True, state="running"
        ),
    }
    assert {str(standing): standing for standing in told.values()} == told
