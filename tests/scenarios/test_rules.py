"""Rules of Flink's contract that no other test shows, on the coordinator's core (docs/flink.md has them all)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised, FutureFailed
from penstock.schemas.acks import CommandKind, FailureHint
from penstock.schemas.checkpoints import CheckpointCompleted
from penstock.schemas.errors import TaskNotRunning
from penstock.schemas.events import CheckpointAborted, EventFrame, FailoverPolicy, Reset, Start, TriggerCheckpoint
from penstock.schemas.events import CheckpointCompleted as CompletedNotice
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings, RestartStrategy
from tests.coordinator.protocol.driver import INTERVAL, S0, S1, Script, names

TWO = {"max_concurrent": 2}
S2 = SubtaskId("op", 2)


# ---- gateways and events


def test_the_cut_closes_the_gateways_of_every_subtask_of_its_operator() -> None:
    """R17: all or none; every live one was marked when the checkpoint was triggered."""
    script = Script.running(OperatorSettings("op", 3))
    script.auto_cut = False
    n = script.trigger()
    assert [slot.gateway.closed for slot in script.job.live()] == [(), (), ()]
    script.handle(script.completed("op", n))
    assert [slot.gateway.closed for slot in script.job.live()] == [(n,), (n,), (n,)]


def test_events_to_an_operator_without_a_coordinator_are_counted_and_change_nothing() -> None:
    """R28: there is no operator id that a subtask could get wrong; it speaks to its own coordinator or to nobody."""
    script = Script.running(OperatorSettings("op", 1), OperatorSettings("bare", 1, has_coordinator=False))
    bare = script.task(SubtaskId("bare", 0))
    script.read(bare.frame(b"hello?"))
    assert script.dropped("events-for-no-coordinator") == 1
    assert script.calls == []
    assert script.checkpoint() == script.last_id


def test_coordinators_never_see_the_acknowledgements_of_checkpoints() -> None:
    """R70."""
    script = Script.running()
    n = script.trigger()
    script.forget()
    script.read(script.task(S0).snapshot_taken(n), script.task(S0).ack(n), script.task(S1).ack(n))
    assert names(script.calls) == ["complete"]


# ---- attempts


def test_whoever_was_never_ready_never_fails() -> None:
    """R33, R34: an attempt begins with its Start. A task that dies before is nobody's news; Flink tells of it."""
    script = Script.running(restart=RestartStrategy(backoff_first=5.0))
    script.read(script.task(S0).failed())
    script.hello(S0)
    waiting = script.job.registry.waiting[S0]
    script.forget()
    script.read(FailureHint("op", 0, "run-1", waiting.hello.task, "killed while it waited"))
    script.advance(6.0)
    assert script.calls == []
    task = script.hello(S0)
    script.read(task.failed())
    assert names(script.calls) == ["ready", "failed", "subtaskreset"]


def test_of_two_hellos_that_wait_only_the_newer_becomes_an_attempt() -> None:
    """R33: an attempt that is gone before it would be ready is not announced."""
    script = Script.running(restart=RestartStrategy(backoff_first=5.0))
    script.read(script.task(S0).failed())
    older = script.hello(S0)
    newer = script.hello(S0)
    script.forget()
    script.advance(6.0)
    assert (older.started, newer.started) == (False, True)
    assert [c.attempt for c in script.calls if isinstance(c, effects.CallReady)] == [newer.attempt]


def test_a_finished_attempt_that_is_taken_along_is_told_without_a_cause() -> None:
    """R35: as long as no completed checkpoint contains its end, it will run again."""
    script = Script.running()
    task = script.task(S0)
    script.read(task.finished())
    script.forget()
    script.handle(CoordinatorRaised("op", 1, "fail_job", "told to"))
    assert effects.CallFailed("op", 0, task.attempt, None) in script.calls
    assert script.hello(S0).started


# ---- how checkpoints fail


def test_futures_that_coordinators_fail_count_as_failures() -> None:
    """R44: there, the ones of coordinators are not counted."""
    script = Script.running(checkpoint={"tolerable_failures": 1})
    script.auto_cut = False
    for _ in range(2):
        script.handle(FutureFailed("op", script.trigger(), "not now"))
    assert script.job.history.epoch == 2
    assert "2 checkpoints in a row failed" in script.job.statistics.last_failure


