"""Subtasks that finish (protocol, sections 6, 7.1 and 8)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised
from penstock.coordinator.protocol.state import SlotPhase
from penstock.schemas.checkpoints import JobFinished, JobOutcome
from penstock.schemas.errors import TaskFinished
from penstock.schemas.events import CheckpointCompleted, Reset, Start, Stop
from penstock.schemas.status import Ending

from .driver import S0, S1, Script


def one_finished(**changes: object) -> Script:
    """Subtask 0 has ended, and a completed checkpoint contains that."""
    script = Script.running(**changes)
    script.read(script.task(S0).finished())
    (n,) = script.pending
    script.read(script.task(S0).ack(n, finished=True), script.task(S1).ack(n))
    assert script.last_id == n
    return script


def test_a_checkpoint_that_contains_the_end_need_not_wait_for_the_interval() -> None:
    """Section 8: the finished instance stays until a completed checkpoint contains its end. R61."""
    script = Script.running()
    script.read(script.task().finished())
    assert len(script.pending) == 1


@pytest.mark.parametrize("how", ["declined", "failover of another"])
def test_it_is_asked_for_again_when_it_was_aborted_also_without_an_interval(how: str) -> None:
    """G6; section 8: the finished instance waits for it."""
    script = Script.running(checkpoint={"interval": None})
    script.read(script.task(S0).finished())
    (n,) = script.pending
    if how == "declined":
        script.read(script.task(S1).decline(n))
    else:
        script.hello(S1)
    script.advance(5.0)
    (again,) = script.pending
    assert again > n
    script.read(script.task(S0).ack(again, finished=True), script.task(S1).ack(again))
    script.advance(1_000.0)
    assert script.pending == {}


def test_it_stays_live_until_then() -> None:
    """Section 8: a finished instance stays and obeys Reset."""
    script = Script.running()
    script.read(script.task().finished())
    assert script.slot().phase is SlotPhase.LIVE
    script.read(script.task(S1).failed())  # the checkpoint under way is aborted
    assert script.slot().phase is SlotPhase.LIVE


def test_its_completion_is_told_and_then_it_is_done() -> None:
    """Section 8."""
    script = one_finished()
    assert isinstance(script.events_log[S0][-1], CheckpointCompleted)
    assert script.slot(S0).phase is SlotPhase.DONE
    assert script.slot(S1).phase is SlotPhase.LIVE


def test_its_pending_and_later_futures_fail_with_task_finished() -> None:
    """Section 8."""
    script = Script.running()
    stream = script.send(script.task(), b"never handled")
    script.read(script.task().finished())
    (n,) = script.pending
    script.read(script.task(S0).ack(n, finished=True, handled_through=0), script.task(S1).ack(n))
    assert isinstance(stream.failure, TaskFinished)
    script.forget()
    script.send(stream, b"later")
    assert script.appended() == []


def test_its_hello_is_answered_by_stop() -> None:
    """Section 8."""
    script = one_finished()
    script.forget()
    script.hello(S0)
    (stop,) = script.appended(S0)
    assert isinstance(stop, Stop)
    assert "finished" in stop.reason


def test_later_checkpoints_do_without_it_and_keep_its_end() -> None:
    """Section 7.1: or has finished for good."""
    script = one_finished()
    end = script.job.history.checkpoints[script.last_id].subtasks[S0]
    n = script.trigger()
    script.read(script.task(S1).ack(n))
    assert script.last_id == n
    assert script.job.history.checkpoints[n].subtasks[S0] == end


def test_a_restore_does_not_start_it_again() -> None:
    """Section 8: for a subtask that n contains as finished."""
    script = one_finished()
    script.restart()
    script.forget()
    script.hello(S0)
    assert [type(r) for r in script.appended(S0)] == [Stop]
    assert script.hello(S1).started


def test_a_hello_in_its_place_does_not_keep_it_waiting() -> None:
    """Section 8: what a coordinator says behind its commit may never stand. The Hello is of another instance."""
    script = one_finished()
    finished = script.task(S0)
    script.hello(S0, read=False)
    script.restart()
    told = script.appended(S0)
    assert [type(record) for record in told] == [Stop, Reset, Stop]
    assert [stop.attempt for stop in told if isinstance(stop, Stop)] == [finished.attempt, script.task(S0).attempt]


def test_who_waits_for_a_notice_that_never_stood_is_told_by_the_successor_although_it_ends_at_once() -> None:
    """Section 8: nobody is there any more to answer a Hello behind a Reset."""
    script = Script.running()
    script.read(script.task(S0).finished(), script.task(S1).finished())
    (n,) = script.pending
    script.acknowledge(n, finished=True)
    script.log = [(key, record) for key, record in script.log if key != "finished"]
    script.restart()
    assert script.ended is not None
    for subtask in (S0, S1):
        first, *_ = script.appended(subtask)
        assert isinstance(first, Stop)
        assert (first.attempt, first.reason) == (
            script.task(subtask).attempt,
            f"checkpoint {n} contains the end of {subtask}",
        )


def test_going_back_before_its_end_starts_it_again() -> None:
    """Section 8: only a checkpoint that contains its end."""
    script = Script.running()
    script.checkpoint()
    script.read(script.task().finished())
    script.handle(CoordinatorRaised("op", 1, "call_later", "ValueError: no"))
    assert isinstance(script.hello(S0).start, Start)


def test_its_inbox_range_comes_right_after_the_reset_without_a_gateway() -> None:
    """Section 8."""
    script = Script.running()
    script.read(script.task().finished())
    (n,) = script.pending
    script.read(script.task().frame(b"last words"))
    script.read(script.task(S0).ack(n, finished=True), script.task(S1).ack(n))
    script.restart()
    kinds = [type(call) for call in script.calls[:3]]
    assert kinds == [effects.CallReset, effects.CallStart, effects.CallEvents]
    assert script.calls[2] == effects.CallEvents("op", 0, -1, 1, [b"last words"])


def test_what_a_savepoint_holds_for_it_is_not_handed_over_again_by_later_checkpoints() -> None:
    """G2: the later checkpoint's coordinator state contains it."""
    script = Script.running()
    script.auto_cut = False
    n = script.savepoint()
    script.handle(script.completed("op", n))
    script.read(script.task().frame(b"last words"), script.task(S0).ack(n, finished=True), script.task(S1).ack(n))
    assert script.received() == [b"last words"]
    script.auto_cut = True
    later = script.trigger()
    script.read(script.task(S1).ack(later))
    assert script.last_id == later
    script.restart()
    assert script.received() == []


