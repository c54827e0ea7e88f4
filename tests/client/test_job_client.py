"""A job from outside, over its topics alone (protocol, sections 3 and 8)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from penstock.client.job_client import LISTEN_OPEN_S, JobClient, list_jobs, statuses
from penstock.client.status_log import LOOK_BACK
from penstock.schemas.codec import encode
from penstock.schemas.errors import JobError, JobRefused
from penstock.schemas.status import CommandReply, Ending, JobStatus
from penstock.testing.local import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryReader, MemoryTransport
from penstock.transport.ports import Partition
from tests.dashboard.statuses import status

from ..coordinator.jobs import (
    PATIENCE_S,
    Plan,
    epoch_of,
    make_job,
    run,
    wait_checkpoint,
    wait_recovered,
    wait_status,
    wait_until,
)


def started(plan: Plan, **changes: object) -> LocalJob:
    return run(make_job(plan, **changes))  # type: ignore[arg-type]


def test_status_tells_what_the_coordinator_wrote_last() -> None:
    """Section 3: status each second."""
    plan = Plan()
    with started(plan, parallelism=2) as running:
        wait_checkpoint(running, plan)
        wait_until(lambda: (s := running.client.status()) and s.checkpoints_completed, "a status in the topic")
        status = running.client.status()
        assert status is not None
        assert (status.job, status.state, status.epoch, status.run) == ("job", "running", 1, running.run_id)
        (operator,) = status.operators
        assert [(s.subtask, s.phase) for s in operator.subtasks] == [(0, "running"), (1, "running")]
        assert running.client.running()


def test_what_a_coordinator_that_was_frozen_says_behind_its_successor_is_not_the_status() -> None:
    plan = Plan()
    with started(plan) as running:
        status = wait_status(running, lambda s: s.epoch == 1)
        writer = running.transport.writer()
        late = replace(status, epoch=0, state="left", at_ms=status.at_ms + 60_000)
        writer.append(Partition(running.settings.topics.status, 0), encode(late))
        writer.close()
        newest = running.client.status()
        assert newest is not None
        assert newest.epoch == 1 and newest.state != "left"


def test_a_status_of_an_epoch_that_the_checkpoint_log_does_not_know_is_forged() -> None:
    """Section 4.2: it is of another incarnation, or of somebody who may write to the topic."""
    plan = Plan()
    with started(plan) as running:
        status = wait_status(running, lambda s: s.epoch == 1 and s.state == "running")
        writer = running.transport.writer()
        forged = replace(status, epoch=10**12, state="stopped", at_ms=status.at_ms + 60_000)
        writer.append(Partition(running.settings.topics.status, 0), encode(forged))
        writer.close()
        newest = running.client.status()
        assert newest is not None
        assert (newest.epoch, newest.state) == (1, "running")


def test_a_run_of_another_parallelism_is_refused_while_a_coordinator_is_at_work_that_would_send_it_away() -> None:
    plan = Plan()
    with started(plan, parallelism=2) as running:
        wait_status(running, lambda s: s.state == "running")
        running.client.require_layout({"op": 2, "new": 7})
        match = r"has 2 subtasks of operator op \(here: 3\): .* Start it with this job file first"
        with pytest.raises(JobRefused, match=match):
            running.client.require_layout({"op": 3})
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        running.wait(PATIENCE_S)
        running.client.require_layout({"op": 3})


class Telling(MemoryTransport):
    """A coordinator that tells something as soon as somebody listens."""

    tells: JobStatus | None = None

    def reader(self, positions: Mapping[Partition, int]) -> MemoryReader:
        reader = super().reader(positions)
        if self.tells is not None:
            tell(self, self.tells)
        return reader


def tell(transport: MemoryTransport, status: JobStatus) -> None:
    writer = transport.writer()
    writer.append(Partition(JobClient(transport, "job").topics.status, 0), encode(status))
    assert writer.flush(PATIENCE_S)
    writer.close()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_coordinator_whose_clock_is_wrong_is_running_where_it_is_heard(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Its topics would be deleted under it, or those of one that died not for an hour."""
    monkeypatch.setattr("penstock.client.job_client.LISTEN_S", 0.1)
    transport = Telling(MemoryBroker())
    transport.create_topics(make_job(Plan()).settings.topic_specs)
    client, wrong = JobClient(transport, "job"), status(at_ms=round(1000 * (time.time() + 3600 * hours)))
    tell(transport, wrong)
    assert not client.running()
    transport.tells = wrong
    assert client.running()
    with pytest.raises(JobRefused, match="is running: stop it first"):
        client.purge()
    transport.tells = replace(wrong, state="stopped")
    assert not client.running()


