"""Two coordinators of one job, and logs that refuse a start (protocol, sections 4 and 11)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.preflight import check_may_start
from penstock.coordinator.runtime import CoordinatorRuntime
from penstock.coordinator.service import CoordinatorService
from penstock.schemas.acks import CoordinatorHeartbeat
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    JobOutcome,
    RunClaimed,
    key_of,
)
from penstock.schemas.codec import MARKER, decode, encode
from penstock.schemas.errors import CoordinatorClosed, JobHasFinished, JobRefused, PositionUnavailable
from penstock.schemas.settings import Restore
from penstock.schemas.status import Ending, JobStatus
from penstock.testing.local import LocalJob
from penstock.testing.transport import FaultyFencedLog
from penstock.transport.memory import MemoryBroker, MemoryReader, MemoryTransport
from penstock.transport.ports import LogRecord, Partition, Transport

from .jobs import PATIENCE_S, Plan, make_job, run, wait_checkpoint, wait_recovered, wait_status, wait_until


def second(running: LocalJob, plan: Plan) -> CoordinatorService:
    """Another coordinator of the same job."""
    job = make_job(plan)
    options = CoordinatorOptions(status_interval_s=0.02)

    def make(first: bool) -> CoordinatorRuntime:
        return CoordinatorRuntime(job.settings, job.coordinators, running.transport, options)

    return CoordinatorService(make, job.settings.restart).start()


def checkpoint_log(transport: Transport, running: LocalJob) -> list[object]:
    found = transport.read_all(Partition(running.settings.topics.checkpoints, 0))
    return [None if record.value is None else decode(record.value) for record in found]


def broken(running: LocalJob, topic: str, value: bytes) -> None:
    """Something that nobody can read stands in a topic."""
    writer = running.transport.writer()
    writer.append(Partition(topic, 0), value, b"key")
    writer.close()


def test_a_second_coordinator_fences_the_first_and_the_job_goes_on_under_it() -> None:
    """Section 4: being fenced is not a failure; the first one ends, saying so, and the subtasks stay up."""
    first, successor = Plan(), Plan()
    with run(make_job(first)) as running:
        first.wait_gateways(0)
        wait_checkpoint(running, first)
        taking_over = second(running, successor)
        try:
            outcome = running.wait(PATIENCE_S)
            assert outcome.ending is Ending.FENCED
            assert first.count("close") == 1
            successor.wait_call("start")
            assert successor.names()[:2] == ["reset_to_checkpoint", "start"]
            successor.wait_gateways(0)
            successor.gateways[0].send_event(b"from the successor").result(PATIENCE_S)
            assert (0, b"from the successor") in first.handled  # the same subtask, in place
            successor.wait_call("notify_checkpoint_complete")
        finally:
            taking_over.leave()
            left = taking_over.wait(PATIENCE_S)
    assert left is not None
    assert left.ending is Ending.LEFT


def test_the_fenced_one_commits_deletes_and_says_nothing_more() -> None:
    """Section 4; G4."""
    first, successor = Plan(), Plan()
    with run(make_job(first)) as running:
        wait_checkpoint(running, first)
        taking_over = second(running, successor)
        try:
            assert running.wait(PATIENCE_S).ending is Ending.FENCED
            assert running.service is not None
            assert running.service.runtime is not None
            mine = running.service.runtime.instance
            log = checkpoint_log(running.transport, running)
            claims = [record for record in log if isinstance(record, EpochClaimed)]
            assert [claim.epoch for claim in claims] == [1, 2]
            states = [
                decode(record.value)
                for record in running.transport.read_all(Partition(running.settings.topics.status, 0))
            ]
            ended = [s for s in states if isinstance(s, JobStatus) and s.instance == mine and s.state == "fenced"]
            assert ended == []
        finally:
            taking_over.leave()
            taking_over.wait(PATIENCE_S)


def test_one_that_broke_off_does_not_take_its_place_back_from_whoever_has_followed_it() -> None:
    """Section 4: its machine was cut off in the middle of a commit, and comes back when another is at work."""
    first, successor = Plan(), Plan()
    with run(make_job(first), options={"deadline_s": 2.0}) as running:
        service = running.service
        assert service is not None and service.runtime is not None
        mine, view = service.runtime, running._coordinators[-1].view
        held = running.faults.hold(CheckpointCompleted, process="coordinator")
        held.wait_until_caught()
        taking_over = second(running, successor)
        try:
            successor.wait_gateways(0)
            view.commit_timeout_s = 0.0
            mine._logs.checkpoints._timeout_s = 0.1  # type: ignore[attr-defined]
            with running.faults.broker_away("coordinator"):
                held.release()
                wait_until(lambda: service.runtime is not mine, "a next instance of the one that was cut off")
            assert running.wait(PATIENCE_S).ending is Ending.FENCED
            claims = [r.epoch for r in checkpoint_log(running.transport, running) if isinstance(r, EpochClaimed)]
            assert claims == [1, 2]
            assert not taking_over.done()
        finally:
            taking_over.leave()
            taking_over.wait(PATIENCE_S)


@pytest.mark.parametrize("begun_anew", [True, False])
def test_one_that_broke_off_leaves_the_job_alone_that_was_made_anew_meanwhile(begun_anew: bool) -> None:
    """Section 3: purged while its host waited to start it again; what has its name now is another job."""
    first, anew = Plan(), Plan()
    with run(make_job(first), options={"deadline_s": 2.0}, subtasks=False) as running:
        wait_status(running, lambda s: s.state == "running")
        service = running.service
        assert service is not None and service.runtime is not None
        mine = service.runtime
        held = threading.Event()

        def pause(error: Exception) -> None:
            assert held.wait(PATIENCE_S)

        service._pause = pause  # type: ignore[method-assign]
        mine._mailbox.post(_break_off)
        wait_until(lambda: mine._outcome is not None, "an instance that has broken off")
        running.transport.delete_topics(running.transport.list_topics(running.settings.topics.root))
        if begun_anew:
            running.transport.create_topics(running.settings.topic_specs)
            other = second(running, anew)
            anew.wait_call("start")
        held.set()
        with pytest.raises(JobRefused, match=r"job job was purged and recreated since this coordinator's host began"):
            service.wait(PATIENCE_S)
        claims = [r.epoch for r in checkpoint_log(running.transport, running) if isinstance(r, EpochClaimed)]
        assert len(claims) == begun_anew
        if begun_anew:
            assert not other.done()
            other.leave()
            other.wait(PATIENCE_S)


def _break_off() -> None:
    raise RuntimeError("broken off")


def test_a_job_that_finished_and_whose_coordinator_died_before_it_could_tell_is_refused_and_its_tasks_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Section 4 ◆: they wait for the notice of their last checkpoint."""
    plan, again, commit = Plan(), Plan(), FaultyFencedLog.commit
    with run(make_job(plan)) as running:
        wait_checkpoint(running, plan)

        def last_deed(self: FaultyFencedLog, records: Sequence[tuple[str, bytes | None]]) -> None:
            commit(self, records)
            ends = JobFinished(1, JobOutcome.FINISHED, "every subtask has finished", running.run_id)
            if any(isinstance(decode(v), CheckpointCompleted) for _, v in records if v is not None):
                commit(self, [(key_of(ends), encode(ends))])
                running.crash_coordinator()

        monkeypatch.setattr(FaultyFencedLog, "commit", last_deed)
        wait_until(lambda: running._coordinators[-1].view.process.dead, "the coordinator to die")
        monkeypatch.undo()
        next_one = second(running, again)
        with pytest.raises(JobHasFinished, match="--fresh"):
            next_one.wait(PATIENCE_S)
        status = running.client.status()
        assert status is not None
        assert (status.state, status.cause) == ("finished", "every subtask has finished")
        wait_until(lambda: not running._process("op", 0).alive, "the subtask to leave")
        assert "start" not in again.names()


