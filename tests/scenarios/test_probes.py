"""Holes that were found by running Flink 2.3.0, as they showed there (P1 to P3); more in tests/coordinator/protocol."""

from __future__ import annotations

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import FutureFailed
from penstock.schemas.acks import CommandKind
from penstock.schemas.errors import TaskNotRunning
from penstock.schemas.events import EventFrame, FailoverPolicy, TriggerCheckpoint
from penstock.schemas.settings import OperatorSettings
from tests.coordinator.protocol.driver import S0, S1, Script


def test_p1_the_checkpoint_after_an_aborted_one_still_contains_the_unhandled_event() -> None:
    """There, the tracker was emptied for the first checkpoint, and the second counted the event as delivered."""
    script = Script.running(OperatorSettings("op", 2, on_failover=FailoverPolicy.RESET))
    stream = script.send(script.task(S0), b"e")
    script.read(script.task(S1).decline(script.trigger()))
    second = script.trigger()
    marker = script.records(S0, TriggerCheckpoint)[-1]
    assert (marker.checkpoint_id, marker.sequence) == (second, 1)  # whoever takes it without the event has a gap
    script.acknowledge(second, S0)
    script.read(script.task(S0).failed())  # the event is lost with its attempt, and so is the checkpoint
    assert isinstance(stream.failure, TaskNotRunning)
    assert script.last_id == -1


def test_p2_a_savepoint_that_its_coordinator_fails_leaves_the_checkpoint_before_it_closed() -> None:
    """There, the failing trigger of a savepoint opened the gateways of the checkpoint under way, and the notice of its
    abort raised because nobody had marked it."""
    script = Script.running(checkpoint={"max_concurrent": 2})
    first = script.trigger()
    script.auto_cut = False
    script.send(script.task(S0), b"behind the first cut")
    savepoint = script.savepoint(CommandKind.SAVEPOINT)
    script.forget()
    script.handle(FutureFailed("op", savepoint, "no directory"))
    assert script.calls == [
        effects.CallAborted("op", savepoint, "the coordinator of op failed its checkpoint future: no directory")
    ]
    assert script.slot(S0).gateway.closed == (first,)
    assert script.records(S0, EventFrame) == []
    assert list(script.pending) == [first]
    assert script.epoch.number == 1


def test_p3_under_reset_a_replaced_gateway_fails_what_it_held_and_the_next_checkpoint_goes_on() -> None:
    """There, those futures hung for ever, and the next checkpoint with them."""
    script = Script.running(OperatorSettings("op", 2, on_failover=FailoverPolicy.RESET))
    n = script.trigger()
    stream = script.send(script.task(S0), b"held")
    script.hello(S0)
    assert isinstance(stream.failure, TaskNotRunning)
    assert script.made(effects.Settle) != []
    assert script.checkpoint() > n
    assert script.events(S0) == []


def test_p4_of_two_closed_checkpoints_each_event_goes_ahead_of_the_marker_it_belongs_before() -> None:
    """There, what is held under the lower id goes when that id is opened, and the later coordinator phase waits."""
    script = Script.running(checkpoint={"max_concurrent": 2})
    first = script.trigger()
    script.send(script.task(S0), b"between")
    second = script.trigger()
    script.send(script.task(S0), b"behind both")
    script.acknowledge(first)
    assert script.events(S0) == [b"between"]
    script.acknowledge(second)
    order = [
        record.checkpoint_id if isinstance(record, TriggerCheckpoint) else "event"
        for record in script.events_log[S0]
        if isinstance(record, EventFrame | TriggerCheckpoint)
    ]
    assert order == [first, "event", second, "event"]
    assert script.events(S0) == [b"between", b"behind both"]
