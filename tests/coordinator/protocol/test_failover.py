"""Region and global failover, and the restart budget (protocol, section 8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AppendFailed, AttemptRejected, CoordinatorRaised
from penstock.schemas.acks import FailureHint, RunStarted
from penstock.schemas.errors import RolledBack, TaskNotRunning
from penstock.schemas.events import EventFrame, FailoverPolicy, Reset, Start
from penstock.schemas.settings import OperatorSettings, RestartStrategy

from .driver import INTERVAL, S0, S1, Script, names


def with_policy(policy: FailoverPolicy, **changes: object) -> Script:
    return Script.running(OperatorSettings("op", 2, on_failover=policy), **changes)


def raised(script: Script, cause: str = "ValueError: no") -> None:
    script.handle(CoordinatorRaised("op", script.job.history.epoch, "call_later", cause))


# ---- region


def test_a_failed_attempt_is_told_then_its_checkpoints_are_aborted_then_the_subtask_is_reset() -> None:
    """Section 8; R81: Failed, then Aborted, then subtaskReset."""
    script = Script.running()
    n = script.trigger()
    task = script.task()
    script.forget()
    script.read(task.failed("boom"))
    assert script.calls == [
        effects.CallFailed("op", 0, task.attempt, "boom"),
        effects.CallAborted("op", n, "failover of op/0: boom"),
        effects.CallSubtaskReset("op", 0, -1),
    ]


def test_subtask_reset_names_the_last_completed_checkpoint() -> None:
    """Section 8; R82."""
    script = Script.running()
    n = script.checkpoint()
    script.forget()
    script.read(script.task().failed())
    assert script.calls[-1] == effects.CallSubtaskReset("op", 0, n)


def test_failed_comes_once_per_attempt() -> None:
    """R35."""
    script = Script.running()
    failed = script.task().failed()
    script.read(failed, failed)
    assert names(script.calls).count("failed") == 1


def test_the_coordinators_keep_their_live_state() -> None:
    """Section 8: no reset_to_checkpoint in a region failover; R82."""
    script = Script.running()
    script.checkpoint()
    script.forget()
    script.read(script.task().failed())
    assert "reset" not in names(script.calls)
    assert script.epoch.number == 1


def test_the_new_generation_is_told_in_the_partition() -> None:
    """Section 8: Reset(generation), so that a live instance starts over in place."""
    script = Script.running()
    script.read(script.task().failed())
    assert script.appended(S0) == [Reset(1, 1)]
    script.hello()
    assert script.task().start.full_generation == (1, 1)


def test_user_code_may_fail_exactly_one_attempt() -> None:
    """Section 8: a failed external write reported by user code. R76: never the latest one."""
    script = Script.running()
    older = script.task()
    script.handle(AttemptRejected(S0, older.attempt, 1, "commit refused"))
    assert isinstance(script.calls[0], effects.CallFailed)
    newer = script.hello()
    script.forget()
    script.handle(AttemptRejected(S0, older.attempt, 1, "commit refused"))
    assert script.calls == []
    assert script.slot().attempt is not None
    assert newer.started


def test_a_runners_hint_fails_the_attempt_of_the_dead_task_and_no_other() -> None:
    """Section 8: the failure detector need not wait; it is about one task."""
    script = Script.running()
    hello = script.slot().attempt
    assert hello is not None
    script.read(FailureHint("op", 0, "run-1", "another task", "killed"))
    assert script.calls == []
    script.read(FailureHint("op", 0, "run-1", hello.hello.task, "executor lost"))
    assert isinstance(script.calls[0], effects.CallFailed)
    assert script.calls[0].reason == "executor lost"


def test_a_hello_of_a_task_that_has_died_since_is_not_answered() -> None:
    """Section 8: nobody would live under that Start."""
    script = Script.running(restart=RestartStrategy(backoff_first=5.0))
    script.read(script.task().failed())
    task = script.hello()
    waiting = script.job.registry.waiting[S0]
    script.read(FailureHint("op", 0, "run-1", waiting.hello.task, "executor lost"))
    script.advance(6.0)
    assert not task.started


# ---- what becomes of events, by policy


def test_under_replay_unhandled_and_held_events_belong_to_the_successor() -> None:
    """Section 6: and stay pending. Probe P3."""
    script = with_policy(FailoverPolicy.REPLAY)
    stream = script.send(script.task(), b"unhandled")
    script.trigger()
    script.send(stream, b"held")
    script.hello()
    assert stream.failure is None
    assert script.task().stream is stream
    assert script.events() == [b"unhandled", b"held"]
    script.read(script.task().heartbeat(2))
    assert stream.handled_through == 2


def test_under_replay_what_is_sent_through_a_dead_attempts_gateway_is_appended_for_the_successor() -> None:
    """Section 6; R31."""
    script = with_policy(FailoverPolicy.REPLAY)
    stream = script.send(script.task(), b"a")
    script.read(script.task().failed())
    script.send(stream, b"between")
    task = script.hello()
    script.send(stream, b"after")
    assert script.events() == [b"a", b"between", b"after"]
    assert [f.attempt for f in script.records(S0, EventFrame)][1:] == [-1, task.attempt]


def test_under_replay_start_names_position_and_sequence_of_the_last_checkpoint() -> None:
    """Section 5.3: from the event position every frame whose epoch equals Start's."""
    script = with_policy(FailoverPolicy.REPLAY)
    script.send(script.task(), b"a", b"b")
    position = len(script.events_log[S0])
    n = script.trigger()
    script.acknowledge(n, S0)
    script.read(script.task().ack(n, handled_through=2, event_position=position))
    script.send(script.task(), b"c")
    start = script.hello().start
    assert (start.event_position, start.expected_sequence) == (position, 2)