def test_what_an_abort_releases_goes_before_the_coordinator_is_told() -> None:
    """R51: what it sends in the notice stands behind what was held."""
    script = Script.running()
    n = script.trigger()
    script.send(script.task(S0), b"held")
    script.forget()
    script.read(script.task(S1).decline(n))
    released = next(e for e in script.effects if isinstance(e, effects.Append) and isinstance(e.record, EventFrame))
    told = effects.CallAborted("op", n, "op/1 declined: cannot")
    assert script.effects.index(released) < script.effects.index(told)


def test_a_stopping_savepoint_that_a_subtask_declines_is_refused_and_fails_nobody() -> None:
    """R64: there, the job fails."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    n = script.savepoint(CommandKind.STOP_WITH_SAVEPOINT)
    script.read(script.task(S0).decline(n))
    assert (script.epoch.number, script.ended) == (1, None)
    assert [reply.accepted for reply in script.replies()] == [False]
    assert script.checkpoint() == script.last_id


# ---- savepoints and turns


def test_a_savepoint_is_a_checkpoint_like_any_other_when_it_completes() -> None:
    """R52: it subsumes older ones, everybody is told, and failovers begin from it."""
    script = Script.running(checkpoint=TWO)
    older = script.trigger()
    savepoint = script.savepoint()
    script.forget()
    script.acknowledge(savepoint)
    reason = f"subsumed by checkpoint {savepoint}"
    assert script.calls == [effects.CallAborted("op", older, reason), effects.CallComplete("op", savepoint)]
    assert script.appended(S0) == [CheckpointAborted(1, older, reason), CompletedNotice(1, savepoint)]
    assert script.hello(S0).start.checkpoint_id == savepoint


def test_a_savepoint_has_the_turn_of_a_periodic_checkpoint_that_waits_too() -> None:
    """R56: being a checkpoint like any other it stands for it, and the interval begins anew."""
    script = Script.running()
    n = script.trigger()
    script.advance(INTERVAL)  # the next periodic one is due
    script.command(CommandKind.SAVEPOINT)
    script.acknowledge(n)
    (next_one,) = script.pending.values()
    assert next_one.savepoint
    script.acknowledge(next_one.id)
    assert script.pending == {}
    script.advance(INTERVAL)
    (after,) = script.pending.values()
    assert not after.savepoint


def test_a_savepoint_counts_among_those_under_way_and_exceeds_nothing() -> None:
    """R57: none is forced."""
    script = Script.running(checkpoint=TWO)
    periodic, savepoint = script.trigger(), script.savepoint()
    script.command(CommandKind.SAVEPOINT)
    script.advance(INTERVAL)
    assert list(script.pending) == [periodic, savepoint]


@pytest.mark.parametrize("how", ["restart", "global"])
def test_in_a_new_epoch_the_first_checkpoint_comes_an_interval_later(how: str) -> None:
    """R59: there, after the minimal pause."""
    script = Script.running()
    script.advance(INTERVAL / 2)
    if how == "restart":
        script.restart()
    else:
        script.handle(CoordinatorRaised("op", 1, "fail_job", "told to"))
    script.hello_all()
    script.advance(INTERVAL - 0.1)
    assert script.pending == {}
    script.advance(0.1)
    assert len(script.pending) == 1


def test_after_a_missed_turn_the_interval_counts_from_the_checkpoint_that_came_late() -> None:
    """R59: a fixed rate would have the next one follow on its heels."""
    script = Script.running()
    n = script.trigger()
    script.advance(1.8 * INTERVAL)
    script.acknowledge(n)
    assert len(script.pending) == 1
    script.acknowledge(max(script.pending))
    script.advance(0.9 * INTERVAL)
    assert script.pending == {}
    script.advance(0.1 * INTERVAL)
    assert len(script.pending) == 1


def test_a_checkpoint_may_begin_while_a_subtask_still_restores() -> None:
    """R60: its marker waits behind its Start in the same partition."""
    script = Script.running()
    script.read(script.task(S0).failed())
    script.hello(S0)  # has its Start, and has said nothing since
    n = script.trigger()
    log = script.events_log[S0]
    start, marker = script.records(S0, Start)[-1], script.records(S0, TriggerCheckpoint)[-1]
    assert (marker.checkpoint_id, log.index(start) < log.index(marker)) == (n, True)


def test_a_single_end_asks_for_a_checkpoint_while_others_work_on() -> None:
    """R61: there, when all have ended."""
    script = Script.running(OperatorSettings("op", 3))
    script.read(script.task(S1).finished())
    (n,) = script.pending
    assert script.pending[n].required == {S0, S1, S2}


# ---- failover


@pytest.mark.parametrize("policy", [FailoverPolicy.REPLAY, FailoverPolicy.RESET])
def test_that_every_subtask_fails_is_not_a_global_failover(policy: FailoverPolicy) -> None:
    """R84: each is a region of its own, and its coordinator keeps its live state."""
    script = Script.running(OperatorSettings("op", 3, on_failover=policy))
    n = script.checkpoint()
    script.forget()
    for subtask in (S0, S1, S2):
        script.read(script.task(subtask).failed())
    resets = [c for c in script.calls if isinstance(c, effects.CallSubtaskReset)]
    assert [(c.subtask, c.checkpoint_id) for c in resets] == [(0, n), (1, n), (2, n)]
    assert "reset" not in names(script.calls)
    assert script.epoch.number == 1


@pytest.mark.parametrize("interval", [None, INTERVAL])
def test_without_any_checkpoint_both_failovers_begin_from_nothing(interval: float | None) -> None:
    """R92: subtask_reset(s, -1), reset_to_checkpoint(-1, None)."""
    script = Script.running(checkpoint={"interval": interval})
    script.read(script.task(S0).failed())
    assert script.calls[-1] == effects.CallSubtaskReset("op", 0, -1)
    script.hello(S0)
    script.read(script.task(S0).heartbeat())
    script.handle(CoordinatorRaised("op", 1, "fail_job", "told to"))
    script.advance(1.0)  # the backoff of a second failover
    assert script.calls[-1] == effects.CallReset("op", -1, None)


def test_gateways_of_before_a_global_failover_lead_nowhere_in_the_new_epoch() -> None:
    """R88: only what goes through gateways of the new epoch's attempts belongs after the restored checkpoint."""
    script = Script.running()
    old = script.task(S0).stream
    script.handle(CoordinatorRaised("op", 1, "fail_job", "told to"))
    script.hello_all()
    script.send(old, b"void")
    script.send(script.task(S0), b"counts")
    assert script.events(S0) == [b"counts"]


