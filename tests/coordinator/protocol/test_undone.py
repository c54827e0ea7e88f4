"""Who was to start over and does not: stuck in user code, or frozen, also across a takeover (protocol, section 8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AppendFailed, CoordinatorRaised
from penstock.coordinator.status import job_status
from penstock.schemas.acks import FailureHint, Heartbeat, Hello, RunStarted
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings, Restore
from penstock.schemas.status import Ending, SubtaskStatus

from .driver import LAYOUT, S0, S1, Script

TIMEOUT = 30.0


def running(policy: FailoverPolicy = FailoverPolicy.REPLAY) -> Script:
    return Script.running(
        OperatorSettings("op", 2, on_failover=policy, event_ack_timeout=5.0),
        checkpoint={"interval": 1000.0},
        task_cancellation_timeout=TIMEOUT,
    )


def saying(script: Script, step: str = "in process") -> Heartbeat:
    """What S0 says while its user code does not return, whatever the coordinator writes meanwhile."""
    return script.task(S0).heartbeat(step=step)


def roll_back(script: Script) -> None:
    """Everybody is to start over; S1 does."""
    script.handle(CoordinatorRaised("op", script.job.current.number, "step", "boom"))
    script.advance(5.0)
    script.hello(S1)
    script.forget()


def pass_time(script: Script, seconds: float, *said: Heartbeat) -> None:
    """S1 lives; of S0 only what is given is read, each second."""
    for _ in range(round(seconds)):
        script.live(1.0, S0)
        if script.ended is None:
            script.read(*said)


def kills(script: Script) -> list[tuple[SubtaskId, str]]:
    return [(kill.subtask, kill.task) for kill in script.made(effects.KillTask)]


def shown(script: Script, subtask: SubtaskId = S0) -> SubtaskStatus:
    (operator,) = job_status(script.job).operators
    return operator.subtasks[subtask.index]


# ---- stuck


@pytest.mark.parametrize("policy", list(FailoverPolicy))
def test_one_whose_user_code_goes_on_for_too_long_has_its_task_ended(policy: FailoverPolicy) -> None:
    """G6: it beats, so it is not silent; it cannot obey the Reset, and everybody waits for it."""
    script = running(policy)
    said = saying(script)
    roll_back(script)
    pass_time(script, TIMEOUT - 2, said)
    assert not kills(script)
    pass_time(script, 5, said)
    assert kills(script) == [(S0, "task-1")]
    pass_time(script, TIMEOUT - 5, said)
    assert len(kills(script)) == 1


def test_the_task_that_comes_in_its_place_ends_the_wait() -> None:
    script = running()
    said = saying(script)
    roll_back(script)
    pass_time(script, TIMEOUT + 3, said)
    assert script.ended is None
    script.hello(S0)
    script.forget()
    script.live(3 * TIMEOUT)
    assert not kills(script)
    assert script.ended is None
    assert shown(script).step == "polling"


def test_where_nobody_ends_its_task_the_job_fails_and_says_who_it_is_and_what_to_do() -> None:
    """G6: a coordinator without a runner beside it can end no task."""
    script = running()
    said = saying(script)
    roll_back(script)
    pass_time(script, TIMEOUT + 3, said)
    assert script.ended is None
    pass_time(script, TIMEOUT + 3, said)
    assert script.ended is not None
    assert script.ended.ending is Ending.FAILED
    for what in ("op/0", "attempt 1", "in process", "task task-1", "host host", "task_cancellation_timeout (30 s)"):
        assert what in script.ended.cause, what


def test_one_whose_task_was_to_end_for_its_events_and_goes_on_fails_the_job_too() -> None:
    """Its task was to be ended when it was failed, and is not ended twice."""
    script = running()
    script.send(script.task(S0), b"event")
    said = saying(script)
    pass_time(script, 8, said)
    assert kills(script) == [(S0, "task-1")]
    pass_time(script, TIMEOUT - 5, said)
    assert script.ended is None
    pass_time(script, 8, said)
    assert script.ended is not None
    assert len(kills(script)) == 1


def test_one_that_falls_silent_when_its_task_is_to_end_is_waited_for() -> None:
    """It has died, and its task may be started again when the cluster has room: that may take any time."""
    script = running()
    said = saying(script)
    roll_back(script)
    pass_time(script, TIMEOUT + 3, said)
    pass_time(script, 10 * TIMEOUT)
    assert script.ended is None
    assert len(kills(script)) == 1


def test_further_failovers_do_not_give_it_more_time() -> None:
    script = running()
    said = saying(script)
    roll_back(script)
    for _ in range(3):
        pass_time(script, 10, said)
        script.read(script.task(S1).failed())
        script.hello(S1)
    pass_time(script, 5, said)
    assert kills(script) == [(S0, "task-1")]


def test_time_in_which_the_broker_is_away_does_not_count() -> None:
    """Section 8: a broker that is away for a minute fails nobody."""
    script = running()
    said = saying(script)
    roll_back(script)
    pass_time(script, 5, said)
    for _ in range(120):
        script.advance(1.0)
    pass_time(script, 10, said)
    assert not kills(script)


def test_the_status_names_who_is_waited_for_and_since_when() -> None:
    """G6."""
    script = running()
    said = saying(script)
    assert shown(script).host == "host"
    roll_back(script)
    pass_time(script, 12, said)
    seen = shown(script)
    assert (seen.phase, seen.host, seen.step) == ("absent", "host", "to start over for 11 s: attempt 1 (in process)")
    pass_time(script, TIMEOUT - 7, said)
    assert shown(script).step.endswith("(in process), its task was to end 3 s ago")
    pass_time(script, 8)
    assert shown(script).silent_s >= 7


# ---- another comes in its place, and dies before its Start


def no_start(script: Script) -> None:
    script.slot(S0).start_not_before = script.now + 5 * TIMEOUT


def in_its_place(script: Script, failed_before: bool) -> None:
    """A second instance of S0 says Hello, and waits for its Start."""
    script.read(script.task(S1).failed())  # the first failover has no backoff
    script.hello(S1)
    if failed_before:
        script.read(script.task(S0).failed())
        no_start(script)
    script.hello(S0)
    no_start(script)


def it_dies(script: Script) -> None:
    hello = script.job.registry.waiting[S0].hello
    script.read(FailureHint("op", 0, hello.run, hello.task, "its worker died"))
    assert S0 not in script.job.registry.waiting


@pytest.mark.parametrize("failed_before", [True, False])
def test_one_that_is_stuck_has_its_task_ended_although_another_had_come_in_its_place(failed_before: bool) -> None:
    """G6; it is told to start over when that one dies: from then on it counts."""
    script = running()
    said = saying(script)
    in_its_place(script, failed_before)
    pass_time(script, TIMEOUT + 5, said)
    assert not kills(script)
    assert shown(script).phase == "waiting"
    it_dies(script)
    pass_time(script, TIMEOUT - 2, said)
    assert not kills(script)
    pass_time(script, 5, said)
    assert kills(script) == [(S0, "task-1")]
    pass_time(script, TIMEOUT + 3, said)
    assert script.ended is not None


@pytest.mark.parametrize("failed_before", [True, False])
def test_one_that_is_frozen_has_its_task_ended_although_another_had_come_in_its_place(failed_before: bool) -> None:
    script = running()
    in_its_place(script, failed_before)
    pass_time(script, 15)
    assert not kills(script)
    it_dies(script)
    pass_time(script, 1)
    assert kills(script) == [(S0, "task-1")]


def test_one_that_has_said_hello_itself_is_not_waited_for_when_its_task_dies() -> None:
    """It has started over; that its task is gone is known."""
    script = running()
    script.read(script.task(S0).failed())
    no_start(script)
    script.read(Hello("op", 0, "run-1", "again", "task-1", "host", LAYOUT, 1, previous=script.task(S0).attempt))
    it_dies(script)
    pass_time(script, 15)
    assert not kills(script)


# ---- across a takeover


def follow(script: Script) -> None:
    """A successor from a checkpoint behind all that the subtasks said when they started; S1 obeys its Reset."""
    script.live(3)
    script.checkpoint()
    script.acks_begin = script.job.history.checkpoints[script.last_id].inbox_position
    script.restart()
    script.hello(S1)
    script.forget()


def test_one_that_was_frozen_at_a_takeover_has_its_task_ended_and_the_job_goes_on() -> None:
    """Its Hello is truncated away; the checkpoint says which task it was."""
    script = running()
    follow(script)
    pass_time(script, 9)
    assert not kills(script)
    pass_time(script, 5)
    assert kills(script) == [(S0, "task-1")]
    pass_time(script, 10 * script.settings.start_timeout)
    assert script.ended is None, "it has registered once: nothing says that there are too few slots"
    script.hello(S0)
    assert script.task(S0).started


def test_one_that_was_stuck_at_a_takeover_is_named_and_has_its_task_ended() -> None:
    script = running()
    said = saying(script)
    follow(script)
    pass_time(script, 20, said)
    assert not kills(script)
    assert "attempt 1 (in process)" in shown(script).step
    pass_time(script, TIMEOUT - 17, said)
    assert kills(script) == [(S0, "task-1")]
    pass_time(script, TIMEOUT + 3, said)
    assert script.ended is not None
    assert "attempt 1 goes on (in process)" in script.ended.cause


def other_process(script: Script) -> None:
    """The newest Hello is behind the inbox position, and waits for its Start."""
    script.read(script.task(S0).failed())
    script.hello(S0)
    script.restart()


def at_an_older_one(script: Script) -> None:
    """The newest attempt is known from the newest checkpoint, whichever is restored."""
    older = script.last_id
    script.read(script.task(S0).failed())
    script.hello(S0)
    script.checkpoint()
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=older)


def afresh(script: Script) -> None:
    script.read(script.task(S0).failed())
    script.hello(S0)
    script.checkpoint()
    script.acks_begin = script.job.history.checkpoints[script.last_id].inbox_position
    script.restart(restore=Restore.FRESH)


@pytest.mark.parametrize("starts", [other_process, at_an_older_one, afresh])
def test_the_task_that_is_ended_is_that_of_the_newest_attempt(starts: Callable[[Script], None]) -> None:
    script = running()
    script.checkpoint()
    starts(script)
    script.hello(S1)
    script.forget()
    pass_time(script, 15)
    assert kills(script) == [(S0, "task-3")]


def test_no_task_of_a_run_that_has_been_replaced_is_ended() -> None:
    """Its name may be that of another task by now; and whoever is missing has never registered."""
    script = running()
    script.checkpoint()
    script.write(RunStarted("run-2", "there"))
    script.restart()
    script.hello(S1, "run-2")
    script.forget()
    pass_time(script, 60)
    assert not kills(script)
    pass_time(script, 2 * script.settings.start_timeout)
    assert script.ended is not None
    assert "registered within" in script.ended.cause


def test_a_task_that_was_to_start_over_is_not_ended_once_a_newer_run_has_begun() -> None:
    script = running()
    roll_back(script)
    script.read(RunStarted("run-2", "there"))
    script.hello(S1, "run-2")
    script.forget()
    pass_time(script, 2 * TIMEOUT)
    assert not kills(script)


def test_one_whose_end_the_checkpoint_contains_is_not_waited_for() -> None:
    script = running()
    script.read(script.task(S0).finished())
    (n,) = script.pending
    script.read(script.task(S0).ack(n, finished=True), script.task(S1).ack(n))
    assert script.last_id == n
    script.restart()
    script.hello(S1)
    script.forget()
    pass_time(script, 60)
    assert not kills(script)
    assert shown(script).phase == "finished"


def test_one_that_lives_obeys_the_reset_and_nobody_ends_its_task() -> None:
    script = running()
    follow(script)
    pass_time(script, 5)
    script.hello(S0)
    script.live(60)
    assert not kills(script)


def test_the_checkpoint_names_the_task_of_every_attempt() -> None:
    script = running()
    script.checkpoint()
    last = script.job.history.last
    assert last is not None
    assert {subtask: snapshot.task for subtask, snapshot in last.subtasks.items()} == {S0: "task-1", S1: "task-2"}


@pytest.mark.parametrize("successor", [False, True])
def test_a_run_whose_tasks_have_all_died_is_waited_for_also_by_a_successor(successor: bool) -> None:
    """Each has registered once, so slots are not too few for it. They may come back; the status says who is missing."""
    script = running()
    script.live(3)
    script.checkpoint()
    script.acks_begin = script.job.history.checkpoints[script.last_id].inbox_position
    if successor:
        script.restart()
    script.forget()
    script.live(3 * script.settings.start_timeout, S0, S1)
    assert script.ended is None
    assert sorted(kills(script)) == [(S0, "task-1"), (S1, "task-2")]
    assert all("to start over" in shown(script, subtask).step for subtask in (S0, S1))


# ---- a Start that it does not obey


def test_one_that_speaks_and_not_under_its_start_has_its_task_ended() -> None:
    """Its Hello was found at the takeover and answered; it is in user code of the generation before, and beats."""
    script = running()
    said = saying(script)
    script.restart()
    assert script.slot(S0).attempt is not None
    script.hello(S1)
    script.forget()
    pass_time(script, TIMEOUT - 2, said)
    assert not kills(script)
    pass_time(script, 5, said)
    assert kills(script) == [(S0, "task-1")]
    pass_time(script, TIMEOUT + 3, said)
    assert script.ended is not None
    assert "attempt 1 goes on (in process)" in script.ended.cause


def test_rollbacks_that_send_it_another_start_do_not_give_it_more_time() -> None:
    """Section 8: a Start may not stand, so it is sent again in each new epoch."""
    script = running()
    said = saying(script)
    script.restart()
    script.hello(S1)
    script.forget()
    for _ in range(3):
        pass_time(script, 9, said)
        script.handle(CoordinatorRaised("op", script.job.current.number, "step", "boom"))
        script.advance(2.0)
        assert script.slot(S0).attempt is not None
        script.hello(S1)
    pass_time(script, 6, said)
    assert kills(script) == [(S0, "task-1")]


def test_one_that_obeys_its_start_at_last_is_left_alone() -> None:
    script = running()
    said = saying(script)
    script.restart()
    script.hello(S1)
    script.forget()
    pass_time(script, TIMEOUT - 5, said)
    script.live(3 * TIMEOUT)
    assert not kills(script)


def test_one_that_has_said_nothing_since_its_start_is_not_taken_for_one_that_goes_on() -> None:
    """Its Start was long on its way and then refused; the epoch that follows sends another, for which it has waited."""
    script = running()
    script.read(script.task(S0).failed())
    script.hello(S0)
    pass_time(script, TIMEOUT + 5)
    assert script.slot(S0).attempt is None, "silent"
    script.handle(AppendFailed(script.epoch.number, "timed out"))
    script.advance(10.0)
    script.hello(S1)
    assert script.slot(S0).attempt is not None
    script.forget()
    pass_time(script, 5)
    assert not kills(script)
    script.live(TIMEOUT)
    assert script.slot(S0).attempt is not None


def test_one_whose_end_stands_in_an_abandoned_checkpoint_is_missed_and_not_killed() -> None:
    """The job is set back to before it: its task has returned, and nobody starts it again."""
    script = Script.running()
    before = script.checkpoint()
    script.read(script.task(S1).finished())
    n = script.trigger() if not script.pending else next(iter(script.pending))
    script.acknowledge(n, S1)
    script.read(script.task(S1).ack(n, finished=True))
    assert n in script.job.history.checkpoints
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=before)
    script.hello(S0)
    script.tasks.pop(S1)
    script.live(2 * script.settings.start_timeout)
    assert kills(script) == []
    assert script.ended is not None and "only 1 of 2 subtasks registered" in script.ended.cause


def test_two_tasks_that_die_at_once_leave_the_hello_that_both_displaced() -> None:
    """Section 8: each Hello displaced the one before; with both tasks dead the first is the newest again."""
    script = Script.running()
    first = script.hello(S0, read=False)
    dead = [script.hello(S0, read=False) for _ in range(2)]
    tasks = [record.task for _, record in script.acks if isinstance(record, Hello)][-2:]
    for task in reversed(tasks):
        script.write(FailureHint(*S0, "run-1", task, "killed"))
    script.restart()
    assert first.started
    assert not any(task.started for task in dead)
