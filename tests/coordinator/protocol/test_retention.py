"""What is kept, discarded, deleted and truncated (protocol, section 7.9)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AckRead
from penstock.schemas.acks import CommandKind
from penstock.schemas.checkpoints import CheckpointCompleted
from penstock.schemas.settings import OperatorSettings, Restore
from penstock.schemas.state import Segment

from .driver import S0, S1, Script


@pytest.mark.parametrize("retained", [1, 2, 3])
def test_the_last_k_are_kept(retained: int) -> None:
    """Section 7.9."""
    script = Script.running(checkpoint={"retained": retained})
    completed = [script.checkpoint() for _ in range(5)]
    assert sorted(script.job.history.checkpoints) == completed[-retained:]


@pytest.mark.parametrize("retained", [1, 2, 3])
def test_savepoints_are_all_kept_and_push_nothing_out(retained: int) -> None:
    """Section 7.9: the last K completed and all savepoints."""
    script = Script.running(checkpoint={"retained": retained})
    completed, savepoints = [], []
    for _ in range(4):
        completed.append(script.checkpoint())
        savepoints.append(script.savepoint())
        script.acknowledge(savepoints[-1])
    assert sorted(script.job.history.checkpoints) == sorted(completed[-retained:] + savepoints)


def test_a_savepoint_that_completes_last_discards_no_newer_checkpoint() -> None:
    """Section 7.9."""
    script = Script.running(checkpoint={"retained": 1, "max_concurrent": 2})
    savepoint = script.savepoint()
    newer = script.trigger()
    script.acknowledge(newer)
    script.acknowledge(savepoint)
    assert sorted(script.job.history.checkpoints) == [savepoint, newer]


def test_discards_are_part_of_the_transaction_that_completes_the_next_one() -> None:
    """Section 7.9."""
    script = Script.running(checkpoint={"retained": 1})
    older = script.checkpoint()
    script.forget()
    newer = script.checkpoint()
    (commit,) = script.made(effects.Commit)
    completed = [r for _, r in commit.records if isinstance(r, CheckpointCompleted)]
    assert [(c.checkpoint_id, c.discarded) for c in completed] == [(newer, (older,))]
    assert {key for key, r in commit.records if r is None} == {f"checkpoint/{older}", f"checkpoint/{older}/0"}


def test_only_what_a_committed_discard_names_is_deleted() -> None:
    """Section 7.9: and only behind the commit."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"retained": 2})
    for _ in range(3):
        script.forget()
        last = script.checkpoint(stores=True)
    kinds = [type(effect) for effect in script.effects]
    assert script.made(effects.DeleteStates) == [effects.DeleteStates((script.task().stored(last - 2).location,))]
    assert kinds.index(effects.Commit) < kinds.index(effects.DeleteStates)


def test_a_state_that_a_kept_checkpoint_also_names_is_not_deleted() -> None:
    """Section 7.9."""
    script = Script.running(checkpoint={"retained": 1})
    n = script.trigger()
    script.acknowledge(n, S1)
    script.read(script.task(S1).ack(n, stores=True, finished=True))
    script.checkpoint()
    assert script.last_id > n
    assert script.made(effects.DeleteStates) == []


def test_after_going_back_the_abandoned_line_goes_with_the_next_completion() -> None:
    """Section 7.9; section 2."""
    script = Script.running(checkpoint={"retained": 3})
    first, second, third = (script.checkpoint() for _ in range(3))
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=first)
    script.hello_all()
    assert sorted(script.job.history.checkpoints) == [first, second, third]
    fourth = script.checkpoint()
    assert sorted(script.job.history.checkpoints) == [first, fourth]


# ---- truncation


def truncated(script: Script) -> effects.Truncate:
    return script.made(effects.Truncate)[-1]


def test_logs_are_truncated_below_the_last_completed_positions() -> None:
    """Section 7.9; behind an older one's open position nothing is needed."""
    script = Script.running(checkpoint={"retained": 2})
    script.checkpoint(event_position=1)
    n = script.trigger()
    script.read(script.task(S0).ack(n, event_position=3), script.task(S1).ack(n, event_position=2))
    assert truncated(script).events == {S0: 3, S1: 2}


