"""Commands: executed until their effect or refusal is committed (protocol, section 8)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.commands import WAITING_MAX
from penstock.coordinator.protocol.inputs import AckRead, CoordinatorRaised, FutureFailed, RequestAnswered
from penstock.schemas.acks import Command, CommandKind, RunStarted
from penstock.schemas.checkpoints import CheckpointCompleted, CommandExecuted, JobFinished, JobOutcome
from penstock.schemas.events import CheckpointAborted, Stop, TriggerCheckpoint
from penstock.schemas.settings import Restore
from penstock.schemas.status import Ending

from .driver import INTERVAL, S0, S1, Script

SAVEPOINT, STOP, STOP_WITH, REQUEST = (
    CommandKind.SAVEPOINT, CommandKind.STOP, CommandKind.STOP_WITH_SAVEPOINT, CommandKind.REQUEST,
)  # fmt: skip


def raised(script: Script) -> None:
    script.handle(CoordinatorRaised("op", script.epoch.number, "call_later", "ValueError: no"))


# ---- savepoints


def test_a_savepoint_is_taken_at_once_and_the_reply_names_it() -> None:
    """Section 8; section 7.7."""
    script = Script.running()
    n = script.savepoint()
    assert [m.savepoint for m in script.records(S0, TriggerCheckpoint)] == [True]
    script.acknowledge(n)
    (reply,) = script.replies()
    assert (reply.accepted, reply.checkpoint_id) == (True, n)


def test_a_savepoint_and_its_commands_offset_are_one_transaction() -> None:
    """Section 8: a command's offset is committed with its effect."""
    script = Script.running()
    n = script.savepoint()
    (offset,) = script.job.commands.waiting
    script.forget()
    script.acknowledge(n)
    (commit,) = script.made(effects.Commit)
    records = [record for _, record in commit.records]
    assert any(isinstance(r, CheckpointCompleted) and r.savepoint for r in records)
    assert [(r.offset, r.accepted, r.checkpoint_id) for r in records if isinstance(r, CommandExecuted)] == [
        (offset, True, n)
    ]


def test_savepoints_queue_behind_one_another() -> None:
    """R56, R57: a request waits for its turn, and none is lost."""
    script = Script.running()
    first = script.savepoint()
    script.command(SAVEPOINT)
    assert list(script.pending) == [first]
    script.acknowledge(first)
    (second,) = script.pending
    script.acknowledge(second)
    assert [reply.checkpoint_id for reply in script.replies()] == [first, second]


def test_a_savepoint_asked_for_before_anybody_is_up_waits() -> None:
    """Section 7.1."""
    script = Script.begun()
    script.command(SAVEPOINT)
    assert script.pending == {}
    assert script.replies() == []


def test_a_savepoint_that_a_failover_takes_down_is_refused() -> None:
    """Section 8: its refusal is committed, then told."""
    script = Script.running()
    script.savepoint()
    script.read(script.task().failed())
    (reply,) = script.replies()
    assert not reply.accepted
    assert "failover of op/0" in reply.outcome
    assert [e.accepted for e in script.committed(CommandExecuted)] == [False]


def test_a_savepoint_that_a_global_failover_takes_down_is_refused_in_the_new_epoch() -> None:
    """Section 8."""
    script = Script.running()
    script.savepoint()
    raised(script)
    assert script.epoch.number == 2
    assert [reply.accepted for reply in script.replies()] == [False]


def test_a_savepoint_that_its_coordinator_fails_is_refused() -> None:
    """Section 7.3."""
    script = Script.running()
    script.auto_cut = False
    n = script.savepoint()
    script.handle(FutureFailed("op", n, "not now"))
    (reply,) = script.replies()
    assert "not now" in reply.outcome


def test_a_savepoint_under_way_when_the_process_dies_is_taken_again() -> None:
    """Section 8: until then it is executed again."""
    script = Script.running()
    script.checkpoint()
    n = script.savepoint()
    script.restart()
    script.hello_all()
    (again,) = [p for p in script.pending.values() if p.savepoint]
    assert again.id > n
    script.acknowledge(again.id)
    assert [reply.checkpoint_id for reply in script.replies()] == [again.id]


