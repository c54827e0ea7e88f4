"""Records that may not stand, stand twice, or are read again by a successor (protocol, sections 4, 6 and 8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.protocol.commands import WAITING_MAX
from penstock.coordinator.protocol.inputs import AppendFailed, AttemptRejected, CoordinatorRaised
from penstock.schemas.acks import CommandKind, FailureHint, Hello, RunStarted
from penstock.schemas.events import EventsRecord, FailoverPolicy, Reset, Start, Stop
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings

from .driver import INTERVAL, LAYOUT, S0, S1, Script


def one_unheard(policy: FailoverPolicy = FailoverPolicy.REPLAY) -> Script:
    """S1 has been heard under its Start, S0 has not."""
    script = Script.begun(OperatorSettings("op", 2, on_failover=policy))
    script.read(RunStarted("run-1", "here"))
    script.hello_all()
    script.read(script.task(S1).heartbeat())
    script.forget()
    return script


def starts(records: list[EventsRecord]) -> list[Start]:
    return [record for record in records if isinstance(record, Start)]


# ---- a Start that may not stand


@pytest.mark.parametrize("policy", list(FailoverPolicy))
def test_it_is_sent_again_also_where_user_code_has_rejected_the_attempt_before(policy: FailoverPolicy) -> None:
    script = one_unheard(policy)
    script.handle(AttemptRejected(S0, script.task(S0).attempt, 1, "no"))
    script.forget()
    script.handle(AppendFailed(script.job.history.epoch, "refused"))
    script.advance(5.0)
    assert starts(script.appended(S0))


def test_it_is_sent_again_also_where_the_attempt_has_been_given_up_as_silent_before() -> None:
    script = one_unheard()
    for _ in range(14):
        script.advance(1.0)
        script.beat()
        script.read(script.task(S1).heartbeat())
    assert script.slot(S0).attempt is None
    script.forget()
    script.handle(AppendFailed(1, "refused"))
    script.advance(5.0)
    assert starts(script.appended(S0))


def test_whoever_has_not_read_it_yet_is_alive_while_it_speaks_in_the_generation_before() -> None:
    """Section 8: what is said in a generation that is over is a sign of life, and nothing else."""
    script = one_unheard()
    before = script.task(S0).heartbeat(5)
    script.handle(AppendFailed(1, "refused"))
    script.advance(5.0)
    script.hello_all()
    assert script.slot(S0).attempt is not None
    current = script.slot(S0).attempt.id
    before = replace(before, sender=replace(before.sender, attempt=current))
    for _ in range(30):
        script.advance(1.0)
        script.beat()
        script.read(script.task(S1).heartbeat(), before)
    assert script.slot(S0).attempt is not None
    assert script.slot(S0).attempt.handled_through == 0
    for _ in range(30):
        script.advance(1.0)
        script.beat()
        script.read(script.task(S1).heartbeat())
    assert script.slot(S0).attempt is None


def test_what_the_one_that_is_sent_again_had_displaced_still_waits_behind_it() -> None:
    script = Script.begun()
    script.read(RunStarted("run-1", "here"))
    script.slot(S0).start_not_before = 100.0
    older = script.hello(S0).attempt
    script.hello(S0)
    newer = script.job.registry.waiting[S0].hello
    script.advance(100.0)
    script.events_log[S0].clear()
    script.job.restarts.spend(script.now)
    script.handle(AppendFailed(1, "refused"))
    script.read(FailureHint("op", 0, "run-1", newer.task, "its worker died"))
    script.advance(100.0)
    assert [start.attempt for start in starts(script.events_log[S0])] == [older]


def test_a_stop_is_sent_again_in_the_next_epoch_until_a_checkpoint_stands_behind_it() -> None:
    script = Script.running()
    old = script.task(S0).attempt
    script.hello(S0)
    script.read(Hello("op", 0, "run-1", "again", "task-of-old", "host", LAYOUT, 1, old))
    script.forget()
    script.handle(AppendFailed(1, "refused"))
    script.advance(5.0)
    assert [(stop.nonce, stop.epoch) for stop in script.appended(S0) if isinstance(stop, Stop)] == [("again", 2)]
    script.hello_all()
    script.checkpoint()
    script.forget()
    script.handle(AppendFailed(2, "refused"))
    script.advance(5.0)
    assert not [record for record in script.appended(S0) if isinstance(record, Stop)]


def stops(script: Script) -> list[str]:
    """Who is told to leave anew when the broker has not taken a record."""
    script.forget()
    script.handle(AppendFailed(script.job.history.epoch, "refused"))
    script.advance(60.0)
    return [stop.nonce for stop in script.appended(S0) if isinstance(stop, Stop)]


def stranger(script: Script) -> None:
    """An instance of an older run, which is told to leave."""
    script.read(Hello("op", 0, "run-0", "stranger", "its task", "host", LAYOUT, 1))
    assert any(stop.nonce == "stranger" for stop in script.records(S0, Stop))


def test_a_stop_behind_the_markers_of_the_checkpoint_that_completes_is_sent_again() -> None:
    """Section 8: until a completed checkpoint's markers stand behind it; those of this one stand before it."""
    script = Script.running()
    n = script.trigger()
    stranger(script)
    script.acknowledge(n)
    assert script.last_id == n
    assert stops(script) == ["stranger"]


