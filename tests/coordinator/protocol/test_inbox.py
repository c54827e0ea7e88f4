"""Events from subtasks: gaps, and the inbox range that a restore owes its coordinators (protocol, section 8 ◆)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.protocol import effects, inbox
from penstock.coordinator.protocol.inputs import CoordinatorRaised
from penstock.schemas.acks import OperatorEventFrame
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings
from penstock.schemas.status import Ending

from .driver import INTERVAL, S0, S1, Script, names


def rolled_back(script: Script, how: str) -> None:
    """A new epoch: in the same process, or in another. Whoever is alive has said Hello again."""
    script.forget()
    if how == "same process":
        script.handle(CoordinatorRaised("op", script.epoch.number, "call_later", "ValueError: no"))
    else:
        script.restart()
    script.hello_all()


def rolled_back_but(script: Script, how: str, finished: SubtaskId) -> None:
    """As :func:`rolled_back`, where one has finished."""
    if how == "same process":
        script.handle(CoordinatorRaised("op", script.epoch.number, "call_later", "ValueError: no"))
    else:
        script.restart()
    for subtask in script.settings.subtasks():
        if subtask != finished:
            script.hello(subtask)


@pytest.fixture(autouse=True, params=["kept", "left in the log"])
def ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every rule holds for ranges that are kept until their subtask is ready, and for those too large for that."""
    if request.param != "kept":
        monkeypatch.setattr(inbox, "_stay_in_the_log", lambda job: job.current.inherited_bytes > 0)
    return str(request.param)


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
    script.read(frame, script.task().ack(n, sent_sequence=1), script.task(S1).ack(n))
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


def test_ranges_above_max_held_bytes_are_not_kept_in_memory(ranges: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 8: they are read once more, together, for all whose turn it is."""
    monkeypatch.undo()
    script = Script.running(OperatorSettings("op", 2, max_held_bytes=10))
    n = script.trigger()
    for subtask, event in ((S0, b"1234567"), (S1, b"abcdefg")):
        script.read(script.task(subtask).frame(event))
    script.acknowledge(n)
    script.forget()
    script.handle(CoordinatorRaised("op", 1, "call_later", "ValueError: no"))
    assert {s: (i.through, i.parts) for s, i in script.epoch.inherited.items()} == {S0: (1, []), S1: (1, [])}
    script.hello_all()
    assert script.received() == [b"1234567", b"abcdefg"]
    assert script.epoch.inherited == {}
    script.advance(INTERVAL)
    assert len(script.pending) == 1


def test_a_range_that_is_gone_when_it_is_read_once_more_ends_the_job(ranges: str) -> None:
    """Section 8: the coordinator does not go on without it. One that was kept needs no log."""
    script = with_a_range(b"owed")
    script.forget()
    script.handle(CoordinatorRaised("op", 1, "call_later", "ValueError: no"))
    script.acks = [(at, None if isinstance(r, OperatorEventFrame) else r) for at, r in script.acks]
    script.hello(S0)
    if ranges == "kept":
        assert (script.ended, script.received()) == (None, [b"owed"])
    else:
        assert script.ended is not None
        assert "events 0 to 1 of op/0, attempt" in script.ended.cause
        assert "complete" not in names(script.calls), "a commit elsewhere would lack what belongs to it"


def test_ranges_in_the_log_are_read_once_for_all_who_come_within_a_moment() -> None:
    """Section 8.4: not once for each of a thousand subtasks."""
    script = Script.running(OperatorSettings("op", 3, max_held_bytes=10))
    n = script.trigger()
    for subtask in script.settings.subtasks():
        script.read(script.task(subtask).frame(b"12345678"))
    script.acknowledge(n)
    script.forget()
    script.handle(CoordinatorRaised("op", 1, "call_later", "ValueError: no"))
    script.forget()
    assert not script.hello(S0).started
    assert not script.hello(S1).started
    script.advance(script.settings.heartbeat_interval)
    assert [subtask for subtask in (S0, S1) if script.slot(subtask).attempt is None] == []
    assert len(script.made(effects.ReadAcks)) == 1
    assert script.hello(SubtaskId("op", 2)).started
    assert len(script.made(effects.ReadAcks)) == 2
    assert script.received() == [b"12345678"] * 3


def test_an_empty_event_counts_against_the_bounds_of_ranges() -> None:
    script = with_a_range(*[b""] * 100)
    script.handle(CoordinatorRaised("op", 1, "call_later", "ValueError: no"))
    assert script.epoch.inherited_bytes == 400


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


@both
def test_a_repeated_frame_behind_the_position_is_handed_over_once(how: str) -> None:
    """Section 8: each event of the range once, in order."""
    script = with_a_range(b"owed", b"too")
    (frame,) = [record for _, record in script.acks if isinstance(record, OperatorEventFrame)]
    script.read(frame, frame)
    rolled_back(script, how)
    assert script.received() == [b"owed", b"too"]


@both
def test_events_received_before_the_trigger_and_written_again_behind_it_are_not(how: str) -> None:
    """Section 8: from the first event that had not been received at the cut."""
    script = Script.running()
    frame = script.task().frame(b"in the state")
    script.read(frame)
    script.checkpoint()
    script.read(frame)
    rolled_back(script, how)
    assert script.received() == []


@both
def test_frames_of_one_that_has_finished_are_not_handed_over_again(how: str) -> None:
    """Section 8: a later checkpoint owes nothing of an end that an earlier one contains."""
    script = Script.running()
    n = script.trigger()
    frame = script.task().frame(b"owed to the first")
    script.read(frame, script.task().ack(n, finished=True), script.task(S1).ack(n))
    script.checkpoint()
    script.read(frame)
    script.forget()
    rolled_back_but(script, how, S0)
    assert script.received() == []


@both
def test_a_damaged_copy_of_a_frame_does_not_count(how: str) -> None:
    """Section 8: a frame whose count lies holds no event of the range."""
    script = with_a_range(b"owed", b"too")
    (frame,) = [record for _, record in script.acks if isinstance(record, OperatorEventFrame)]
    at = next(at for at, (_, record) in enumerate(script.acks) if record is frame)
    script.acks.insert(at, (0, replace(frame, count=1)))
    rolled_back(script, how)
    assert script.received() == [b"owed", b"too"]


@both
@pytest.mark.parametrize("damage", ["lost", "its count lies", "its lengths lie"])
def test_a_range_that_is_not_whole_ends_the_job_and_says_what_is_missing(how: str, damage: str) -> None:
    """Section 8: never silently without them. G2, G5."""
    script = with_a_range(b"owed", b"too")
    at = next(at for at, (_, record) in enumerate(script.acks) if isinstance(record, OperatorEventFrame))
    frame = script.acks[at][1]
    assert isinstance(frame, OperatorEventFrame)
    damaged = {"its count lies": replace(frame, count=7), "its lengths lie": replace(frame, lengths=bytes(8))}
    script.acks[at] = 0, damaged.get(damage)
    script.forget()
    if how == "same process":
        script.handle(CoordinatorRaised("op", script.epoch.number, "call_later", "ValueError: no"))
    else:
        script.restart()
    assert script.ended is not None
    assert script.ended.ending is Ending.FAILED
    assert f"events 0 to 2 of {S0}" in script.ended.cause
    assert "--from-checkpoint" in script.ended.cause
    assert script.received() == []


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