def test_one_that_looks_while_another_begins_the_job_does_not_take_the_log_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan()
    with run(make_job(plan), coordinator=False) as running:
        begun: list[CoordinatorService] = []
        read_all = MemoryTransport.read_all

        def then_begins(self: MemoryTransport, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
            found = read_all(self, partition, timeout_s)
            if not begun:
                begun.append(second(running, plan))
                plan.wait_gateways(0)
            return found

        monkeypatch.setattr(MemoryTransport, "read_all", then_begins)
        try:
            check_may_start(running.settings, running.transport)
        finally:
            begun[0].leave()
            begun[0].wait(PATIENCE_S)


def test_futures_of_the_fenced_one_settle() -> None:
    """Section 6: exactly once, always."""
    first, successor = Plan(), Plan()
    with run(make_job(first), subtasks=True) as running:
        first.wait_gateways(0)
        gateway = first.gateways[0]
        taking_over = second(running, successor)
        try:
            assert running.wait(PATIENCE_S).ending is Ending.FENCED
            with pytest.raises(CoordinatorClosed):
                gateway.send_event(b"too late").result(PATIENCE_S)
        finally:
            taking_over.leave()
            taking_over.wait(PATIENCE_S)


def test_a_coordinator_that_leaves_does_not_end_the_job_and_its_successor_resumes() -> None:
    """Section 4; section 8: its process was replaced."""
    first, successor = Plan(), Plan()
    with run(make_job(first)) as running:
        first.wait_gateways(0)
        first.gateways[0].send_event(b"before").result(PATIENCE_S)
        n = wait_checkpoint(running, first)
        assert running.service is not None
        running.service.leave()
        assert running.wait(PATIENCE_S).ending is Ending.LEFT
        taking_over = second(running, successor)
        try:
            successor.wait_call("reset_to_checkpoint")
            assert successor.calls[0][1] >= n
            successor.wait_gateways(0)
            wait_checkpoint(running, successor)
            assert [event for _, event in first.handled].count(b"before") == 1
        finally:
            taking_over.leave()
            taking_over.wait(PATIENCE_S)


def test_a_start_that_is_refused_does_not_fence_the_coordinator_at_work() -> None:
    """Section 4: refused before anything is claimed."""
    plan = Plan()
    with run(make_job(plan)) as running:
        wait_checkpoint(running, plan)
        job = make_job(Plan())
        options = CoordinatorOptions(restore=Restore.CHECKPOINT, restore_checkpoint=12_345)
        with pytest.raises(JobRefused, match="no checkpoint 12345"):
            CoordinatorRuntime(job.settings, job.coordinators, running.transport, options).run()
        wait_checkpoint(running, plan)
        assert wait_status(running, lambda s: s.state == "running").epoch == 1


NEWER = MARKER + b"newer-v9" + b"whatever"
"""A record in our format, under a schema that nobody here knows."""
DAMAGED = encode(RunClaimed("run", 3))[:-1]


@pytest.mark.damages_logs("garbage in the checkpoint log")
@pytest.mark.parametrize(
    "value", [b"garbage", b"", encode(JobStatus("j", "", "", "", 0, "", 0, 0, 0, 0, 0.0, 0, 0, "", {}, (), ()))]
)
def test_a_record_in_the_checkpoint_log_that_is_nobodys_is_kept_out(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Section 4: it hides no checkpoint, so it keeps no coordinator from starting."""
    plan = Plan()
    with run(make_job(plan)) as running:
        wait_checkpoint(running, plan)
        broken(running, running.settings.topics.checkpoints, value)
        service = second(running, again := Plan())
        again.wait_gateways(0)
        status = service.status()
        assert status is not None
        assert status.epoch == 2
        assert status.last_completed >= 1
    assert "1 records of penstock.job.checkpoints[0] are not the job's" in caplog.text


@pytest.mark.damages_logs("a record of a newer release in the checkpoint log")
@pytest.mark.parametrize(("value", "why"), [(NEWER, "written by a newer"), (DAMAGED, "cannot be decoded")])
def test_a_record_of_a_newer_release_or_a_damaged_one_of_ours_refuses_the_successor_alone(
    value: bytes, why: str
) -> None:
    """Section 4: an older version must not overlook a checkpoint. The coordinator at work goes on."""
    plan = Plan()
    with run(make_job(plan)) as running:
        wait_checkpoint(running, plan)
        broken(running, running.settings.topics.checkpoints, value)
        with pytest.raises(JobRefused, match=why):
            second(running, Plan()).wait(PATIENCE_S)
        broken(running, running.settings.topics.acks, encode(CoordinatorHeartbeat(1_000, "nobody")))
        wait_status(running, lambda s: s.dropped.get("unreadable", 0) >= 1)
        wait_checkpoint(running, plan)


@pytest.mark.damages_logs("a topic made again")
def test_a_recreated_topic_refuses_the_start() -> None:
    """Section 4; section 11."""
    plan = Plan()
    with run(make_job(plan)) as running:
        wait_checkpoint(running, plan)
    transport, topics = running.transport, running.settings.topics
    transport.delete_topics([topics.acks])
    again = run(make_job(plan), transport, subtasks=False)
    with pytest.raises(JobRefused, match=r"penstock\.job\.acks is not the one"):
        again.start()


def test_a_job_that_was_run_before_resumes_from_its_last_completed_checkpoint() -> None:
    """Section 2; section 4: the newer run takes over."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"kept").result(PATIENCE_S)
        n = wait_checkpoint(running, plan)
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
    resumed = Plan()
    with run(make_job(resumed), running.transport) as running:
        resumed.wait_gateways(0)
        assert resumed.calls[0][0] == "reset_to_checkpoint"
        assert resumed.calls[0][1] >= n
        wait_recovered(running, resumed)
        assert b"kept" not in [event for _, event in resumed.handled]


# ---- garbage (section 11)


def test_garbage_on_the_acks_topic_is_counted_and_kept_out() -> None:
    """Section 11: never a crash, never a skipped event."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        topics = running.settings.topics
        for value in (b"", b"garbage", b"\xc3\x01garbage", encode(EpochClaimed(9, 9, 9, 9, {}, "", ""))):
            broken(running, topics.acks, value)
        wait_status(running, lambda s: s.dropped.get("unreadable") == 4)
        plan.gateways[0].send_event(b"echo hello").result(PATIENCE_S)
        plan.wait_for(lambda: ("handle_event_from_operator", 0, b"hello") in plan.calls, "the echo")
        wait_checkpoint(running, plan)
        assert wait_status(running, lambda s: True).epoch == 1


def test_garbage_does_not_disturb_a_successor_that_reads_it_again() -> None:
    """Section 11."""
    plan = Plan()
    with run(make_job(plan, interval=None)) as running:
        plan.wait_gateways(0)
        broken(running, running.settings.topics.acks, b"garbage")
        wait_status(running, lambda s: s.dropped.get("unreadable") == 1)
    again = Plan()
    with run(make_job(again), running.transport) as running:
        wait_recovered(running, again)
        wait_until(lambda: again.count("start") == 1, "its start")


class Losing(MemoryTransport):
    """Its readers of the acks topic lose their position when told to, as if somebody had deleted what they read."""

    lose = False

    def reader(self, positions: Mapping[Partition, int]) -> MemoryReader:
        reader = super().reader(positions)
        poll = reader.poll

        def losing(timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
            if self.lose and any(partition.topic.endswith(".acks") for partition in positions):
                self.lose = False
                raise PositionUnavailable("offset 5 is wanted, there are 9 to 12")
            return poll(timeout_s, records_max)

        reader.poll = losing  # type: ignore[method-assign]
        return reader


def test_acks_deleted_under_a_coordinator_that_nobody_has_replaced_make_it_start_again() -> None:
    """Section 4: only a newer claim fences; anything else is followed by another instance within the budget."""
    plan, transport = Plan(), Losing(MemoryBroker())
    with run(make_job(plan), transport) as running:
        plan.wait_gateways(0)
        wait_checkpoint(running, plan)
        transport.lose = True
        wait_status(running, lambda s: s.epoch == 2 and s.state == "running")
        wait_recovered(running, plan)