def test_under_reset_unhandled_and_held_events_fail_with_task_not_running() -> None:
    """Section 6; R30."""
    script = with_policy(FailoverPolicy.RESET)
    stream = script.send(script.task(), b"unhandled")
    script.trigger()
    script.send(stream, b"held")
    script.read(script.task().failed("boom"))
    assert isinstance(stream.failure, TaskNotRunning)
    assert "boom" in str(stream.failure)
    assert script.events() == [b"unhandled"]
    assert script.made(effects.Settle) != []


def test_under_reset_a_dead_attempts_gateway_sends_nothing_and_never_raises() -> None:
    """R31."""
    script = with_policy(FailoverPolicy.RESET)
    stream = script.send(script.task(), b"a")
    script.read(script.task().failed())
    script.forget()
    script.send(stream, b"late")
    assert script.appended() == []


def test_under_reset_every_attempt_has_a_stream_of_its_own_that_begins_at_0() -> None:
    """Section 5.4: per (epoch, attempt)."""
    script = with_policy(FailoverPolicy.RESET)
    script.send(script.task(), b"a", b"b")
    script.checkpoint()
    task = script.hello()
    assert task.start.expected_sequence == 0
    script.send(task, b"c")
    (*_, frame) = script.records(S0, EventFrame)
    assert (frame.sequence, frame.attempt) == (0, task.attempt)


def test_under_reset_the_failure_is_settled_before_the_coordinator_is_told() -> None:
    """R77: what the coordinator does in execution_attempt_failed may rely on it."""
    script = with_policy(FailoverPolicy.RESET)
    script.send(script.task(), b"a")
    script.forget()
    script.read(script.task().failed())
    kinds = [type(effect) for effect in script.effects]
    assert kinds.index(effects.Settle) < kinds.index(effects.CallFailed)


def test_a_region_failover_leaves_the_other_subtasks_streams_alone() -> None:
    """Section 8: its region."""
    script = with_policy(FailoverPolicy.RESET)
    stream = script.send(script.task(S1), b"a")
    script.read(script.task(S0).failed())
    assert stream.failure is None


def test_under_global_a_failed_attempt_rolls_everybody_back() -> None:
    """Section 8: a region with one global operator fails over globally."""
    script = with_policy(FailoverPolicy.GLOBAL)
    n = script.checkpoint()
    script.forget()
    task, other = script.task(S0), script.task(S1)
    script.read(task.failed("boom"))
    failed = [c for c in script.calls if isinstance(c, effects.CallFailed)]
    assert [(c.attempt, c.reason is None) for c in failed] == [(task.attempt, False), (other.attempt, True)]
    assert names(script.calls)[-2:] == ["reset", "complete"]
    assert [c.checkpoint_id for c in script.calls if isinstance(c, effects.CallReset)] == [n]
    assert "subtaskreset" not in names(script.calls)


# ---- global


def test_failed_for_every_attempt_then_aborted_then_reset_and_no_subtask_reset() -> None:
    """Section 8; R85."""
    script = Script.running()
    script.trigger()
    script.forget()
    raised(script)
    assert names(script.calls) == ["failed", "failed", "aborted", "reset"]


def test_the_reset_is_called_once_however_many_causes_come_together() -> None:
    """Section 8; R87, C3.11."""
    script = Script.running(restart=RestartStrategy(backoff_first=5.0))
    epoch = script.epoch.number
    for _ in range(3):
        script.handle(CoordinatorRaised("op", epoch, "fail_job", "no"))
    script.handle(AppendFailed(epoch, "gone"))
    script.advance(6.0)
    assert names(script.calls).count("reset") == 1
    assert script.job.statistics.global_failovers == 1


def test_what_a_rolled_back_coordinator_still_raises_counts_no_more() -> None:
    """R37: after the reset a new failure counts, an old one does not."""
    script = Script.running()
    raised(script)
    script.handle(CoordinatorRaised("op", 1, "call_later", "late"))
    assert script.epoch.number == 2
    raised(script)
    script.advance(1.0)
    assert script.epoch.number == 3