def test_every_range_that_a_kept_one_names_holds_the_log() -> None:
    """Section 7.9."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"retained": 2})
    script.checkpoint(event_position=3, event_ranges=(Segment(1, 2, 1, 0, 1),))
    script.checkpoint(event_position=9)
    assert truncated(script).events == {S0: 1}
    script.checkpoint(event_position=12)
    assert truncated(script).events == {S0: 12}


def test_the_acks_topic_is_kept_from_the_oldest_inbox_position() -> None:
    """Section 7.9; section 8, inbox range."""
    script = Script.running(checkpoint={"retained": 2})
    script.checkpoint()
    first = script.job.history.last
    assert first is not None
    script.checkpoint()
    assert truncated(script).acks == first.inbox_position
    script.checkpoint()
    assert truncated(script).acks > first.inbox_position


def test_a_savepoint_pins_no_log() -> None:
    """Section 7.9."""
    script = Script.running(checkpoint={"retained": 1})
    n = script.savepoint()
    script.acknowledge(n)
    position = script.job.history.checkpoints[n].inbox_position
    script.checkpoint(event_position=5)
    assert truncated(script).acks > position
    assert truncated(script).events == {S0: 5, S1: 5}


def test_a_command_that_has_not_been_executed_holds_the_acks_topic() -> None:
    """Section 8: until then it is executed again."""
    script = Script.running(checkpoint={"retained": 1})
    offset = script.command(CommandKind.REQUEST, "op", b"slow")  # its coordinator takes its time
    script.checkpoint()
    script.checkpoint()
    assert truncated(script).acks == offset


def test_an_instance_whose_commit_is_under_way_has_truncated_and_deleted_nothing() -> None:
    """Section 7.7 ◆: if the outcome stays unknown it deletes and truncates nothing."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"retained": 1})
    script.checkpoint(stores=True)
    n = script.trigger()
    ack = script.task().ack(n)
    decided = script.core.handle(AckRead(script.write(ack), 0, ack), script.now)
    assert not [e for e in decided if isinstance(e, effects.DeleteStates | effects.Truncate)]


# ---- a savepoint that is given up


def test_a_savepoint_is_given_up_with_all_that_only_it_holds() -> None:
    """Section 7.9."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"retained": 1})
    savepoint = script.savepoint()
    script.acknowledge(savepoint, stores=True, event_ranges=(Segment(1, 2, 1, 0, 1),))
    script.checkpoint(event_position=5)
    assert truncated(script).events == {S0: 1}
    script.forget()
    script.command(CommandKind.DISCARD, payload=b"%d" % savepoint)
    assert savepoint not in script.job.history.checkpoints
    (reply,) = script.replies()
    assert (reply.accepted, reply.outcome, reply.checkpoint_id) == (
        True,
        f"checkpoint {savepoint} discarded",
        savepoint,
    )
    assert script.made(effects.DeleteStates) == [effects.DeleteStates((script.task().stored(savepoint).location,))]
    assert truncated(script).events == {S0: 5}
    kinds = [type(effect) for effect in script.effects]
    assert kinds.index(effects.Commit) < kinds.index(effects.DeleteStates) < kinds.index(effects.Reply)


def test_it_stays_given_up_and_is_not_asked_for_again() -> None:
    """Section 8: a command's offset is committed with its effect."""
    script = Script.running()
    savepoint = script.savepoint()
    script.acknowledge(savepoint)
    last = script.checkpoint()
    script.command(CommandKind.DISCARD, payload=b"%d" % savepoint)
    script.forget()
    script.restart()
    assert sorted(script.job.history.checkpoints) == [last]
    assert script.replies() == []


def test_a_retained_checkpoint_may_be_given_up_too() -> None:
    script = Script.running(checkpoint={"retained": 3})
    first, second, third = (script.checkpoint() for _ in range(3))
    script.command(CommandKind.DISCARD, payload=b"%d" % second)
    assert sorted(script.job.history.checkpoints) == [first, third]
    assert script.job.history.lineage == [first, third]
    script.restart()
    assert script.last_id == third


@pytest.mark.parametrize("savepoint", [False, True])
def test_the_last_completed_one_is_not(savepoint: bool) -> None:
    """Section 7.9: a restart begins with it."""
    script = Script.running()
    script.checkpoint()
    if savepoint:
        script.acknowledge(script.savepoint())
    n = script.last_id
    script.forget()
    script.command(CommandKind.DISCARD, payload=b"%d" % n)
    (reply,) = script.replies()
    assert (reply.accepted, reply.outcome) == (
        False, f"checkpoint {n} is the last completed one: a restart begins with it",
    )  # fmt: skip
    assert n in script.job.history.checkpoints
    assert script.made(effects.DeleteStates) == script.made(effects.Truncate) == []


@pytest.mark.parametrize("asked", [b"99", b"", b"-1", b"x", b"9" * 5_000, b"\xff\xfe"])
def test_what_is_no_checkpoint_is_refused_with_those_there_are(asked: bytes) -> None:
    script = Script.running()
    n = script.checkpoint()
    script.command(CommandKind.DISCARD, payload=asked)
    reply = script.replies()[-1]
    assert not reply.accepted
    assert reply.outcome.endswith(f"; kept are: {n}")
    assert len(reply.outcome) < 100