def test_a_status_is_of_now_also_where_nothing_happens() -> None:
    """Back-off and heartbeats may take longer than whoever looks believes that a coordinator is there."""
    plan = Plan()
    job = make_job(plan, interval=None)
    job.heartbeat_interval, job.heartbeat_timeout = 600.0, 1800.0
    with run(job, subtasks=False) as running:
        first = wait_status(running, lambda s: s.state == "running")
        later = wait_status(running, lambda s: s.at_ms >= first.at_ms + 300)
        (before,), (after,) = first.operators[0].subtasks, later.operators[0].subtasks
        assert after.since_s >= before.since_s + 0.2
        assert abs(later.at_ms - 1000 * time.time()) < 5_000


def test_a_job_that_stopped_is_not_running() -> None:
    """Section 3."""
    plan = Plan()
    with started(plan) as running:
        plan.wait_gateways(0)
        reply = running.client.stop(timeout_s=PATIENCE_S)
        assert reply.accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
        wait_until(lambda: not running.client.running(), "the last status")
        status = running.client.status()
        assert status is not None
        assert status.state == "stopped"


def test_a_savepoint_is_named_kept_and_can_be_gone_back_to() -> None:
    """Section 8; section 7.9."""
    plan = Plan()
    with started(plan) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"in it").result(PATIENCE_S)
        reply = running.client.savepoint(timeout_s=PATIENCE_S)
        assert reply.accepted
        plan.gateways[0].send_event(b"after it").result(PATIENCE_S)
        for _ in range(4):
            wait_checkpoint(running, plan)
        kept = running.client.history().checkpoints[reply.checkpoint_id]
        assert kept.header.savepoint
        (snapshot,) = kept.subtasks.values()
        assert snapshot.state is not None
        assert snapshot.state.inline == b"in it"


def test_who_asked_for_what_the_end_of_the_job_left_undone_is_told_at_once() -> None:
    """G5: a savepoint still waits for its coordinator when somebody else stops the job."""
    plan = Plan()
    plan.does["checkpoint_coordinator"] = lambda coordinator, n, result: None  # never completes
    with started(plan, interval=None) as running, ThreadPoolExecutor(1) as asking:
        plan.wait_gateways(0)
        asked = asking.submit(running.client.savepoint, PATIENCE_S)
        plan.wait_call("checkpoint_coordinator")
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        with pytest.raises(JobError, match="ended before it answered 'savepoint': stopped"):
            asked.result(PATIENCE_S)


def test_stop_with_savepoint_names_it_and_ends_the_job() -> None:
    """Section 8."""
    plan = Plan()
    with started(plan) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"last").result(PATIENCE_S)
        reply = running.client.stop(savepoint=True, timeout_s=PATIENCE_S)
        assert reply.accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
        history = running.client.history()
        assert history.last_id == reply.checkpoint_id
    resumed = Plan()
    with run(make_job(resumed), running.transport) as running:
        resumed.wait_gateways(0)
        assert resumed.calls[0][:2] == ("reset_to_checkpoint", reply.checkpoint_id)
        wait_recovered(running, resumed)


def test_a_request_is_answered_by_the_coordinator() -> None:
    """Section 8; api: handle_request."""
    plan = Plan()
    with started(plan) as running:
        plan.wait_gateways(0)
        reply = running.client.request("op", b"question", timeout_s=PATIENCE_S)
        assert (reply.accepted, reply.payload) == (True, b"answer to question")


def test_a_request_to_an_operator_without_a_coordinator_is_refused() -> None:
    """Section 8."""
    plan = Plan()
    with started(plan) as running:
        plan.wait_gateways(0)
        reply = running.client.request("nobody", b"", timeout_s=PATIENCE_S)
        assert not reply.accepted
        assert "'nobody'" in reply.outcome


def test_purge_is_refused_while_the_job_runs_and_deletes_its_topics_afterwards() -> None:
    """Section 3: its topics are all that a job is."""
    plan = Plan()
    with started(plan) as running:
        wait_until(running.client.running, "a status")
        with pytest.raises(JobRefused, match="stop it first"):
            running.client.purge()
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        running.wait(PATIENCE_S)
        wait_until(lambda: not running.client.running(), "the last status")
    assert running.client.purge() == sorted(
        f"penstock.job.{topic}" for topic in ("acks", "checkpoints", "status", "op.events")
    )
    assert not running.client.exists()


def test_a_status_behind_a_flood_of_replies_is_found() -> None:
    transport = MemoryTransport(MemoryBroker())
    transport.create_topics(make_job(Plan()).settings.topic_specs)
    client, now = JobClient(transport, "job"), status(at_ms=round(1000 * time.time()))
    tell(transport, now)
    writer, reply = transport.writer(), encode(CommandReply("c", False, "too many wait", -1, b""))
    for _ in range(5 * LOOK_BACK):
        writer.append(Partition(client.topics.status, 0), reply)
    writer.close()
    assert client.status() == now
    with pytest.raises(JobRefused, match="is running: stop it first"):
        client.purge()