def test_every_unsettled_future_fails_with_rolled_back() -> None:
    """Section 6."""
    script = Script.running()
    stream = script.send(script.task(), b"a")
    raised(script)
    assert isinstance(stream.failure, RolledBack)
    script.forget()
    script.send(stream, b"late")
    assert script.appended() == []


def test_sends_after_the_reset_belong_to_the_new_epoch() -> None:
    """R88; C3.7: they leave at once, whatever was closed before."""
    script = Script.running()
    script.trigger()
    raised(script)
    script.hello_all()
    script.send(script.task(), b"new")
    assert script.events(epoch=2) == [b"new"]


def test_events_of_a_coordinator_that_was_rolled_back_are_not_handed_over() -> None:
    """Section 8: the coordinators are rolled back; the subtask says it again."""
    script = Script.running()
    frame = script.task().frame(b"a")
    raised(script)
    script.read(frame)
    assert script.received() == []


def test_a_record_that_the_broker_did_not_certainly_take_is_a_global_failover_with_a_new_writer() -> None:
    """Section 6 ◆: nothing may follow a hole."""
    script = Script.running()
    script.forget()
    script.handle(AppendFailed(1, "timed out"))
    kinds = [type(e) for e in script.effects]
    first_append = kinds.index(effects.Append)
    assert kinds.index(effects.ReplaceWriter) < first_append
    assert script.epoch.number == 2


def test_the_writer_is_replaced_also_where_the_epoch_is_over_already() -> None:
    """Section 6 ◆: else the next epoch begins behind the hole."""
    script = Script.running(restart=RestartStrategy(backoff_first=5.0))
    raised(script)
    script.handle(AppendFailed(1, "timed out"))
    assert len(script.made(effects.ReplaceWriter)) == 1
    script.advance(5.0)
    assert script.epoch.number == 2


def test_a_failed_append_of_an_older_epoch_changes_nothing() -> None:
    """Section 8: once."""
    script = Script.running()
    raised(script)
    script.forget()
    script.handle(AppendFailed(1, "timed out"))
    assert script.effects == []


@pytest.mark.parametrize("policy", FailoverPolicy)
def test_progress_comes_back_after_any_failover(policy: FailoverPolicy) -> None:
    """G6: once faults stop, checkpoints complete and held events flow."""
    script = with_policy(policy, checkpoint={"interval": 1000.0})
    for _ in range(3):
        script.trigger()
        script.send(script.task(), b"lost or not")
        script.read(script.task().failed())
        script.advance(30.0)
        script.hello_all()
        script.advance(30.0)
    n = script.checkpoint()
    script.send(script.task(), b"flows")
    assert script.last_id == n
    assert script.events()[-1] == b"flows"
    assert isinstance(script.records(S0, Start)[-1], Start)


def test_a_hello_whose_start_may_not_stand_waits_again_when_an_epoch_begins() -> None:
    """Section 8: the Start may have been refused with the frame behind it; another needs no Reset beside it."""
    script = Script.begun()
    script.read(RunStarted("run-1", "here"))
    script.hello_all()
    script.read(script.task(S0).heartbeat())
    script.forget()
    script.handle(AppendFailed(1, "refused"))
    assert [type(record).__name__ for record in script.appended(S0)] == ["Reset"]
    _, start = script.appended(S1)
    assert isinstance(start, Start)
    assert (start.attempt, start.full_generation) == (script.task(S1).attempt, (2, 0))


# ---- the same gap twice


def missed(script: Script, sequence: int) -> None:
    script.read(replace(script.task().failed("a gap"), missing=sequence))


def test_a_gap_that_fails_two_attempts_fails_the_job_over_and_so_is_voided() -> None:
    """Section 5.4 ◆: under replay the log would give the same gap to every attempt."""
    script = with_policy(FailoverPolicy.REPLAY)
    script.send(script.task(), b"a", b"b")
    missed(script, 1)
    assert script.job.statistics.global_failovers == 0
    script.hello()
    missed(script, 1)
    assert script.job.statistics.global_failovers == 1
    assert f"two attempts of {S0} missed event 1" in script.job.statistics.last_failure
    script.advance(INTERVAL)  # the backoff
    script.hello_all()
    assert script.task().start.epoch == 2


@pytest.mark.parametrize("sequences", [(1, 2), (-1, -1)])
def test_failures_that_miss_other_events_or_none_fail_the_region_alone(sequences: tuple[int, int]) -> None:
    """Section 8."""
    script = with_policy(FailoverPolicy.REPLAY)
    for sequence in sequences:
        missed(script, sequence)
        script.advance(INTERVAL)
        script.hello()
    assert script.job.statistics.global_failovers == 0
    assert script.job.statistics.region_failovers == 2


def test_under_reset_every_attempt_has_a_log_of_its_own() -> None:
    """Section 5.4: sequences begin at 0 with each attempt, so its gap is another one."""
    script = with_policy(FailoverPolicy.RESET)
    missed(script, 1)
    script.hello()
    missed(script, 1)
    assert script.job.statistics.global_failovers == 0
