"""Events from subtasks: gaps, and the inbox range that a restore owes its coordinators (protocol, section 8 ◆)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised
from penstock.schemas.settings import OperatorSettings

from .driver import INTERVAL, S0, S1, Script, names


def rolled_back(script: Script, how: str) -> None:
    """A new epoch: in the same process, or in another. Whoever is alive has said Hello again."""
    script.forget()
    if how == "same process":
        script.handle(CoordinatorRaised("op", script.epoch.number, "call_later", "ValueError: no"))
    else:
        script.restart()
    script.hello_all()


both = pytest.mark.parametrize("how", ["same process", "new process"])


def with_a_range(*events: bytes, ack: dict[str, object] | None = None) -> Script:
    """A completed checkpoint; ``events`` of subtask 0 belong before it and were received after its trigger."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task().frame(*events))
    script.acknowledge(n, S1)
    script.read(script.task(S1).ack(n))
    return script


@both
def test_events_sent_before_the_snapshot_and_received_after_the_trigger_are_handed_over_again(how: str) -> None:
    """Section 8."""
    script = with_a_range(b"a", b"b")
    rolled_back(script, how)
    assert script.received() == [b"a", b"b"]


@both
def test_events_received_before_the_trigger_are_not(how: str) -> None:
    """Section 8: those after n's inbox position."""
    script = Script.running()
    script.read(script.task().frame(b"in the state"))
    script.checkpoint()
    rolled_back(script, how)
    assert script.received() == []


@both
def test_events_sent_after_the_snapshot_are_not(how: str) -> None:
    """Section 8 ◆: with a sequence below the sent-sequence that its ack names."""
    script = Script.running()
    n = script.trigger()
    frame = script.task().frame(b"before", b"after 1", b"after 2")
    script.read(script.task().ack(n, sent_sequence=1), frame, script.task(S1).ack(n))
    script.read(script.task().frame(b"later"))
    rolled_back(script, how)
    assert script.received() == [b"before"]


@both
def test_events_of_another_attempt_are_not(how: str) -> None:
    """Section 8 ◆: of exactly the attempt and generation that acked n."""
    script = Script.running()
    n = script.trigger()
    foreign = replace(script.task().frame(b"foreign"), sender=replace(script.task().sender, attempt=1_000))
    script.read(foreign)
    script.task().sent = 0
    script.read(script.task().frame(b"own"))
    script.acknowledge(n)
    rolled_back(script, how)
    assert script.received() == [b"own"]


@both
def test_events_of_another_generation_of_the_same_attempt_are_not(how: str) -> None:
    """Section 8 ◆."""
    script = Script.running()
    n = script.trigger()
    sender = script.task().sender
    script.read(replace(script.task().frame(b"foreign"), sender=replace(sender, generation=sender.generation + 1)))
    script.task().sent = 0
    script.read(script.task().frame(b"own"))
    script.acknowledge(n)
    rolled_back(script, how)
    assert script.received() == [b"own"]


@both
def test_the_range_comes_right_after_ready_and_before_anything_newer(how: str) -> None:
    """Section 8 ◆: a reply needs a gateway."""
    script = with_a_range(b"owed")
    rolled_back(script, how)
    script.read(script.task().frame(b"newer"))
    mine = [call for call in script.calls if getattr(call, "subtask", None) == 0]
    assert names(mine)[-3:] == ["ready", "events", "events"]
    assert script.received() == [b"owed", b"newer"]
    (ready,) = [c for c in mine if isinstance(c, effects.CallReady)]
    (owed, *_) = [c for c in mine if isinstance(c, effects.CallEvents)]
    assert owed.attempt == ready.attempt


def test_the_range_waits_for_its_subtask_and_no_checkpoint_begins_before_it_is_handed_over() -> None:
    """Section 7.1: every inbox range handed over."""
    script = with_a_range(b"owed")
    script.forget()
    script.handle(CoordinatorRaised("op", 1, "call_later", "ValueError: no"))
    script.hello(S1)
    script.advance(2 * INTERVAL)
    assert script.received() == []
    assert script.pending == {}
    script.hello(S0)
    assert script.received() == [b"owed"]
    assert len(script.pending) == 1


