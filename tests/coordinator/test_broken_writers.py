"""A record that the broker did not certainly take (protocol, section 6 ◆), and silent tasks (section 8)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import pytest

from penstock.coordinator.options import CoordinatorOptions
from penstock.schemas.acks import Hello
from penstock.schemas.checkpoints import JobFinished
from penstock.schemas.codec import decode, encode
from penstock.schemas.errors import AppendFailed, AppendNotAuthorized, NotAuthorized
from penstock.schemas.ids import SubtaskId
from penstock.schemas.status import Ending
from penstock.testing.local import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryFencedLog, MemoryTransport, MemoryWriter
from penstock.transport.ports import OnOutcome, Partition

from .jobs import PATIENCE_S, Plan, make_job, run, wait_recovered, wait_status, wait_until


class BreakingWriter(MemoryWriter):
    """Once told to, takes nothing any more: the outcome of each append is an error."""

    broken = threading.Event()

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        if self.broken.is_set() and partition.topic.endswith(".events"):
            self.broken_for_good = True
        if getattr(self, "broken_for_good", False):
            if not self.broken.is_set():
                raise AppendFailed("an earlier append failed, so nothing may follow")
            self.broken.clear()
            assert on_outcome is not None
            on_outcome(None, AppendFailed("timed out"))
            return
        super().append(partition, value, key, on_outcome)


class BreakingTransport(MemoryTransport):
    def writer(self) -> MemoryWriter:
        return BreakingWriter(self.broker, self.broker.now_ms)


def test_an_append_without_a_certain_outcome_rolls_back_and_loses_nothing() -> None:
    """Section 6 ◆: a global failover with a new producer."""
    plan = Plan()
    BreakingWriter.broken.clear()
    with run(make_job(plan), BreakingTransport(MemoryBroker())) as running:
        plan.wait_gateways(0)
        BreakingWriter.broken.set()
        plan.gateways[0].send_event(b"into the hole")
        status = wait_status(running, lambda s: s.epoch >= 2 and s.state == "running")
        assert "did not take a record" in status.last_failure
        wait_recovered(running, plan)


class RefusedWriter(MemoryWriter):
    """Of a user who has lost the right to write acks: told with each outcome, and nothing is appended."""

    refused = threading.Event()

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        if self.refused.is_set() and partition.topic.endswith(".acks"):
            if on_outcome is not None:
                on_outcome(None, AppendNotAuthorized("user 'carol' lacks the right Write"))
            return
        super().append(partition, value, key, on_outcome)


class RefusingTransport(MemoryTransport):
    def writer(self) -> MemoryWriter:
        return RefusedWriter(self.broker, self.broker.now_ms)


class SlowWriter(MemoryWriter):
    """While told to, its broker answers nothing that is for an events partition; behind it, all at once."""

    slow = threading.Event()
    kept: ClassVar[list[Callable[[], None]]] = []

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        append = partial(super().append, partition, value, key, on_outcome)
        if self.slow.is_set() and partition.topic.endswith(".events"):
            self.kept.append(append)
        else:
            append()

    @classmethod
    def go_on(cls) -> None:
        cls.slow.clear()
        while cls.kept:
            cls.kept.pop(0)()


class SlowTransport(MemoryTransport):
    def writer(self) -> MemoryWriter:
        return SlowWriter(self.broker, self.broker.now_ms)


def test_an_event_that_the_broker_has_not_taken_makes_nobody_look_stuck() -> None:
    """Section 8 ◆: while the coordinator's appends have no outcome its log time stands still."""
    plan, failed = Plan(), threading.Event()
    plan.does["execution_attempt_failed"] = lambda *_: failed.set()
    job = make_job(plan, event_ack_timeout=0.1)
    job.heartbeat_interval, job.heartbeat_timeout = 0.02, 0.1
    SlowWriter.slow.clear()
    with run(job, SlowTransport(MemoryBroker())) as running:
        plan.wait_gateways(0)
        SlowWriter.slow.set()
        plan.gateways[0].send_event(b"on its way")
        wait_until(lambda: SlowWriter.kept, "the event to be appended")
        assert not failed.wait(1.0), plan.calls  # ten times what a stuck attempt is given
        SlowWriter.go_on()
        plan.wait_handled(b"on its way")
        wait_recovered(running, plan)


def test_a_coordinator_that_may_not_write_heartbeats_ends_with_the_reason() -> None:
    """Nobody else writes either: the log's time stands still, and a wait that is measured by it would never end."""
    job = make_job(Plan())
    job.heartbeat_interval, job.heartbeat_timeout = 0.05, 10.0
    RefusedWriter.refused.clear()
    with run(job, RefusingTransport(MemoryBroker()), subtasks=False) as running:
        wait_status(running, lambda s: s.epoch >= 1)
        RefusedWriter.refused.set()
        with pytest.raises(NotAuthorized, match="lacks the right Write"):
            running.wait(PATIENCE_S)


def test_tasks_leave_though_the_broker_did_not_take_the_last_words_of_their_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Section 4: the end of the job stands in the log, so nobody would answer them any more."""
    plan, commit = Plan(), MemoryFencedLog.commit
    BreakingWriter.broken.clear()

    def last_deed(self: MemoryFencedLog, records: Sequence[tuple[str, bytes | None]]) -> None:
        commit(self, records)
        if any(value is not None and isinstance(decode(value), JobFinished) for _, value in records):
            BreakingWriter.broken.set()

    with run(make_job(plan), BreakingTransport(MemoryBroker())) as running:
        plan.wait_gateways(0)
        monkeypatch.setattr(MemoryFencedLog, "commit", last_deed)
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        outcome = running.wait(PATIENCE_S)
        assert outcome.ending is Ending.STOPPED
        wait_until(lambda: not running._process("op", 0).alive, "the subtask to leave")
        status = running.client.status()
        assert status is not None and (status.state, status.cause) == ("stopped", outcome.cause)


def test_the_runner_is_asked_to_end_the_task_of_a_silent_attempt() -> None:
    """Section 8: also killed on Spark, where a runner is there to do it."""
    plan, told = Plan(), threading.Event()
    killed: list[tuple[SubtaskId, str]] = []

    def on_silent(subtask: SubtaskId, task: str, cause: str) -> None:
        killed.append((subtask, task))
        told.set()

    job = make_job(plan)
    job.heartbeat_interval, job.heartbeat_timeout = 0.05, 0.2
    running = LocalJob(job, options=CoordinatorOptions(on_silent=on_silent), subtasks=False)
    with running:
        running.client.announce_run(running.run_id)
        writer = running.transport.writer()
        hello = Hello("op", 0, running.run_id, "nonce", "the task", "host", {"op": 1}, 1)
        writer.append(Partition(job.settings.topics.acks, 0), encode(hello))
        assert told.wait(PATIENCE_S)
        assert killed == [(SubtaskId("op", 0), "the task")]
        plan.wait_call("subtask_reset")