# ---- stop


def test_stop_commits_the_end_then_tells_everybody() -> None:
    """Section 3, JobFinished; section 8."""
    script = Script.running()
    attempt = script.task().attempt
    offset = script.command(STOP)
    (commit,) = script.made(effects.Commit)
    kinds = [type(record) for _, record in commit.records]
    assert kinds == [CommandExecuted, JobFinished]
    assert script.committed(JobFinished)[0].outcome is JobOutcome.STOPPED
    assert script.committed(CommandExecuted)[0].offset == offset
    assert [(type(r), r.attempt) for r in script.appended(S0) if isinstance(r, Stop)] == [(Stop, attempt)]
    assert [reply.accepted for reply in script.replies()] == [True]
    assert script.ended is not None
    assert script.ended.ending is Ending.STOPPED


def test_a_stop_is_not_executed_by_the_next_run() -> None:
    """Section 8: its offset is committed."""
    script = Script.running()
    script.command(STOP)
    script.restart()
    assert script.ended is None
    assert script.dropped("command-executed-before") == 1


@pytest.mark.parametrize("kind", [STOP, STOP_WITH])
def test_a_stop_that_nobody_read_before_the_next_run_began_is_refused(kind: CommandKind) -> None:
    """Section 8: it was meant for the run before."""
    script = Script.running()
    script.write(Command("late", kind, "", b"", "somebody"))
    script.write(RunStarted("run-2", "host"))
    script.restart()
    script.hello_all("run-2")
    assert script.ended is None
    assert not script.pending
    assert [(reply.command, reply.accepted) for reply in script.replies()] == [("late", False)]


def test_stop_with_savepoint_ends_behind_the_savepoint() -> None:
    """Section 9, last sentence; R52."""
    script = Script.running()
    n = script.savepoint(STOP_WITH)
    assert [(m.savepoint, m.stop) for m in script.records(S1, TriggerCheckpoint)] == [(True, True)]
    script.acknowledge(n)
    assert script.ended is not None
    assert script.ended.ending is Ending.STOPPED
    assert [r.outcome for r in script.committed(JobFinished)] == [JobOutcome.STOPPED]
    assert [reply.checkpoint_id for reply in script.replies()] == [n]
    script.restart()
    assert script.last_id == n


def test_a_stopping_savepoint_aborted_behind_its_markers_goes_on_in_place() -> None:
    """Section 8: a subtask that has read its marker goes on right behind it on CheckpointAborted."""
    script = Script.running()
    n = script.savepoint(STOP_WITH)
    script.send(script.task(S1), b"held")
    script.read(script.task().decline(n))
    assert script.epoch.number == 1
    assert CheckpointAborted(1, n, "op/0 declined: cannot") in script.appended(S1)
    assert script.events(S1) == [b"held"]
    assert [reply.accepted for reply in script.replies()] == [False]
    assert script.checkpoint() > n


def test_a_stopping_savepoint_aborted_by_a_region_failover_tells_the_others_to_go_on() -> None:
    """Section 8."""
    script = Script.running()
    n = script.savepoint(STOP_WITH)
    script.read(script.task().failed())
    assert script.epoch.number == 1
    last = script.appended(S1)[-1]
    assert isinstance(last, CheckpointAborted) and last.checkpoint_id == n


def test_a_stopping_savepoint_aborted_before_its_markers_goes_on() -> None:
    """Section 7.3: aborts only n."""
    script = Script.running()
    script.auto_cut = False
    n = script.savepoint(STOP_WITH)
    script.handle(FutureFailed("op", n, "not now"))
    assert script.epoch.number == 1
    assert script.ended is None


# ---- requests


