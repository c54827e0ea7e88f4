"""The end of a job waits for what its coordinators have begun (protocol, section 7.10)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised, WorkLeft
from penstock.schemas.acks import CommandKind
from penstock.schemas.checkpoints import JobFinished, JobOutcome, JobStopping
from penstock.schemas.errors import TaskFinished
from penstock.schemas.events import Start, Stop
from penstock.schemas.settings import OperatorSettings, Restore
from penstock.schemas.status import Ending

from .driver import S0, S1, Script, names


def left(script: Script, **by_operator: int) -> WorkLeft:
    return WorkLeft(script.job.history.epoch, by_operator)


def finishing(**changes: object) -> tuple[Script, int]:
    """A completed checkpoint contains the end of every subtask, and a coordinator is not done with its notice."""
    script = Script.running(**changes)
    script.auto_drain = False
    script.read(script.task(S0).finished(), script.task(S1).finished())
    (n,) = script.pending
    script.acknowledge(n, finished=True)
    return script, n


def stopping(**changes: object) -> tuple[Script, int]:
    """A stopping savepoint is complete, and a coordinator is not done with its notice."""
    script = Script.running(**changes)
    script.auto_drain = False
    n = script.savepoint(CommandKind.STOP_WITH_SAVEPOINT)
    script.acknowledge(n)
    return script, n


@pytest.mark.parametrize(("end", "outcome"), [(finishing, JobOutcome.FINISHED), (stopping, JobOutcome.STOPPED)])
def test_the_end_is_committed_once_nothing_is_left_to_do(end, outcome: JobOutcome) -> None:
    script, _ = end()
    assert len(script.made(effects.Drain)) == 1
    script.handle(left(script, op=2))
    script.handle(left(script, op=1))
    assert script.ended is None
    assert script.committed(JobFinished) == []
    script.handle(left(script))
    (finished,) = script.committed(JobFinished)
    assert finished.outcome is outcome
    assert script.ended is not None
    assert script.job.history.stopping is None


def test_the_subtasks_of_a_stop_leave_ahead_of_the_coordinators() -> None:
    script, n = stopping()
    for subtask in (S0, S1):
        last = script.events_log[subtask][-1]
        assert isinstance(last, Stop)
        assert last.reason == f"stopped with savepoint {n}"
    script.forget()
    script.hello(S0)
    (stop,) = script.appended(S0)
    assert isinstance(stop, Stop)


def test_what_is_sent_behind_a_stop_is_never_handled() -> None:
    script = Script.running()
    script.auto_drain = False
    stream = script.send(script.task(), b"held")
    n = script.savepoint(CommandKind.STOP_WITH_SAVEPOINT)
    script.acknowledge(n, handled_through=0)
    assert isinstance(stream.failure, TaskFinished)


@pytest.mark.parametrize("end", [finishing, stopping])
def test_work_that_does_not_end_in_time_fails_the_job_by_name(end) -> None:
    script, n = end()
    script.handle(left(script, op=3))
    script.advance(599.0)
    assert script.ended is None
    script.advance(2.0)
    assert script.ended is not None
    assert script.ended.ending is Ending.FAILED
    for what in ("op (3)", "end_timeout", "600", f"checkpoint {n}"):
        assert what in script.ended.cause


@pytest.mark.parametrize("end", [finishing, stopping])
def test_work_that_fails_is_asked_for_again(end) -> None:
    """An on_result that raises rolls the coordinator back to n, and n is notified again."""
    script, n = end()
    script.forget()
    script.handle(CoordinatorRaised("op", script.job.history.epoch, "call_async", "no such table"))
    script.advance(60.0)
    assert [c.checkpoint_id for c in script.calls if isinstance(c, effects.CallComplete)] == [n]
    assert names(script.calls)[-2:] == ["reset", "complete"]
    assert script.records(S0, Start)[1:] == [], "nobody is started again"
    assert script.ended is None
    script.handle(left(script))
    assert script.ended is not None


def test_what_a_rolled_back_coordinator_had_left_counts_no_more() -> None:
    script, _ = finishing()
    before = left(script)
    script.handle(CoordinatorRaised("op", script.job.history.epoch, "call_async", "no"))
    script.advance(60.0)
    script.handle(before)
    assert script.ended is None


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("end", [finishing, stopping])
def test_whoever_starts_next_finishes_the_end(end, continues: bool) -> None:
    """The process died while a coordinator was at its last commit."""
    script, n = end()
    script.forget()
    script.restart(continues=continues)
    assert names(script.calls) == ["reset", "start", "complete"]
    assert [c.checkpoint_id for c in script.calls if isinstance(c, effects.CallComplete)] == [n]
    assert script.ended is None
    script.handle(left(script))
    assert script.ended is not None
    assert script.ended.ending is (Ending.FINISHED if end is finishing else Ending.STOPPED)


def test_a_job_that_was_stopped_goes_on_when_it_is_started_again() -> None:
    script, _ = stopping()
    script.handle(left(script))
    script.restart()
    assert script.ended is None
    assert script.hello(S0).started
    script.handle(CoordinatorRaised("op", script.job.history.epoch, "start", "no"))
    script.advance(60.0)
    assert script.hello(S0, "run-1").started, "nor is it stopped by a failover behind that"


def test_a_start_from_elsewhere_gives_the_stop_up() -> None:
    script, n = stopping(checkpoint={"retained": 3})
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=n)
    assert script.job.history.stopping is None
    assert script.hello(S0).started


def test_a_savepoint_asked_for_at_the_end_is_refused() -> None:
    script, _ = finishing()
    script.command(CommandKind.SAVEPOINT)
    (reply,) = script.replies()
    assert not reply.accepted
    assert "about to" in reply.outcome


def test_a_stopping_savepoint_names_the_stop() -> None:
    script, n = stopping()
    assert script.committed(JobStopping) == [JobStopping(script.job.history.epoch, n)]


def test_a_restore_notifies_each_coordinator_once_it_has_all_that_belongs_to_the_checkpoint() -> None:
    """Section 8: a commit elsewhere has a safe place, also where the process before died ahead of its notice."""
    script = Script.running(OperatorSettings("op", 2))
    n = script.trigger()
    script.read(script.task(S1).frame(b"of n"))
    script.read(script.task(S0).ack(n), script.task(S1).ack(n, sent_sequence=1))
    script.forget()
    script.restart()
    assert names(script.calls) == ["reset", "start"]
    script.hello(S0)
    assert "complete" not in names(script.calls)
    script.hello(S1)
    assert names(script.calls)[-3:] == ["ready", "events", "complete"]
    assert names(script.calls).count("complete") == 1


def test_a_checkpoint_under_way_at_the_end_is_aborted_and_withholds_nothing() -> None:
    """Section 7.10: the coordinator owes its future, and still has to be told of the last checkpoint."""
    script = Script.running(checkpoint={"max_concurrent": 2})
    script.auto_drain = False
    script.read(script.task(S0).finished())
    (n,) = script.pending
    script.auto_cut = False
    script.read(script.task(S1).finished())
    (_, under_way) = script.pending
    script.acknowledge(n, finished=True)
    complete = [c.checkpoint_id for c in script.calls if isinstance(c, effects.CallComplete)]
    aborted = [c.checkpoint_id for c in script.calls if isinstance(c, effects.CallAborted)]
    assert (complete, aborted) == ([n], [under_way])
    assert isinstance(script.effects[-1], effects.Drain)