def test_a_subtask_that_ends_under_two_checkpoints_holds_up_neither() -> None:
    """Section 8; G6: it leaves with the first, so the second counts with its end."""
    script = Script.running(checkpoint={"max_concurrent": 2})
    script.read(script.task(S0).finished())
    (first,) = script.pending
    second = script.trigger()
    script.send(script.task(S0), b"held for nobody")
    script.read(script.task(S0).ack(first, finished=True), script.task(S1).ack(first))
    assert script.last_id == first
    assert script.epoch.held_bytes["op"] == 0
    script.read(script.task(S1).ack(second))
    assert script.last_id == second
    assert script.job.history.checkpoints[second].subtasks[S0].finished


def test_the_state_of_an_end_survives_the_abort_of_a_checkpoint_that_counts_with_it() -> None:
    """Section 7.9: only what a committed discard names is deleted."""
    script = Script.running(checkpoint={"max_concurrent": 2})
    script.read(script.task(S0).finished())
    (first,) = script.pending
    second = script.trigger()
    script.read(script.task(S0).ack(first, finished=True, stores=True))
    script.read(script.task(S1).ack(first))
    script.forget()
    script.read(script.task(S1).decline(second))
    assert script.made(effects.DeleteStates) == []


def test_a_savepoint_that_an_end_comes_too_late_for_is_aborted_at_once() -> None:
    """G6: nobody will acknowledge it any more."""
    script = Script.running(checkpoint={"max_concurrent": 2})
    savepoint = script.savepoint()
    script.read(script.task(S0).finished())
    (newer,) = set(script.pending) - {savepoint}
    script.read(script.task(S0).ack(newer, finished=True), script.task(S1).ack(newer))
    assert script.last_id == newer
    assert script.pending == {}
    assert [reply.accepted for reply in script.replies()] == [False]


def test_when_every_subtask_has_finished_the_job_has() -> None:
    """Section 3, JobFinished."""
    script = Script.running()
    script.read(script.task(S0).finished(), script.task(S1).finished())
    (n,) = script.pending
    script.acknowledge(n, finished=True)
    if script.ended is None:
        (n,) = script.pending
        script.acknowledge(n, finished=True)
    assert script.ended is not None
    assert script.ended.ending is Ending.FINISHED
    (finished,) = script.committed(JobFinished)
    assert (finished.outcome, finished.run) == (JobOutcome.FINISHED, "run-1")


def test_a_finished_attempt_is_not_failed_for_handling_no_events() -> None:
    """Section 6: event_ack_timeout is for attempts that have work to do."""
    script = Script.running(checkpoint={"interval": None})
    script.read(script.task().finished())
    script.send(script.task(), b"a")
    script.live(50)
    assert script.job.statistics.region_failovers == 0
