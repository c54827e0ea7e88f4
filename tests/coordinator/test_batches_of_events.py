"""``send_events``: a batch is one send, towards bounds, cuts and its future (protocol, section 6)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.schemas.errors import Backpressure, ConfigurationError, EventTooLarge, RolledBack, TaskNotRunning

from .jobs import PATIENCE_S, Handler, Plan, make_job, run, wait_checkpoint, wait_recovered


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def test_a_batch_is_handled_in_its_order_between_the_sends_around_it_and_one_future_tells() -> None:
    """P-6.1.5."""
    plan = Plan()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        gateway = plan.gateways[0]
        gateway.send_event(b"before")
        future = gateway.send_events((b"a", b"b", b"c"))
        gateway.send_event(b"after").result(PATIENCE_S)
        future.result(PATIENCE_S)
        gateway.send_events([]).result(PATIENCE_S)  # settles with what was sent before
        assert [event for _, event in plan.handled] == [b"before", b"a", b"b", b"c", b"after"]


def test_a_batch_is_encoded_in_the_call() -> None:
    plan = Plan()
    with run(make_job(plan)):
        plan.wait_gateways(0)
        events = [b"a", b"b"]
        future = plan.gateways[0].send_events(events)
        events[:] = [b"changed"]
        future.result(PATIENCE_S)
        assert [event for _, event in plan.handled] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("batch", "error", "what"),
    [
        ([b"a", {"not": "bytes"}], ConfigurationError, "expected bytes, not dict"),
        (b"ab", ConfigurationError, "a list of events, not a bytes"),
        (iter([b"a"]), ConfigurationError, "a list of events, not a list_iterator"),
        ([b"a", bytes(20_000_000)], EventTooLarge, "send a reference"),
        (numbers(0, 6), EventTooLarge, "a batch of 6 events to op/0: half of max_unhandled is the most, 5 events"),
        ([bytes(400), bytes(400)], EventTooLarge, "a batch of 800 bytes to op/0: half of max_unsent_bytes"),
    ],
)
def test_a_batch_that_is_refused_is_not_sent_in_part(batch: Any, error: type[Exception], what: str) -> None:
    """P-6.4.5."""
    plan = Plan()
    with run(make_job(plan, max_unhandled=10, max_unsent_bytes=1_000)):
        plan.wait_gateways(0)
        with pytest.raises(error, match=what):
            plan.gateways[0].send_events(batch)
        plan.gateways[0].send_events([b"next", b"last"]).result(PATIENCE_S)
        assert [event for _, event in plan.handled] == [b"next", b"last"]


def test_the_largest_batch_finds_room_once_on_writable_says_so() -> None:
    """P-6.4.5: so a sender that waits for on_writable never waits for ever."""
    plan, writable = Plan(), threading.Event()
    stalled, release = threading.Event(), threading.Event()

    class Stalling(Handler):
        def handle_operator_events(self, events: list[bytes]) -> None:
            stalled.set()
            assert release.wait(PATIENCE_S)
            super().handle_operator_events(events)

    with run(make_job(plan, max_unhandled=10, interval=None, handler=Stalling)):
        plan.wait_gateways(0)
        gateway = plan.gateways[0]
        gateway.send_events(numbers(0, 5))
        gateway.send_event(b"5")
        assert stalled.wait(PATIENCE_S)
        with pytest.raises(Backpressure, match=r"a batch of 5 events to op/0 finds 6 of 10 events taken \(max_unhan"):
            gateway.send_events(numbers(6, 11))
        assert plan.coordinator is not None
        plan.coordinator.context.on_writable(0, writable.set)
        release.set()
        assert writable.wait(PATIENCE_S)
        gateway.send_events(numbers(6, 11)).result(PATIENCE_S)
        assert [event for _, event in plan.handled] == numbers(0, 11)


@pytest.mark.parametrize("policy", ["replay", "reset", "global"])
def test_the_future_of_a_batch_settles_by_policy_when_an_event_in_it_fails_the_subtask(policy: str) -> None:
    """P-6.3.2, of a batch."""
    plan = Plan()
    plan.poison[b"3"] = 1
    with run(make_job(plan, on_failover=policy)) as running:
        plan.wait_gateways(0)
        future = plan.gateways[0].send_events(numbers(0, 6))
        if policy == "replay":
            future.result(PATIENCE_S)
        else:
            with pytest.raises(TaskNotRunning if policy == "reset" else RolledBack):
                future.result(PATIENCE_S)
        wait_recovered(running, plan)


@pytest.mark.parametrize("takes_lists", [True, False])
def test_no_snapshot_comes_into_a_batch(takes_lists: bool) -> None:
    """P-6.1.5: batches of several frames, sent by two threads without a lock, while checkpoints are taken."""
    plan, over = Plan(), threading.Event()
    size = 50
    snapshots: list[list[bytes]] = []
    lists: list[int] = []

    class Counts(Handler):
        def snapshot_state(self, checkpoint_id: int) -> bytes:
            snapshots.append(list(self.events))
            return super().snapshot_state(checkpoint_id)

    class CountsLists(Counts):
        def handle_operator_events(self, events: list[bytes]) -> None:
            lists.append(len(events))
            super().handle_operator_events(events)

    handler = CountsLists if takes_lists else Counts
    job = make_job(plan, interval=0.02, handler=handler)
    job.frame_events_max = 7
    with run(job) as running:
        plan.wait_gateways(0)
        gateway = plan.gateways[0]

        def send(thread: int) -> None:
            batch = 0
            while not over.is_set():
                gateway.send_events([b"%d-%d" % (thread, batch)] * size).result(PATIENCE_S)
                batch += 1

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            wait_checkpoint(running, plan)
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert any(snapshots)
    for events in snapshots:
        assert [events[at : at + size] for at in range(0, len(events), size)] == [
            [events[at]] * size for at in range(0, len(events), size)
        ]
    if takes_lists:
        assert max(lists) > 1