@pytest.mark.parametrize("told", ["nothing", "a newer release's", "long ago"])
def test_a_job_whose_tasks_write_is_not_purged_though_its_coordinator_says_nothing(told: str) -> None:
    """It is in a long call, for one."""
    plan = Plan()
    job = make_job(plan)
    with run(job) as running:
        wait_checkpoint(running, plan)
        running.crash_coordinator()
        topics, transport = running.settings.topics, MemoryTransport(running.transport.broker)
        transport.delete_topics([topics.status])
        transport.create_topics(running.settings.topic_specs)
        if told == "long ago":
            tell(transport, status(0))
        if told == "a newer release's":
            writer = transport.writer()
            writer.append(Partition(topics.status, 0), encode(status(0))[:2] + bytes(8) + b"a body")
            writer.close()
        with pytest.raises(JobRefused, match=f"job job is still active: records are being written to {topics.acks}"):
            JobClient(transport, "job").purge()
        assert running.client.exists()


def test_a_running_job_is_not_purged_though_a_forged_status_says_that_it_has_stopped() -> None:
    """Section 3.2: the status is of an epoch that the checkpoint log does not know."""
    plan = Plan()
    with started(plan) as running:
        now = wait_status(running, lambda s: s.state == "running")
        tell(running.transport, replace(now, epoch=now.epoch + 1_000, state="stopped"))
        assert running.client.running()
        with pytest.raises(JobRefused, match="job job is running: stop it first"):
            running.client.purge()
        assert running.client.exists()


def test_purge_listens_for_longer_where_the_checkpoint_log_does_not_say_that_the_job_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Section 3."""
    listened: list[float] = []
    monkeypatch.setattr(JobClient, "_require_silent", lambda *arguments: listened.append(arguments[-1]))
    plan = Plan()
    with started(plan) as running:
        now = wait_status(running, lambda s: s.state == "running")
        running.crash_coordinator()
        tell(running.transport, replace(now, state="stopped"))
        assert running.client.ended() is None
        running.client.purge()
    assert listened == [LISTEN_OPEN_S]


@pytest.mark.parametrize("ask", ["savepoint", "stop", "request"])
def test_a_job_that_has_stopped_is_asked_nothing(ask: str) -> None:
    """Section 8: no coordinator would answer, and a command in the log would be executed at the next start."""
    plan = Plan()
    with started(plan) as running:
        plan.wait_gateways(0)
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        running.wait(PATIENCE_S)
        ended = wait_until(running.client.ended, "the last status")
        assert ended is not None and ended.state == "stopped"
        end = running.transport.offsets([Partition(running.settings.topics.acks, 0)])
        arguments = ("op", b"payload") if ask == "request" else ()
        with pytest.raises(JobError, match="job job is stopped: no coordinator would answer"):
            getattr(running.client, ask)(*arguments)
        assert running.transport.offsets(list(end)) == end


def test_a_purged_job_starts_anew() -> None:
    """Section 11: the way out."""
    plan = Plan()
    with started(plan) as running:
        wait_checkpoint(running, plan)
        before = epoch_of(running)
        running.client.stop(timeout_s=PATIENCE_S)
        running.wait(PATIENCE_S)
    wait_until(lambda: not running.client.running(), "the last status")
    running.client.purge()
    again = Plan()
    with run(make_job(again), running.transport) as running:
        again.wait_gateways(0)
        assert again.calls[0] == ("start",)
        assert wait_status(running, lambda s: s.state == "running").epoch > before, "frozen tasks may know that one"


@pytest.mark.parametrize("ask", ["savepoint", "stop", "purge", "require"])
def test_a_job_that_does_not_exist_is_refused_and_those_that_do_are_named(ask: str) -> None:
    """G5."""
    plan = Plan()
    with started(plan) as running:
        plan.wait_gateways(0)
        client = JobClient(running.transport, "unknown")
        assert not client.exists()
        with pytest.raises(JobRefused, match=r"no job 'unknown' .* there is: job"):
            getattr(client, ask)()


def test_a_command_that_nobody_answers_is_an_error_that_says_so() -> None:
    """Section 8: it stands in the log, and a coordinator that starts later executes it."""
    plan = Plan()
    transport = MemoryTransport(MemoryBroker())
    running = run(make_job(plan), transport, subtasks=False, coordinator=False)
    with running, pytest.raises(JobError, match="did not answer 'request'"):
        running.client.request("op", b"later", timeout_s=0.05)
    with run(make_job(plan), transport, subtasks=False):
        plan.wait_call("handle_request")
        assert ("handle_request", b"later") in plan.calls


def test_jobs_are_listed_with_their_statuses() -> None:
    """Section 3: dots separate, so another prefix is another world."""
    plan = Plan()
    with started(plan) as running:
        wait_until(running.client.running, "a status")
        assert list_jobs(running.transport) == ["job"]
        assert list_jobs(running.transport, "pen") == []
        ((name, status),) = statuses(running.transport)
        assert name == "job"
        assert status is not None
