"""A checkpoint from its trigger to its markers (protocol, section 7, 1 to 4)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.checkpoints import IDS_RESERVED
from penstock.coordinator.protocol.inputs import CoordinatorRaised, FutureCompleted, FutureFailed
from penstock.schemas.acks import CommandKind, RunStarted
from penstock.schemas.checkpoints import CheckpointCompleted, EpochClaimed
from penstock.schemas.events import EventFrame, TriggerCheckpoint
from penstock.schemas.settings import OperatorSettings

from .driver import INTERVAL, S0, S1, Script

TWO = {"max_concurrent": 2}


def manual(*operators: OperatorSettings, **changes: object) -> Script:
    """Checkpoint futures complete when the test says so."""
    script = Script.running(*operators, **changes)
    script.auto_cut = False
    return script


# ---- preconditions


def test_none_begins_before_every_subtask_has_a_live_attempt() -> None:
    """Section 7.1."""
    script = Script.begun()
    script.read(RunStarted("run-1", "here"))
    script.hello(S0)
    script.advance(3 * INTERVAL)
    assert script.pending == {}
    script.hello(S1)
    assert len(script.pending) == 1


def test_none_begins_while_an_attempt_is_missing() -> None:
    """Section 7.1; R60."""
    script = Script.running()
    script.read(script.task().failed())
    script.advance(3 * INTERVAL)
    assert script.pending == {}


def test_they_begin_at_the_interval() -> None:
    """Section 7.1."""
    script = Script.running()
    assert script.core.deadline() is not None
    script.advance(INTERVAL - 0.1)
    assert script.pending == {}
    script.advance(0.1)
    assert len(script.pending) == 1


def test_min_pause_counts_from_the_completion() -> None:
    """Section 7.1; R58."""
    script = Script.running(checkpoint={"min_pause": 7.0})
    n = script.trigger()
    script.advance(9.0)
    script.acknowledge(n)
    script.advance(INTERVAL - 9.0)  # the interval is over
    assert script.pending == {}
    script.advance(6.0)
    assert len(script.pending) == 1


def test_a_savepoint_does_not_wait_for_min_pause() -> None:
    """R58: it applies to periodic requests only."""
    script = Script.running(checkpoint={"min_pause": 1000.0})
    script.checkpoint()
    assert script.savepoint() in script.pending


@pytest.mark.parametrize("concurrent", [1, 2, 3])
def test_no_more_are_under_way_than_max_concurrent(concurrent: int) -> None:
    """Section 7.1."""
    script = Script.running(checkpoint={"max_concurrent": concurrent})
    for _ in range(5):
        script.advance(INTERVAL)
    assert len(script.pending) == concurrent


def test_none_begins_behind_a_stopping_savepoint() -> None:
    """Section 7.1: not stopping."""
    script = Script.running(checkpoint=TWO)
    script.savepoint(CommandKind.STOP_WITH_SAVEPOINT)
    script.advance(INTERVAL)
    assert len(script.pending) == 1


def test_none_is_called_while_another_still_awaits_a_coordinators_future() -> None:
    """Section 7.1 ◆; R40."""
    script = manual(checkpoint={"max_concurrent": 3})
    n = script.trigger()
    script.advance(INTERVAL)
    assert list(script.pending) == [n]
    script.handle(script.completed("op", n))
    assert len(script.pending) == 2


def test_without_an_interval_only_savepoints_are_taken() -> None:
    """Section 7.1."""
    script = Script.running(checkpoint={"interval": None})
    script.advance(1000.0)
    assert script.pending == {}
    assert script.savepoint() in script.pending


# ---- ids


def test_ids_rise_and_an_aborted_one_is_not_used_again() -> None:
    """Section 7.1: an id is never used twice in a job; R43."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task().decline(n))
    assert script.trigger() == n + 1


def test_a_new_epoch_begins_above_the_reserved_block() -> None:
    """Section 7.1: none of the predecessor's ids, used or not, comes again."""
    script = Script.running()
    n = script.trigger()
    reserved = script.job.history.reserved_through
    script.restart()
    script.hello_all()
    assert script.trigger() == reserved + 1 > n


