"""Acks, the opening of gateways, and the commit that completes a checkpoint (protocol, sections 6 and 7.6, 7.7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AckRead, Committed, StateNotStored, StateStored, Tick
from penstock.coordinator.protocol.pending import Step
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart
from penstock.schemas.events import CheckpointAborted, EventFrame
from penstock.schemas.events import CheckpointCompleted as CompletedNotice
from penstock.schemas.settings import OperatorSettings
from penstock.schemas.state import StateHandle

from .driver import S0, S1, Script, names

TWO = {"max_concurrent": 2}


# ---- opening


@pytest.mark.parametrize("kind", ["snapshot_taken", "ack"])
def test_a_gateway_opens_with_the_subtasks_own_snapshot_or_ack(kind: str) -> None:
    """Section 6: the first of SnapshotTaken(n) and CheckpointAck(n); C3.6."""
    script = Script.running()
    n = script.trigger()
    script.send(script.task(), b"held")
    script.read(getattr(script.task(), kind)(n))
    assert script.events() == [b"held"]


def test_an_ack_of_one_subtask_releases_nothing_of_another() -> None:
    """Section 6, per subtask; R16."""
    script = Script.running()
    n = script.trigger()
    script.send(script.task(S0), b"for 0")
    script.send(script.task(S1), b"for 1")
    script.read(script.task(S1).ack(n))
    assert (script.events(S0), script.events(S1)) == ([], [b"for 1"])


def test_an_abort_opens_by_id() -> None:
    """Section 6: aborting one checkpoint never opens another's gateways. Probe P2, C3.5."""
    script = Script.running(checkpoint=TWO)
    first = script.trigger()
    script.send(script.task(), b"after the first cut")
    second = script.trigger()
    script.send(script.task(), b"after the second cut")
    script.read(script.task(S1).decline(second))
    assert list(script.pending) == [first]
    assert script.slot().gateway.closed == (first,)
    assert script.events() == [b"after the first cut"]  # ahead of the marker of the second
    script.read(script.task().snapshot_taken(first))
    assert script.events() == [b"after the first cut", b"after the second cut"]


def test_a_late_snapshot_notice_for_a_checkpoint_that_is_over_is_a_no_op() -> None:
    """Section 6; R11, R12."""
    script = Script.running()
    n = script.checkpoint()
    script.forget()
    script.read(script.task().snapshot_taken(n), script.task().snapshot_taken(n + 77))
    assert script.effects == []


def test_completion_opens_what_no_snapshot_notice_had_opened() -> None:
    """Section 6; R72."""
    script = Script.running()
    n = script.trigger()
    script.send(script.task(), b"held")
    script.acknowledge(n)
    assert script.events() == [b"held"]
    assert script.slot().gateway.closed == ()


def test_a_new_attempts_gateway_knows_nothing_of_older_checkpoints() -> None:
    """R1, R12: a late notice for a checkpoint from before the reset must not raise."""
    script = Script.running()
    n = script.trigger()
    script.hello()
    script.read(script.task().snapshot_taken(n), script.task().ack(n))
    assert script.dropped("late-ack") == 1
    assert script.ended is None


# ---- identity


def test_acks_count_by_identity_not_by_number() -> None:
    """Section 7.7: two from one subtask are not one from each; R49."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task().ack(n), script.task().ack(n))
    assert n in script.pending
    assert script.dropped("repeated-ack") == 1
    script.read(script.task(S1).ack(n))
    assert script.last_id == n


def test_an_ack_of_an_older_attempt_is_not_counted_for_its_successor() -> None:
    """Section 7.7; section 11: not counted for a successor."""
    script = Script.running()
    older = script.task()
    script.hello()
    n = script.trigger()
    ack = replace(script.task().ack(n), sender=replace(script.task().sender, attempt=older.attempt))
    script.read(ack, script.task(S1).ack(n))
    assert n in script.pending
    assert script.dropped("stale-CheckpointAck") == 1


def test_an_ack_of_an_older_generation_is_not_counted() -> None:
    """Section 7.7."""
    script = Script.running()
    script.hello()
    n = script.trigger()
    sender = script.task().sender
    script.read(script.task().ack(n, sender=replace(sender, generation=sender.generation - 1)))
    assert script.pending[n].acks == {}


def test_an_ack_before_the_markers_is_not_believed() -> None:
    """Section 7.4: nothing can have been snapshotted yet."""
    script = Script.running()
    script.auto_cut = False
    n = script.trigger()
    script.read(script.task().ack(n))
    assert script.pending[n].acks == {}


def test_a_late_ack_is_ignored_and_its_stored_state_released() -> None:
    """Section 11: late ones ignored; section 7.8: stored state of n is released."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task(S1).decline(n))
    script.forget()
    script.read(script.task().ack(n, stores=True))
    assert script.made(effects.DeleteStates) == [effects.DeleteStates((script.task().stored(n).location,))]
    assert script.last_id == -1