def test_a_request_goes_to_its_coordinator_and_the_answer_is_committed_before_it_is_told() -> None:
    """Section 8."""
    script = Script.running()
    offset = script.command(REQUEST, "op", b"how much?")
    assert script.calls == [effects.CallRequest("op", offset, b"how much?")]
    assert script.replies() == []
    done = script.handle(RequestAnswered(offset, True, "answered", b"42"))
    assert [type(e) for e in done] == [effects.Commit, effects.Reply]
    (reply,) = script.replies()
    assert (reply.accepted, reply.payload) == (True, b"42")


def test_a_request_to_nobody_is_refused_and_those_there_are_named() -> None:
    """G5."""
    script = Script.running()
    script.command(REQUEST, "nobody")
    (reply,) = script.replies()
    assert not reply.accepted
    assert "'nobody'" in reply.outcome
    assert "op" in reply.outcome


def test_an_unanswered_request_is_made_again_by_the_next_process() -> None:
    """Section 8: until then it is executed again."""
    script = Script.running()
    offset = script.command(REQUEST, "op", b"x")
    script.checkpoint()
    script.checkpoint()
    script.restart()
    assert effects.CallRequest("op", offset, b"x") in script.calls


def test_a_request_is_answered_once() -> None:
    """Section 8: an answer that comes late, to a command that was executed, is nobody's."""
    script = Script.running()
    offset = script.command(REQUEST, "op", b"x")
    script.handle(RequestAnswered(offset, True, "answered", b""))
    script.handle(RequestAnswered(offset, True, "answered", b""))
    assert len(script.replies()) == 1


# ---- never twice


@pytest.mark.parametrize("restore", [Restore.FRESH, Restore.CHECKPOINT])
def test_an_executed_stop_stays_executed_when_the_job_goes_back(restore: Restore) -> None:
    """Section 8: once its offset is committed, on whichever line: also when its record has been forgotten since."""
    script = Script.running()
    older = script.checkpoint()
    script.command(STOP)
    script.restart()
    script.hello_all()
    script.checkpoint()  # from here on the position tells, and the record of the stop is discarded
    assert script.job.history.executed == {}
    script.restart(restore=restore, restore_checkpoint=older)
    assert script.ended is None
    assert script.dropped("command-executed-before") == 1


def test_commands_read_before_and_after_the_claim_are_executed_once_each() -> None:
    """Section 8."""
    script = Script()
    script.write(Command("early", REQUEST, "op", b"1", "me"))
    script.begin()
    script.command(REQUEST, "op", b"2")
    assert [c.payload for c in script.calls if isinstance(c, effects.CallRequest)] == [b"1", b"2"]


def test_a_refusal_whose_commit_never_stood_is_decided_again() -> None:
    """Section 8: committed with its effect or its refusal."""
    script = Script.running()
    command = Command("c", REQUEST, "nobody", b"", "me")
    offset = script.write(command)
    decided = script.core.handle(AckRead(offset, 0, command), script.now)
    assert isinstance(decided[-1], effects.Commit)
    assert not [effect for effect in decided if isinstance(effect, effects.Reply)]
    script.restart()
    assert [reply.command for reply in script.replies()] == ["c"]


def test_past_a_bound_of_waiting_commands_more_are_refused_at_once() -> None:
    """G7. A checkpoint is under way, so none of them has its effect."""
    script = Script.running()
    script.trigger()
    for _ in range(WAITING_MAX + 5):
        script.command(SAVEPOINT)
    assert len(script.job.schedule.savepoints) == WAITING_MAX
    refused = script.replies()
    assert [reply.accepted for reply in refused] == [False] * 5
    assert "1000 commands wait for their effect already" in refused[0].outcome


def test_a_stop_that_waits_for_its_turn_is_refused_when_a_newer_run_begins() -> None:
    """Section 8: it was meant for the run before."""
    script = Script.running()
    script.savepoint()
    stop = script.command(STOP_WITH)
    script.read(RunStarted("run-2", "there"))
    (refused,) = [done for done in script.committed(CommandExecuted) if done.offset == stop]
    assert not refused.accepted
    assert "before run run-2 began" in refused.outcome
    script.hello_all(run="run-2")
    script.advance(INTERVAL)
    assert not any(marker.stop for marker in script.records(S0, TriggerCheckpoint))
