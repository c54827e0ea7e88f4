"""The cut between a coordinator's sends and its checkpoint, on real threads (protocol, sections 6 and 7.3; R20)."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.coordinator import mailbox
from penstock.coordinator.futures import Ledger
from penstock.coordinator.mailbox import Mailbox
from penstock.schemas.acks import OperatorEventFrame
from penstock.schemas.codec import decode
from penstock.schemas.events import TriggerCheckpoint
from penstock.schemas.frames import FRAME_BYTES_MAX
from penstock.testing.local import LocalJob
from penstock.transport.ports import Partition

from .jobs import PATIENCE_S, Handler, Plan, events_of, make_job, records, run, wait_checkpoint, wait_until


class Sender:
    """A thread of the coordinator's own: numbers its events and counts them, under one lock with the cut."""

    def __init__(self, plan: Plan, subtasks: int) -> None:
        self.plan = plan
        self.subtasks = subtasks
        self.lock = threading.Lock()
        self.sent = 0
        self.at_cut: dict[int, int] = {}
        """By checkpoint: how many events to each subtask belong before it."""

    def send(self, steps: int) -> None:
        for _ in range(steps):
            for subtask in range(self.subtasks):
                self.plan.gateways[subtask].send_event(b"%d" % self.sent)
            self.sent += 1

    def complete(self, n: int, result: Any) -> None:
        self.at_cut[n] = self.sent
        result.complete(b"%d" % self.sent)


def assert_cuts_are_exact(running: LocalJob, sender: Sender) -> None:
    """In front of each marker stands what its checkpoint counts, to the last event (older ones may be truncated)."""
    for subtask in range(sender.subtasks):
        log = records(running.transport, running.job, subtask)
        markers = [(at, record) for at, record in enumerate(log) if isinstance(record, TriggerCheckpoint)]
        assert markers
        for at, marker in markers:
            expected = [b"%d" % i for i in range(sender.at_cut[marker.checkpoint_id])]
            found = events_of(log[:at])
            assert found == expected[len(expected) - len(found) :], f"{marker}, subtask {subtask}"
            assert marker.sequence == len(expected)


def test_a_thread_that_completes_and_sends_in_one_lock_section_while_the_callback_stalls() -> None:
    """C3.13: the events in front of the marker are exactly those that the checkpoint counts."""
    plan = Plan()
    sender = Sender(plan, 1)

    def checkpoint(_: Any, n: int, result: Any) -> None:
        done = threading.Event()

        def work() -> None:
            with sender.lock:
                sender.send(5)
                sender.complete(n, result)
                sender.send(5)
            done.set()

        threading.Thread(target=work).start()
        assert done.wait(PATIENCE_S)  # the callback stalls meanwhile

    plan.does["checkpoint_coordinator"] = checkpoint
    with run(make_job(plan, interval=0.02)) as running:
        plan.wait_gateways(0)
        for _ in range(5):
            wait_checkpoint(running, plan)
        assert_cuts_are_exact(running, sender)


def test_a_thread_that_flushes_many_events_and_then_completes() -> None:
    """C3.14: three events a step to three subtasks; all of them stand in front of the marker."""
    plan = Plan()
    sender = Sender(plan, 3)

    def checkpoint(_: Any, n: int, result: Any) -> None:
        def work() -> None:
            with sender.lock:
                sender.send(20)
                sender.complete(n, result)

        threading.Thread(target=work).start()

    plan.does["checkpoint_coordinator"] = checkpoint
    with run(make_job(plan, parallelism=3, interval=0.02)) as running:
        plan.wait_gateways(0, 1, 2)
        for _ in range(5):
            wait_checkpoint(running, plan)
        assert_cuts_are_exact(running, sender)
        for subtask in range(3):
            plan.wait_handled(b"99", subtask)
            assert [e for s, e in plan.handled if s == subtask][:100] == [b"%d" % i for i in range(100)]


def test_sends_from_many_threads_are_all_handled_once() -> None:
    """Section 6: send_event may be called from any thread; G2."""
    plan = Plan()
    with run(make_job(plan, interval=0.02)):
        plan.wait_gateways(0)
        gateway = plan.gateways[0]
        sends = [
            threading.Thread(target=lambda t=t: [gateway.send_event(b"%d-%d" % (t, i)) for i in range(200)])
            for t in range(4)
        ]
        for thread in sends:
            thread.start()
        for thread in sends:
            thread.join(PATIENCE_S)
        gateway.send_event(b"last").result(PATIENCE_S)
        for t in range(4):
            mine = [e for _, e in plan.handled if e.startswith(b"%d-" % t)]
            assert mine == [b"%d-%d" % (t, i) for i in range(200)]


class Flood(Handler):
    """Sends more to its coordinator, at once, than may be withheld from it."""

    EVENTS = tuple(b"%02d" % i + bytes(FRAME_BYTES_MAX // 2) for i in range(24))

    def open(self, context: Any) -> None:
        self.context = context
        for event in self.EVENTS:
            context.send_event_to_coordinator(event)


def test_a_coordinator_that_is_slower_than_its_subtask_completes_its_checkpoints() -> None:
    """Section 6: the completion of a future overtakes the records that were read meanwhile (G6)."""
    plan, all_written = Plan(), threading.Event()
    plan.does["handle_event_from_operator"] = lambda _, subtask, event: all_written.wait(PATIENCE_S)
    with run(make_job(plan, interval=0.05, max_held_bytes=4 * FRAME_BYTES_MAX, handler=Flood)) as running:
        acks = Partition(running.job.settings.topics.acks, 0)

        def written() -> bool:
            found = (decode(record.value) for record in running.transport.read_all(acks))
            return sum(r.count for r in found if isinstance(r, OperatorEventFrame)) == len(Flood.EVENTS)

        wait_until(written, "everything that the subtask sends")
        all_written.set()
        wait_checkpoint(running, plan)
        plan.wait_call("handle_event_from_operator", len(Flood.EVENTS))
        assert plan.count("notify_checkpoint_aborted") == 0


def test_a_cut_that_was_posted_is_not_overtaken_by_an_event_that_its_thread_sends_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Section 6: whoever is lent the coordinator's turn finds everything done that was posted before."""
    monkeypatch.setattr(mailbox, "_LEND_PAUSE_S", 0.0)
    alone: list[bool] = []
    lend = Mailbox._send_alone

    def counted(box: Mailbox, ledger: Ledger, event: bytes) -> int | None:
        sequence = lend(box, ledger, event)
        alone.append(sequence is not None)
        return sequence

    monkeypatch.setattr(Mailbox, "_send_alone", counted)
    plan = Plan()
    sender, asked = Sender(plan, 1), deque[tuple[int, Any]]()
    plan.does["checkpoint_coordinator"] = lambda _, n, result: asked.append((n, result))

    def one_at_a_time() -> None:
        while len(sender.at_cut) < 10 or alone.count(True) < 50:
            if asked:
                sender.complete(*asked.popleft())
            sender.send(1)
            plan.wait_handled(b"%d" % (sender.sent - 1))

    with run(make_job(plan, interval=0.02)) as running:
        plan.wait_gateways(0)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(one_at_a_time).result(3 * PATIENCE_S)
        assert_cuts_are_exact(running, sender)
    assert [e for _, e in plan.handled] == [b"%d" % i for i in range(sender.sent)]
