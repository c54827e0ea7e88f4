"""Every record fits the broker, whatever user code sends, answers, raises or has for a state (protocol, G5, G6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from penstock.coordinator.api import CheckpointResult, EventContext, OperatorCoordinator
from penstock.schemas.settings import CheckpointSettings, RestartStrategy
from penstock.subtask_client.api import Idle, PollResult, Subtask
from penstock.testing.local import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .jobs import Plan, make_job, run, wait_checkpoint, wait_recovered, wait_status, wait_until

TOO_LONG = "x" * 1_200_000


def test_a_request_refused_at_any_length_concerns_its_sender_alone() -> None:
    plan = Plan()

    def refuse(*_: object) -> None:
        raise ValueError(TOO_LONG)

    plan.does["handle_request"] = refuse
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        reply = running.client.request("op", b"?", timeout_s=10.0)
        assert not reply.accepted and reply.outcome.startswith("ValueError: xxx") and len(reply.outcome) < 5_000
        wait_recovered(running, plan)
        assert wait_status(running, lambda s: s.state == "running").epoch == 1


def test_an_answer_larger_than_a_record_is_refused_with_that_reason() -> None:
    plan = Plan()
    with run(make_job(plan, codec=_Inflating())) as running:
        plan.wait_gateways(0)
        reply = running.client.request("op", b"?", timeout_s=10.0)
        assert not reply.accepted and "EventTooLarge" in reply.outcome


class _Inflating:
    """Makes answers large and leaves everything else as it is."""

    def encode(self, value: bytes) -> bytes:
        return bytes(1_200_000) if value.startswith(b"answer") else value

    def decode(self, data: bytes) -> bytes:
        return data


def test_what_a_coordinator_raises_may_be_long_and_no_unicode() -> None:
    plan, texts = Plan(), [TOO_LONG, "a name: \udcff"]

    def boom(*_: object) -> None:
        if texts:
            raise ValueError(texts.pop())

    plan.does["notify_checkpoint_complete"] = boom
    with run(make_job(plan)) as running:
        wait_until(lambda: not texts, "both errors")
        wait_recovered(running, plan)
        status = wait_status(running, lambda s: s.epoch == 3)
        assert status.last_failure.startswith("coordinator of op raised in notify_checkpoint_complete: ValueError: xxx")
        assert plan.count("start") == 1, "a global failover, not another instance"


class Talker(Subtask):
    """Sends two megabytes with each snapshot, numbered."""

    def open(self, context: Any) -> None:
        self.context, self.sent = context, 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self.context.send_event_to_coordinator(b"%d" % self.sent + bytes(50_000))
            self.sent += 1

    def poll(self) -> PollResult:
        self.send(1)
        return Idle(0.01)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        self.send(40)  # behind the coordinator's cut, and part of this checkpoint
        return b"%d" % self.sent

    def restore_state(self, checkpoint_id: int, state: bytes) -> None:
        self.sent = int(state)


class Listener(OperatorCoordinator):
    received = 0
    wrong = ""
    calls = 0

    def handle_event_from_operator(self, subtask: int, attempt: int, event: bytes, context: EventContext) -> None:
        Listener.calls += 1
        if int(event.split(b"\0")[0]) != self.received:
            Listener.wrong = f"{event[:10]!r} instead of {self.received}"
        self.received += 1

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(b"%d" % self.received)

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self.received = int(state or 0)


def test_a_savepoint_whose_inbox_is_larger_than_a_record_completes_and_restores() -> None:
    """Section 7.9: its inbox range is copied into it, however many records that takes."""
    job = penstock.Job(
        "talk", checkpoint=CheckpointSettings(interval=None), restart=RestartStrategy(budget=3), heartbeat_interval=0.1
    )
    job.operator("op", coordinator=Listener, subtask=Talker, parallelism=1, on_failover="global")
    transport = MemoryTransport(MemoryBroker())
    Listener.wrong, Listener.calls = "", 0
    with run(job, transport) as running:
        wait_until(lambda: Listener.calls > 5, "events")
        sizes = []
        for _ in range(5):
            reply = running.client.savepoint(timeout_s=15.0)
            assert reply.accepted, reply.outcome
            snapshots = running.client.history().checkpoints[reply.checkpoint_id].subtasks.values()
            sizes.append(sum(len(part.payload) for snapshot in snapshots for part in snapshot.inbox))
        assert max(sizes) > transport.max_record_bytes, "else this test shows nothing"
        assert running.client.stop(savepoint=True, timeout_s=15.0).accepted
    before = Listener.calls
    with run(job, transport):
        wait_until(lambda: Listener.calls > before + 50, "events after the restore")
    assert not Listener.wrong


class Heavy(OperatorCoordinator):
    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(bytes(120_000))


def test_inline_states_of_many_coordinators_share_one_record(tmp_path: Path) -> None:
    """What does not fit goes through state storage."""
    job = penstock.Job(
        "many", checkpoint=CheckpointSettings(interval=0.05), heartbeat_interval=0.1, state_storage=tmp_path.as_uri()
    )
    for index in range(12):
        job.operator(f"op{index}", coordinator=Heavy, subtask=Subtask, parallelism=1)
    with LocalJob(job) as running:
        running.wait_for(lambda s: s.checkpoints_completed >= 3, 20.0)
        last = running.client.history().last
        assert last is not None
        handles = [operator.coordinator_state for operator in last.header.operators]
        assert {h.size for h in handles if h is not None} == {120_000}
        assert 0 < sum(h is not None and h.inline is not None for h in handles) < 12


def test_frames_fit_a_broker_that_takes_small_records() -> None:
    plan = Plan()
    transport = MemoryTransport(MemoryBroker(max_record_bytes=20_000))
    job = make_job(plan, checkpoint={"inline_state_max": 100}).renamed("small", frame_bytes_max=2_000_000)
    with run(job, transport) as running:
        plan.wait_gateways(0)
        last: list[Any] = []

        def burst(*_: object) -> None:
            for index in range(20_000):
                last[:] = [plan.gateways[0].send_event(b"%d" % index if index % 2 else b"")]

        assert plan.coordinator is not None
        plan.coordinator.context.run_in_coordinator(burst)
        wait_until(lambda: last and last[0].done(), "the last event")
        status = wait_status(running, lambda s: s.state == "running")
        assert last[0].exception() is None and "did not take" not in status.last_failure
        assert [e for _, e in plan.handled if e][:10_000] == [b"%d" % i for i in range(1, 20_000, 2)]


def test_a_small_broker_gets_small_parts_and_merged_frames(tmp_path: Path) -> None:
    """Held events are joined into frames that fit, and a checkpoint of many subtasks into parts that do."""
    plan = Plan()
    transport = MemoryTransport(MemoryBroker(max_record_bytes=6_000))
    released: list[Any] = []

    def cut(_: object, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(b"")
        if not released and 0 in plan.gateways:
            released.extend(plan.gateways[0].send_event(bytes(500)) for _ in range(100))  # held

    plan.does["checkpoint_coordinator"] = cut
    with run(make_job(plan, parallelism=40, state_storage=tmp_path.as_uri()), transport) as running:
        plan.wait_gateways(*range(40))
        wait_until(lambda: released and all(f.done() for f in released), "held events")
        wait_checkpoint(running, plan)
        assert not [f.exception() for f in released if f.exception()]
        assert wait_status(running, lambda s: s.state == "running").epoch == 1
