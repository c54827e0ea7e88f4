"""Flink's coordinator holder (C3), scenario by scenario, where no other test plays it.

Two outcomes differ by design. There a checkpoint waits until every event sent before the cut is acknowledged, because
its barriers travel on other ways than events; here the marker stands behind those events in the same partition, so
nothing need be waited for: who reaches the marker has handled them. And a lost event is not one attempt's failure:
the log takes it or everybody is rolled back.
"""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AppendFailed, FutureCompleted
from penstock.coordinator.protocol.waiting import waits_for
from penstock.schemas.checkpoints import CheckpointCompleted
from penstock.schemas.errors import TaskNotRunning
from penstock.schemas.events import EventFrame, FailoverPolicy, TriggerCheckpoint
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings
from tests.coordinator.protocol.driver import S0, S1, Script

S2 = SubtaskId("op", 2)
THREE = OperatorSettings("op", 3)


def manual(*operators: OperatorSettings, **changes: object) -> Script:
    """Checkpoint futures complete when the test says so."""
    script = Script.running(*operators, **changes)
    script.auto_cut = False
    return script


def test_a_checkpoint_is_under_way_until_its_coordinator_has_completed() -> None:
    """C3.1."""
    script = manual(THREE)
    n = script.trigger()
    assert script.pending[n].uncut == {"op"}
    assert waits_for(script.job, script.pending[n]) == "the coordinator of op to complete its checkpoint future"
    assert script.records(S0, TriggerCheckpoint) == []


def test_what_the_coordinator_completed_with_is_what_the_checkpoint_holds() -> None:
    """C3.2: to the byte."""
    script = manual(THREE)
    n = script.trigger()
    state = bytes([11, 22, 33, 44])
    script.handle(FutureCompleted("op", n, state))
    script.acknowledge(n)
    (completed,) = script.committed(CheckpointCompleted)
    handle = completed.operators[0].coordinator_state
    assert handle is not None
    assert handle.inline == state


def test_an_event_sent_before_the_future_completes_passes_once_whatever_is_acknowledged() -> None:
    """C3.3: an acknowledgement that comes too early releases nothing a second time."""
    script = manual(THREE)
    n = script.trigger()
    script.send(script.task(S1), b"before the cut")
    script.read(script.task(S1).snapshot_taken(n), script.task(S1).ack(n))
    assert script.events(S1) == [b"before the cut"]
    assert script.pending[n].acks == {}


def test_an_abort_releases_what_was_held_for_it() -> None:
    """C3.5."""
    script = Script.running(THREE)
    n = script.trigger()
    script.send(script.task(S0), b"held")
    assert script.events(S0) == []
    script.read(script.task(S2).decline(n))
    assert script.events(S0) == [b"held"]
    assert n not in script.pending


def test_a_future_completed_after_its_abort_holds_nothing_and_sends_no_marker() -> None:
    """C3.8; R41, R46: also behind a newer checkpoint that went well."""
    script = manual(THREE)
    aborted = script.trigger()
    script.read(script.task(S1).decline(aborted))
    newer = script.trigger()
    script.handle(script.completed("op", newer))
    script.read(script.task(S0).snapshot_taken(newer))
    script.handle(script.completed("op", aborted))
    script.send(script.task(S0), b"goes at once")
    assert script.events(S0) == [b"goes at once"]
    assert [m.checkpoint_id for m in script.records(S0, TriggerCheckpoint)] == [newer]


def test_a_coordinators_part_waits_for_no_event_and_the_checkpoint_still_contains_them_all() -> None:
    """C3.12; R74. Upstream the coordinator's part waits for every acknowledgement, so one slow subtask keeps all
    barriers back. Here the markers leave at once, behind the event; the subtask's own acknowledgement stands behind its
    handling."""
    script = manual(THREE)
    stream = script.send(script.task(S0), b"not handled yet")
    n = script.trigger()
    script.handle(script.completed("op", n))
    log = script.events_log[S0]
    (frame,), (marker,) = script.records(S0, EventFrame), script.records(S0, TriggerCheckpoint)
    assert log.index(frame) < log.index(marker)
    assert marker.sequence == 1
    script.acknowledge(n, S0)
    assert (n in script.pending, stream.handled_through) == (True, 0)
    script.read(script.task(S0).ack(n, handled_through=1))
    assert (script.last_id, stream.handled_through) == (n, 1)


def test_an_event_that_fails_behind_the_trigger_takes_its_checkpoint_along() -> None:
    """C3.15; R75: every other part of it was there already."""
    script = Script.running(OperatorSettings("op", 3, on_failover=FailoverPolicy.RESET))
    stream = script.send(script.task(S0), b"lost with its attempt")
    n = script.trigger()
    script.acknowledge(n, S0)
    script.read(script.task(S0).failed())
    assert isinstance(stream.failure, TaskNotRunning)
    assert n not in script.pending
    assert script.last_id == -1


@pytest.mark.parametrize("how", ["attempt fails", "broker refuses"])
def test_no_checkpoint_slips_between_the_failure_of_an_event_and_what_it_leads_to(how: str) -> None:
    """C3.16; R77: the failed future and the aborted checkpoint are one decision; no acknowledgement comes between."""
    script = Script.running(OperatorSettings("op", 2, on_failover=FailoverPolicy.RESET))
    stream = script.send(script.task(S0), b"lost")
    n = script.trigger()
    script.read(script.task(S0).ack(n, handled_through=0))
    last = script.task(S1).ack(n)
    script.forget()
    decided = script.read(script.task(S0).failed()) if how == "attempt fails" else script.handle(AppendFailed(1, "no"))
    assert stream.failure is not None
    assert [e.checkpoint_id for e in decided if isinstance(e, effects.CallAborted)] == [n]
    script.read(last)
    assert script.committed(CheckpointCompleted) == []


def test_each_subtask_releases_its_own_events_and_nothing_goes_twice() -> None:
    """C3.17; R16."""
    script = Script.running(THREE)
    n = script.trigger()
    script.send(script.task(S0), b"for 0")
    script.send(script.task(S1), b"for 1")
    script.read(script.task(S1).snapshot_taken(n))
    assert (script.events(S0), script.events(S1)) == ([], [b"for 1"])
    script.read(script.task(S0).snapshot_taken(n))
    script.acknowledge(n)
    assert script.last_id == n
    assert (script.events(S0), script.events(S1), script.events(S2)) == ([b"for 0"], [b"for 1"], [])


def test_the_marker_alone_opens_no_gateway() -> None:
    """C3, history. The first version opened as soon as barriers were on their way; that is right for sources only."""
    script = Script.running(THREE)
    n = script.trigger()
    assert [m.checkpoint_id for m in script.records(S0, TriggerCheckpoint)] == [n]
    script.send(script.task(S0), b"held")
    script.read(script.task(S0).heartbeat())
    assert script.events(S0) == []
    assert script.slot(S0).gateway.closed == (n,)