def test_it_is_handed_over_once_however_many_attempts_follow() -> None:
    """Section 8: of that subtask's first attempt in the new epoch."""
    script = with_a_range(b"owed")
    rolled_back(script, "same process")
    script.hello()
    script.hello()
    assert script.received() == [b"owed"]


def test_a_second_rollback_hands_it_over_again() -> None:
    """Section 8: the coordinators are rolled back once more."""
    script = with_a_range(b"owed")
    rolled_back(script, "same process")
    rolled_back(script, "new process")
    assert script.received() == [b"owed"]


def test_a_region_failover_hands_over_nothing_again() -> None:
    """Section 8: the coordinators keep their live state."""
    script = with_a_range(b"seen")
    script.forget()
    script.hello()
    assert script.received() == []


@both
def test_each_operator_counts_from_its_own_position(how: str) -> None:
    """Section 7.2: per operator. One without a coordinator owes nobody anything."""
    script = Script.running(OperatorSettings("op", 1), OperatorSettings("bare", 1, has_coordinator=False))
    bare = script.settings.subtasks()[1]
    n = script.trigger()
    script.read(script.tasks[bare].frame(b"for nobody"), script.task().frame(b"owed"))
    script.acknowledge(n)
    rolled_back(script, how)
    assert script.received() == [b"owed"]
    assert script.received("bare") == []
    assert script.epoch.inherited == {}


@both
def test_what_a_savepoint_owes_is_in_the_savepoint(how: str) -> None:
    """Section 7.9: its inbox range is copied into it."""
    script = Script.running()
    n = script.savepoint()
    script.read(script.task().frame(b"owed", b"after"), script.task().ack(n, sent_sequence=1))
    script.read(script.task().frame(b"later"), script.task(S1).ack(n))
    snapshot = script.job.history.checkpoints[n].subtasks[S0]
    assert [part.payload for part in snapshot.inbox] == [b"owed"]
    script.acks_begin = len(script.acks)
    script.acks[:] = [(at, None) for at, _ in script.acks]  # nothing of the log is needed
    rolled_back(script, how)
    assert script.received() == [b"owed"]


def test_a_savepoint_copies_nothing_of_a_subtask_that_has_acknowledged() -> None:
    """Section 7.9; G7."""
    script = Script.running()
    n = script.savepoint()
    script.read(script.task().frame(b"owed"), script.task().ack(n))
    script.read(script.task().frame(b"later"))
    assert script.pending[n].inbox == {}


# ---- sequences


def test_a_gap_in_its_events_fails_the_attempt_with_the_numbers() -> None:
    """Section 5.4, for the way to the coordinator: a gap means lost log. G5."""
    script = Script.running()
    script.task().frame(b"lost")
    script.read(script.task().frame(b"next"))
    (failed, *_) = script.calls
    assert isinstance(failed, effects.CallFailed)
    assert failed.reason is not None
    assert "expected sequence 0, read 1" in failed.reason


def test_a_repeated_frame_is_dropped_and_counted() -> None:
    """G2."""
    script = Script.running()
    frame = script.task().frame(b"a")
    script.read(frame, frame)
    assert script.received() == [b"a"]
    assert script.dropped("events-repeated") == 1


def test_a_damaged_frame_fails_its_attempt() -> None:
    """Section 11: kept out; never a crash, never a skipped event."""
    script = Script.running()
    script.read(replace(script.task().frame(b"a"), lengths=b"\0"))
    assert script.received() == []
    assert names(script.calls)[0] == "failed"


def test_events_tell_the_first_checkpoint_that_contains_them() -> None:
    """Section 1, G2: what counts, and from when."""
    script = Script.running()
    script.read(script.task().frame(b"a", belongs_to=7))
    assert script.calls == [effects.CallEvents("op", 0, script.task().attempt, 7, [b"a"])]


def test_a_new_attempts_events_begin_at_0_again() -> None:
    """Section 3: per attempt and generation."""
    script = Script.running()
    script.read(script.task().frame(b"a"))
    task = script.hello()
    script.read(task.frame(b"b"))
    assert script.received() == [b"a", b"b"]