def test_a_completed_checkpoint_reserves_more() -> None:
    """Section 7.1: from the block that EpochClaimed or a later CheckpointCompleted reserved."""
    script = Script.running()
    n = [script.checkpoint() for _ in range(3)][-1]
    assert script.committed(CheckpointCompleted)[-1].reserved_through == n + IDS_RESERVED


def test_when_the_block_is_used_up_another_is_committed_before_any_id_of_it_is_used() -> None:
    """Section 7.1."""
    script = Script.running(checkpoint={"tolerable_failures": 10_000})
    used = []
    for _ in range(IDS_RESERVED + 5):
        used.append(script.trigger())
        script.read(script.task().decline(used[-1]))
    assert len(set(used)) == len(used)
    claims = script.committed(EpochClaimed)
    assert len(claims) == 2
    assert claims[1].epoch == 1
    assert claims[0].reserved_through < claims[1].first_checkpoint_id <= used[-1] <= claims[1].reserved_through
    before = script.job.history.reserved_through
    script.restart()
    assert script.job.schedule.next_id == before + 1


# ---- the call and the cut


def test_the_coordinator_is_handed_no_event_from_the_call_until_its_future_completes() -> None:
    """Section 7.2."""
    script = manual()
    n = script.trigger()
    script.read(script.task().frame(b"a"), script.task(S1).frame(b"b"))
    assert script.received() == []
    script.handle(script.completed("op", n))
    assert script.received() == [b"a", b"b"]


def test_another_operators_coordinator_is_handed_events_meanwhile() -> None:
    """Section 7.2: per operator."""
    script = manual(OperatorSettings("op", 1), OperatorSettings("other", 1))
    n = script.trigger()
    script.handle(script.completed("other", n))
    script.read(script.tasks[script.settings.subtasks()[1]].frame(b"a"))
    assert script.received("other") == [b"a"]


def test_the_inbox_position_is_the_first_record_not_yet_handed_over() -> None:
    """Section 7.2."""
    script = manual()
    script.read(script.task().frame(b"before"))
    position = len(script.acks)
    n = script.trigger()
    script.read(script.task().frame(b"after"))
    script.handle(script.completed("op", n))
    script.acknowledge(n)
    (completed,) = script.committed(CheckpointCompleted)
    assert [o.inbox_position for o in completed.operators] == [position]


def test_a_gateway_is_open_until_the_cut_and_closed_from_it() -> None:
    """Section 7.3; C3.3 and C3.4."""
    script = manual()
    n = script.trigger()
    script.send(script.task(), b"before")
    assert script.events() == [b"before"]
    script.handle(script.completed("op", n))
    script.send(script.task(), b"after")
    assert script.events() == [b"before"]


def test_only_the_operator_that_was_cut_closes() -> None:
    """Section 7.3: that operator's gateways close."""
    script = manual(OperatorSettings("op", 1), OperatorSettings("other", 1))
    other = script.settings.subtasks()[1]
    n = script.trigger()
    script.handle(script.completed("op", n))
    script.send(script.task(), b"held")
    script.send(script.task(other), b"sent")
    assert (script.events(), script.events(other)) == ([], [b"sent"])


def test_a_future_completed_after_the_abort_closes_nothing() -> None:
    """Section 7.3; R46, C3.8."""
    script = manual()
    n = script.trigger()
    script.read(script.task().decline(n))
    script.handle(script.completed("op", n))
    script.send(script.task(), b"a")
    assert script.events() == [b"a"]
    assert script.dropped("late-coordinator-state") == 1


def test_a_future_that_is_completed_again_changes_nothing() -> None:
    """Section 7.3; R49."""
    script = manual()
    n = script.trigger()
    script.handle(script.completed("op", n))
    script.handle(FutureCompleted("op", n, b"another"))
    script.acknowledge(n)
    (completed,) = script.committed(CheckpointCompleted)
    state = completed.operators[0].coordinator_state
    assert state is not None
    assert state.inline == b"op@%d" % n