def test_nobody_waits_for_the_others_to_be_cancelled() -> None:
    """R81, R85: live instances are told by a Reset in their own partitions, and each comes back by itself."""
    script = Script.running()
    script.handle(CoordinatorRaised("op", 1, "fail_job", "told to"))
    assert [script.appended(s) for s in (S0, S1)] == [[Reset(2, 0)], [Reset(2, 0)]]
    script.hello(S0)
    assert script.task(S0).started
    script.forget()
    script.send(script.task(S0), b"at once")
    assert script.events(S0, epoch=2) == [b"at once"]


def test_what_is_held_comes_back_by_policy() -> None:
    """R73: held events are in no checkpoint. Under replay the successor gets them; under reset they are sent again."""
    for policy in (FailoverPolicy.REPLAY, FailoverPolicy.RESET):
        script = Script.running(OperatorSettings("op", 1, on_failover=policy))
        n = script.trigger()
        stream = script.send(script.task(), b"held")
        script.read(script.task().failed())
        script.hello()
        assert n not in script.pending
        if policy is FailoverPolicy.REPLAY:
            assert (script.events(), stream.failure) == ([b"held"], None)
        else:
            assert script.events() == []
            assert isinstance(stream.failure, TaskNotRunning)
            script.send(script.task(), b"held")
            assert script.events() == [b"held"]
        script.checkpoint()
        assert len(script.committed(CheckpointCompleted)) == 1