def test_a_stop_ahead_of_the_markers_of_the_next_one_is_not() -> None:
    script = Script.running()
    n = script.trigger()
    stranger(script)
    script.acknowledge(n)
    script.checkpoint()
    assert stops(script) == []


def test_a_stop_to_a_subtask_that_has_finished_is_owed_for_good() -> None:
    """It gets no marker any more that could show that the Stop stands."""
    script = Script.running()
    script.read(script.task(S0).finished())
    (n,) = script.pending
    script.read(script.task(S0).ack(n, finished=True), script.task(S1).ack(n))
    script.hello(S0)
    script.trigger()
    script.read(script.task(S1).ack(script.job.schedule.next_id - 1))
    assert script.last_id > n
    assert "nonce-3" in stops(script)


def test_a_rejection_through_the_gateway_of_an_earlier_epoch_fails_nobody() -> None:
    """Section 6: exactly that attempt, never its successor; the same id can live on under a new epoch."""
    script = one_unheard()
    same = script.task(S0).attempt
    script.handle(CoordinatorRaised("op", 1, "call_later", "boom"))
    attempt = script.slot(S0).attempt
    assert attempt is not None
    assert (attempt.id, script.epoch.number) == (same, 2)
    script.handle(AttemptRejected(S0, same, 1, "the write of epoch 1 failed"))
    assert script.slot(S0).attempt is attempt


# ---- what a successor reads back


def test_a_task_that_was_reported_dead_supersedes_nobody_at_a_takeover() -> None:
    """The hint stands between the two Hellos."""
    script = Script.running()
    first = script.task(S0)
    attempt = script.slot(S0).attempt
    assert attempt is not None
    script.job.restarts.spend(script.now)
    script.hello(S0)
    script.read(FailureHint("op", 0, "run-1", script.job.registry.waiting[S0].hello.task, "its worker died"))
    assert isinstance(script.events_log[S0][-1], Reset)
    again = len(script.acks)
    script.read(Hello("op", 0, "run-1", "again", attempt.hello.task, "host", LAYOUT, 1, first.attempt))
    script.advance(60.0)
    script.forget()
    script.restart()
    script.advance(60.0)
    assert not [record for record in script.appended(S0) if isinstance(record, Stop)]
    assert [start.attempt for start in starts(script.appended(S0))] == [again]


def test_what_has_run_since_supersedes_what_seemed_to_have_taken_its_place_at_a_takeover() -> None:
    """Nobody reported the twin's death: but the log holds what the other one said under its Start."""
    script = Script.running()
    first = script.task(S0)
    attempt = script.slot(S0).attempt
    assert attempt is not None
    script.hello(S0, read=False)
    again = len(script.acks)
    script.write(Hello("op", 0, "run-1", "again", attempt.hello.task, "host", LAYOUT, 1, first.attempt))
    beat = replace(first.heartbeat(), sender=replace(first.sender, attempt=again))
    script.write(beat)
    script.forget()
    script.restart()
    assert [start.attempt for start in starts(script.appended(S0))] == [again]


def test_the_inbox_range_of_an_operator_that_is_gone_keeps_no_checkpoint_waiting() -> None:
    script = Script.running(OperatorSettings("op", 1), OperatorSettings("gone", 1))
    gone = script.task(SubtaskId("gone", 0))
    n = script.trigger()
    script.read(gone.frame(b"late"))
    script.acknowledge(n)
    script.restart(replace(script.settings, operators=(OperatorSettings("op", 1),)))
    script.hello()
    script.read(script.task().heartbeat())
    script.advance(10 * INTERVAL)
    assert script.pending


# ---- what stands twice


def test_a_frame_of_the_inbox_range_that_stands_twice_is_handed_over_once() -> None:
    script = Script.running()
    n = script.trigger()
    frame = script.task().frame(b"once")
    script.read(frame, frame)
    assert script.received() == [b"once"]
    script.acknowledge(n)
    script.restart()
    script.forget()
    script.hello_all()
    assert script.received() == [b"once"]


def test_a_run_that_has_been_replaced_does_not_come_back() -> None:
    script = Script.running()
    script.read(RunStarted("run-2", "there"), RunStarted("run-1", "here"))
    assert script.job.registry.run_id == "run-2"
    script.restart()
    assert script.job.registry.run_id == "run-2"


# ---- commands


def test_a_plain_stop_needs_no_room_among_those_that_wait() -> None:
    script = Script.running()
    script.read(script.task(S0).failed())
    for _ in range(WAITING_MAX):
        script.command(CommandKind.SAVEPOINT)
    script.command(CommandKind.STOP)
    assert script.ended is not None