def test_a_repeated_ack_of_a_completed_checkpoint_releases_nothing() -> None:
    """Section 11: duplicated; section 7.9: only what a committed discard names is deleted."""
    script = Script.running()
    n = script.trigger()
    script.acknowledge(n, stores=True)
    script.forget()
    script.read(script.task().ack(n, stores=True))
    assert script.made(effects.DeleteStates) == []


# ---- completion


def test_the_commit_holds_all_parts_positions_and_states() -> None:
    """Section 7.7; section 3."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task(S0).frame(b"a", b"b", b"c", b"d"))
    script.read(script.task(S0).ack(n, event_position=11, handled_through=0))
    offset = len(script.acks)
    script.read(script.task(S1).ack(n, state=None))
    (completed,) = script.committed(CheckpointCompleted)
    snapshots = [s for part in script.committed(CheckpointPart) for s in part.subtasks]
    assert (completed.checkpoint_id, completed.epoch, completed.parts) == (n, 1, 1)
    assert [s.subtask for s in snapshots] == [0, 1]
    assert (snapshots[0].event_position, snapshots[0].sent_sequence) == (11, 4)
    assert (snapshots[1].state, snapshots[1].ack_offset) == (None, offset)


def test_a_large_checkpoint_is_several_records_of_one_transaction() -> None:
    """Section 3."""
    script = Script.running(OperatorSettings("op", 8))
    n = script.trigger()
    script.forget()
    script.acknowledge(n, state=StateHandle(100_000, inline=bytes(100_000)))
    (commit,) = script.made(effects.Commit)
    parts = [r for _, r in commit.records if isinstance(r, CheckpointPart)]
    assert len(parts) > 1
    assert script.committed(CheckpointCompleted)[0].parts == len(parts)
    assert all(len(part.subtasks) <= 3 for part in parts)


def test_between_the_start_of_the_commit_and_its_outcome_it_is_neither_pending_nor_completed() -> None:
    """Section 7.7 ◆: the coordinator handles nothing else."""
    script = Script.running(OperatorSettings("op", 1))
    n = script.trigger()
    ack = script.task().ack(n)
    offset = script.write(ack)
    decided = script.core.handle(AckRead(offset, 0, ack), script.now)
    assert isinstance(decided[-1], effects.Commit)
    assert script.pending[n].step is Step.COMMITTING
    assert script.last_id == -1
    assert script.core.deadline() is None
    with pytest.raises(AssertionError, match="commit is under way"):
        script.core.handle(Tick(), script.now)
    assert [e for e in decided if isinstance(e, effects.CallComplete | effects.DeleteStates | effects.Truncate)] == []
    script.core.handle(Committed(), script.now)
    assert script.last_id == n


def test_after_the_commit_older_ones_are_aborted_then_gateways_open_then_everybody_is_told() -> None:
    """Section 7.7; R50, R51, R53."""
    script = Script.running(checkpoint=TWO)
    script.trigger()
    second = script.trigger()
    script.send(script.task(), b"held")
    script.read(script.task().ack(second))
    script.send(script.task(S1), b"held too")
    script.forget()
    script.read(script.task(S1).ack(second))
    assert names(script.calls) == ["aborted", "complete"]
    assert [type(r) for r in script.appended(S0)] == [EventFrame, CheckpointAborted, CompletedNotice]
    assert [type(r) for r in script.appended(S1)] == [EventFrame, CheckpointAborted, CompletedNotice]
    assert list(script.pending) == []


def test_an_older_one_may_still_complete_first() -> None:
    """Section 7: several may await acks."""
    script = Script.running(checkpoint=TWO)
    first, second = script.trigger(), script.trigger()
    script.acknowledge(first)
    assert script.last_id == first
    script.acknowledge(second)
    assert script.last_id == second


def test_a_savepoint_is_never_subsumed_and_completes_behind_a_newer_checkpoint() -> None:
    """Section 7.7: older pending ones are aborted, never savepoints. Section 2: the last
    completed one is the highest id on the line, whichever completed last."""
    script = Script.running(checkpoint=TWO)
    savepoint = script.savepoint()
    newer = script.trigger()
    script.acknowledge(newer)
    assert (list(script.pending), script.last_id) == ([savepoint], newer)
    script.acknowledge(savepoint)
    assert set(script.job.history.checkpoints) == {savepoint, newer}
    assert script.last_id == newer
    assert script.hello().start.checkpoint_id == newer
    script.restart()
    assert script.last_id == newer


def test_completion_is_told_only_after_every_event_that_belongs_to_it() -> None:
    """Section 7.7: also where the coordinator owes the next checkpoint's future."""
    script = Script.running(checkpoint=TWO)
    first = script.trigger()
    script.read(script.task(S0).ack(first))
    script.auto_cut = False
    second = script.trigger()
    script.forget()
    script.read(script.task(S1).frame(b"belongs to the first"))
    script.read(script.task(S1).ack(first))
    assert script.calls == []
    script.handle(script.completed("op", second))
    assert names(script.calls) == ["events", "complete"]