def test_a_future_that_fails_aborts_only_its_checkpoint() -> None:
    """Section 7.3; R44."""
    script = manual(checkpoint=TWO)
    first = script.trigger()
    script.handle(script.completed("op", first))
    second = script.trigger()
    script.handle(FutureFailed("op", second, "no"))
    assert list(script.pending) == [first]
    assert script.epoch.number == 1


def test_an_exception_raised_by_the_call_is_a_global_failover() -> None:
    """Section 7.3; R44."""
    script = manual()
    script.trigger()
    script.handle(CoordinatorRaised("op", 1, "checkpoint_coordinator", "ValueError: no"))
    assert script.epoch.number == 2


# ---- markers


def test_no_marker_before_every_coordinator_has_completed() -> None:
    """Section 7.4; R39."""
    script = manual(OperatorSettings("op", 1), OperatorSettings("other", 1))
    n = script.trigger()
    script.handle(script.completed("op", n))
    assert script.records(S0, TriggerCheckpoint) == []
    script.handle(script.completed("other", n))
    for subtask in script.settings.subtasks():
        assert [m.checkpoint_id for m in script.records(subtask, TriggerCheckpoint)] == [n]


def test_operators_without_a_coordinator_get_their_markers_too() -> None:
    """Section 7.4: every event partition of every operator."""
    script = Script.running(OperatorSettings("op", 1), OperatorSettings("bare", 1, has_coordinator=False))
    n = script.trigger()
    assert [m.checkpoint_id for m in script.records(script.settings.subtasks()[1], TriggerCheckpoint)] == [n]


def test_a_job_without_coordinators_has_its_markers_at_once() -> None:
    """Section 7.4."""
    script = Script.running(OperatorSettings("op", 1, has_coordinator=False))
    n = script.trigger()
    assert [m.checkpoint_id for m in script.records(S0, TriggerCheckpoint)] == [n]


def test_events_sent_before_the_cut_stand_before_the_marker_and_later_ones_behind_it() -> None:
    """Section 7.4; G3; C3.9."""
    script = Script.running()
    script.send(script.task(), b"0")
    first = script.trigger()
    script.send(script.task(), b"1")
    script.acknowledge(first)
    script.send(script.task(), b"2")
    second = script.trigger()
    script.send(script.task(), b"3")
    script.acknowledge(second)
    kinds = [type(r) for r in script.events_log[S0] if isinstance(r, EventFrame | TriggerCheckpoint)]
    assert kinds == [EventFrame, TriggerCheckpoint, EventFrame, EventFrame, TriggerCheckpoint, EventFrame]
    assert script.events() == [b"0", b"1", b"2", b"3"]


def test_events_after_an_aborted_checkpoint_keep_their_order() -> None:
    """C3.10."""
    script = Script.running()
    script.send(script.task(), b"0")
    first = script.trigger()
    script.send(script.task(), b"1")
    script.read(script.task(S1).decline(first))
    script.send(script.task(), b"2")
    second = script.trigger()
    script.send(script.task(), b"3")
    script.read(script.task().ack(second))
    assert script.events() == [b"0", b"1", b"2", b"3"]


def test_what_is_held_under_lower_ids_is_appended_before_the_marker() -> None:
    """Section 7.4 ◆."""
    script = Script.running(checkpoint=TWO)
    first = script.trigger()
    script.send(script.task(), b"between")
    assert script.events() == []
    second = script.trigger()
    log = script.events_log[S0]
    markers = {m.checkpoint_id: log.index(m) for m in script.records(S0, TriggerCheckpoint)}
    (frame,) = script.records(S0, EventFrame)
    assert markers[first] < log.index(frame) < markers[second]


def test_the_marker_carries_the_sequence_of_the_next_frame() -> None:
    """Section 5.4."""
    script = Script.running()
    script.send(script.task(), b"a", b"b")
    script.trigger()
    (marker,) = script.records(S0, TriggerCheckpoint)
    assert marker.sequence == 2


def test_marks_only_rise_across_attempts_and_checkpoints() -> None:
    """R7, probe P5: a regressing id would be an error; ids never regress, whatever attempts come in between."""
    script = Script.running()
    completed = []
    for _ in range(3):
        completed.append(script.checkpoint())
        script.hello()
    assert completed == sorted(set(completed))