def test_every_coordinator_is_told_and_operators_without_one_are_not() -> None:
    """Section 7.7."""
    script = Script.running(
        OperatorSettings("op", 1), OperatorSettings("other", 1), OperatorSettings("bare", 1, has_coordinator=False)
    )
    script.checkpoint()
    assert [(name, call.operator) for name, call in zip(names(script.calls), script.calls, strict=True)] == [
        ("checkpoint", "op"), ("checkpoint", "other"), ("complete", "op"), ("complete", "other"),
    ]  # fmt: skip


# ---- coordinator states


def test_a_small_state_travels_in_the_record_and_empty_is_not_missing() -> None:
    """Section 5.3: missing and empty state differ; R45, R86."""
    script = Script.running(OperatorSettings("op", 1), OperatorSettings("other", 1))
    script.state = lambda operator, n: b"" if operator == "op" else None
    script.checkpoint()
    op, other = script.committed(CheckpointCompleted)[0].operators
    assert op.coordinator_state == StateHandle(0, inline=b"")
    assert other.coordinator_state is None


def test_a_large_state_is_stored_first_and_named() -> None:
    """Section 7.6, for coordinators: names contain id and epoch."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"inline_state_max": 4})
    script.state = lambda operator, n: b"large"
    n = script.trigger()
    (store,) = script.made(effects.StoreState)
    script.acknowledge(n)
    assert script.last_id == -1
    handle = StateHandle(5, location=store.location)
    script.handle(StateStored("op", n, handle))
    assert script.committed(CheckpointCompleted)[0].operators[0].coordinator_state == handle


def test_a_state_stored_after_the_abort_is_released() -> None:
    """Section 7.8: stored state of n is released."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"inline_state_max": 4})
    script.state = lambda operator, n: b"large"
    n = script.trigger()
    script.read(script.task().decline(n))
    script.forget()
    script.handle(StateStored("op", n, StateHandle(5, location="there")))
    assert script.made(effects.DeleteStates) == [effects.DeleteStates(("there",))]


def test_a_state_that_cannot_be_stored_aborts_its_checkpoint() -> None:
    """Section 7.8."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"inline_state_max": 4})
    script.state = lambda operator, n: b"large"
    n = script.trigger()
    script.handle(StateNotStored("op", n, "disk full"))
    assert script.pending == {}
    assert "disk full" in script.job.schedule.blamed[0]
