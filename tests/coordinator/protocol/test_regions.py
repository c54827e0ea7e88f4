"""Subtasks that data channels connect fail together, and only those (protocol, sections 2 and 8)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AttemptRejected
from penstock.coordinator.protocol.state import SlotPhase
from penstock.schemas.acks import FailureHint, Hello, RunStarted
from penstock.schemas.errors import TaskNotRunning
from penstock.schemas.events import CheckpointAborted, EventFrame, FailoverPolicy, Reset, Start, Welcome
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings, RestartStrategy

from .driver import Script, channel, names

A0, A1 = SubtaskId("a", 0), SubtaskId("a", 1)
B0, B1 = SubtaskId("b", 0), SubtaskId("b", 1)
FOREVER = RestartStrategy(backoff_next=0.0, backoff_max=0.0, budget=1_000)


def pair(
    partitioning: Partitioning = Partitioning.KEYED,
    *,
    a: FailoverPolicy = FailoverPolicy.REPLAY,
    b: FailoverPolicy = FailoverPolicy.REPLAY,
    parallelism: int = 2,
    coordinated: bool = True,
    **changes: object,
) -> Script:
    """Operator ``a`` feeds operator ``b``; every subtask runs, and restarts are not delayed."""
    changes.setdefault("restart", FOREVER)
    return Script.running(
        OperatorSettings("a", parallelism, on_failover=a),
        OperatorSettings(
            "b", parallelism, on_failover=b, has_coordinator=coordinated, inputs=(InputSettings("a", partitioning),)
        ),
        **changes,
    )


def resets(script: Script) -> dict[SubtaskId, list[Reset]]:
    """Appended since the last forget()."""
    found = {s: [r for r in script.appended(s) if isinstance(r, Reset)] for s in script.settings.subtasks()}
    return {subtask: records for subtask, records in found.items() if records}


def failures(script: Script) -> list[tuple[SubtaskId, int, str | None]]:
    calls = [c for c in script.calls if isinstance(c, effects.CallFailed)]
    return [(SubtaskId(c.operator, c.subtask), c.attempt, c.reason) for c in calls]


def reset_subtasks(script: Script) -> list[tuple[SubtaskId, int]]:
    calls = [c for c in script.calls if isinstance(c, effects.CallSubtaskReset)]
    return [(SubtaskId(c.operator, c.subtask), c.checkpoint_id) for c in calls]


def finish(script: Script, *subtasks: SubtaskId) -> int:
    """These end, and a completed checkpoint contains that; returns its id."""
    script.read(*(script.task(s).finished() for s in subtasks))
    (n,) = script.pending
    for slot in script.job.live():
        script.read(script.task(slot.subtask).ack(n, finished=slot.subtask in subtasks))
    assert script.last_id == n
    return n


# ---- what a failure does


@pytest.mark.parametrize("failing", [A0, B1])
def test_a_failure_resets_every_subtask_of_the_region_once(failing: SubtaskId) -> None:
    """Section 8: new generation, Reset(generation) to every partition of the region; up and down the stream."""
    script = pair()
    script.read(script.task(failing).failed())
    assert resets(script) == {s: [Reset(1, 1)] for s in (A0, A1, B0, B1)}
    assert {s: slot.generation for s, slot in script.epoch.slots.items()} == {A0: 1, A1: 1, B0: 1, B1: 1}
    assert all(slot.phase is SlotPhase.ABSENT for slot in script.epoch.slots.values())
    assert script.epoch.number == 1


def test_each_failover_is_one_generation_more_for_all() -> None:
    """Section 4: frames of another generation are dropped, so sender and receiver must agree on theirs."""
    script = pair()
    for failing in (A0, B1, A1):
        script.read(script.task(failing).failed())
        script.hello_all()
        assert len({script.task(s).start.full_generation for s in (A0, A1, B0, B1)}) == 1
    assert script.task(A0).start.generation == 3


def test_only_the_failed_one_gets_a_cause() -> None:
    """Section 8: execution_attempt_failed(s, attempt, cause), then the others of the region with no cause."""
    script = pair()
    attempts = {s: script.task(s).attempt for s in script.settings.subtasks()}
    script.read(script.task(B0).failed("boom"))
    assert failures(script) == [
        (B0, attempts[B0], "boom"), (A0, attempts[A0], None), (A1, attempts[A1], None), (B1, attempts[B1], None)
    ]  # fmt: skip


def test_all_are_told_of_the_failure_then_of_aborted_checkpoints_then_of_the_reset() -> None:
    """Section 8; each coordinator sees failed, aborted, reset, in this order."""
    script = pair(parallelism=1)
    n = script.trigger()
    script.forget()
    script.read(script.task(A0).failed())
    assert names(script.calls) == ["failed", "failed", "aborted", "aborted", "subtaskreset", "subtaskreset"]
    assert script.pending == {}
    kinds = [type(r) for r in script.appended(B0) if isinstance(r, CheckpointAborted | Reset)]
    assert kinds == [CheckpointAborted, Reset]
    assert [r.checkpoint_id for r in script.appended(B0) if isinstance(r, CheckpointAborted)] == [n]


def test_every_member_is_reset_to_the_last_completed_checkpoint() -> None:
    """Section 8: subtask_reset(s, n)."""
    script = pair()
    n = script.checkpoint()
    script.forget()
    script.read(script.task(A1).failed())
    assert sorted(reset_subtasks(script)) == [(A0, n), (A1, n), (B0, n), (B1, n)]


def test_an_operator_without_a_coordinator_starts_over_and_nobody_is_called() -> None:
    """Section 8."""
    script = pair(coordinated=False)
    script.read(script.task(B0).failed())
    assert set(resets(script)) == {A0, A1, B0, B1}
    assert [s for s, _, _ in failures(script)] == [A0, A1]
    assert [s for s, _ in reset_subtasks(script)] == [A0, A1]


def test_the_coordinators_keep_their_live_state() -> None:
    """Section 8: a region failover rolls no coordinator back."""
    script = pair()
    script.read(script.task(A0).failed())
    assert "reset" not in names(script.calls)
    assert script.job.statistics.global_failovers == 0
    assert script.job.statistics.region_failovers == 1


def test_one_failure_of_a_region_spends_one_restart() -> None:
    """Section 8: a budget per time, of failovers and not of subtasks."""
    script = pair(restart=RestartStrategy(backoff_next=0.0, backoff_max=0.0, budget=1))
    script.read(script.task(A0).failed())
    assert script.ended is None
    script.hello_all()
    script.read(script.task(B0).failed())
    assert script.ended is not None


def test_the_backoff_holds_for_every_member() -> None:
    """Section 8: the coordinator delays Start by the restart strategy's backoff; a region begins as a whole."""
    script = pair(restart=RestartStrategy(backoff_first=5.0, backoff_next=5.0, budget=10))
    script.read(script.task(A0).failed())
    script.hello_all()
    assert not any(script.task(s).started for s in script.settings.subtasks())
    script.advance(5.0)
    assert all(script.task(s).started for s in script.settings.subtasks())


def test_a_second_failure_from_before_the_reset_counts_no_more() -> None:
    """Section 3: what does not match attempt and generation is dropped and counted ◆."""
    script = pair()
    late = script.task(B0).failed()
    script.read(script.task(A0).failed())
    script.forget()
    script.read(late)
    assert script.effects == []
    assert script.dropped("stale-Failed") == 1


def test_what_was_acknowledged_before_the_reset_completes_nothing() -> None:
    """Section 7.7: all acked by identity, the generation included."""
    script = pair()
    n = script.trigger()
    script.acknowledge(n, B1)
    ack = script.task(B1).ack(n)
    script.read(script.task(A0).failed(), ack)
    assert script.last_id == -1
    assert script.dropped("stale-CheckpointAck") == 1


def test_no_checkpoint_begins_before_the_whole_region_runs_again() -> None:
    """Section 7.1."""
    script = pair()
    script.read(script.task(A0).failed())
    for subtask in (A0, A1, B0):
        script.hello(subtask)
    script.advance(100.0)
    assert script.pending == {}
    script.hello(B1)
    assert len(script.pending) == 1


def test_members_that_have_never_run_start_in_the_new_generation() -> None:
    """Section 4: the first of a region may fail before the last has come."""
    script = Script.begun(
        OperatorSettings("a", 1), OperatorSettings("b", 1, inputs=(InputSettings("a", Partitioning.KEYED),)),
        restart=FOREVER,
    )  # fmt: skip
    script.read(RunStarted("run-1", "here"))
    script.hello(A0)
    script.read(script.task(A0).failed())
    assert [s for s, _, _ in failures(script)] == [A0]  # b/0 has no attempt to fail
    assert script.hello(B0).start.generation == script.hello(A0).start.generation == 1


@pytest.mark.parametrize("cause", ["hello", "hint", "rejected", "gap"])
def test_every_kind_of_failure_takes_the_region_along(cause: str) -> None:
    """Section 8, causes."""
    script = pair()
    task = script.task(B0)
    match cause:
        case "hello":
            script.hello(B0)
        case "hint":
            said = next(r for _, r in script.acks if isinstance(r, Hello) and r.nonce == task.nonce)
            script.read(FailureHint("b", 0, said.run, said.task, "its executor is gone"))
        case "rejected":
            script.handle(AttemptRejected(B0, task.attempt, 1, "commit refused"))
        case "gap":
            task.sent = 7
            script.read(task.frame(b"event"))
    assert {s: slot.generation for s, slot in script.epoch.slots.items()} == {A0: 1, A1: 1, B0: 1, B1: 1}


# ---- the Hello that is the cause


def test_the_hello_that_causes_a_failover_gets_its_start_alone() -> None:
    """Section 8 ◆: its Start carries the new generation; the others get a Reset."""
    script = pair()
    newer = script.hello(B0)
    assert resets(script) == {s: [Reset(1, 1)] for s in (A0, A1, B1)}
    assert [type(r) for r in script.appended(B0)] == [Welcome, Start]
    assert newer.start.generation == 1


def test_it_gets_no_reset_while_it_waits_for_the_backoff_either() -> None:
    """Section 8 ◆: its Start, when the backoff is over, carries the generation."""
    script = pair(restart=RestartStrategy(backoff_first=5.0, budget=10))
    newer = script.hello(B0)
    for subtask in (A0, A1, B1):
        script.hello(subtask)
    assert script.appended(B0) == []
    script.advance(5.0)
    assert [type(r) for r in script.appended(B0)] == [Welcome, Start]
    assert newer.start.generation == 1


def test_a_newer_hello_of_a_member_that_waits_already_causes_nothing() -> None:
    """Section 8: only a live attempt can be failed by a newer Hello."""
    script = pair(restart=RestartStrategy(backoff_first=5.0, budget=10))
    script.read(script.task(A0).failed())
    script.hello(B1)
    newest = script.hello(B1)
    assert {s: slot.generation for s, slot in script.epoch.slots.items()} == {A0: 1, A1: 1, B0: 1, B1: 1}
    script.advance(5.0)
    assert [r.attempt for r in script.records(B1, Start)][1:] == [newest.attempt]


# ---- who is left out


def test_members_whose_end_is_in_a_completed_checkpoint_are_left_out() -> None:
    """Section 8: nothing of them is undone, and nobody is there to obey."""
    script = pair()
    finish(script, A0)
    assert script.slot(A0).phase is SlotPhase.DONE
    script.forget()
    script.read(script.task(B0).failed())
    assert set(resets(script)) == {A1, B0, B1}
    assert {s for s, _, _ in failures(script)} == {A1, B0, B1}
    assert {s for s, _ in reset_subtasks(script)} == {A1, B0, B1}
    assert script.slot(A0).phase is SlotPhase.DONE
    assert script.slot(A0).generation == 0


def test_a_region_with_a_done_member_goes_on_with_checkpoints() -> None:
    """G6."""
    script = pair()
    finish(script, A0)
    script.read(script.task(B0).failed())
    for subtask in (A1, B0, B1):
        script.hello(subtask)
    n = script.checkpoint()
    assert script.last_id == n


def test_a_member_that_has_finished_and_is_in_no_checkpoint_yet_starts_over() -> None:
    """Section 8: a finished instance stays and obeys Reset until a completed checkpoint contains its end."""
    script = pair()
    script.read(script.task(A0).finished())
    script.read(script.task(B0).failed())
    assert resets(script)[A0] == [Reset(1, 1)]
    assert script.hello(A0).start.generation == 1


def test_forward_regions_are_independent() -> None:
    """Section 2: subtasks that no channel connects are regions of their own."""
    script = pair(Partitioning.FORWARD)
    script.read(script.task(B1).failed())
    assert resets(script) == {A1: [Reset(1, 1)], B1: [Reset(1, 1)]}
    assert {s for s, _, _ in failures(script)} == {A1, B1}
    assert {s: slot.generation for s, slot in script.epoch.slots.items()} == {A0: 0, A1: 1, B0: 0, B1: 1}
    assert [s.subtask for s in script.job.live()] == [A0, B0]
    script.read(script.task(A0).heartbeat())
    assert script.dropped("stale-Heartbeat") == 0


def test_two_forward_regions_count_their_own_generations() -> None:
    """Section 2, generation: one uninterrupted history of a failover region."""
    script = pair(Partitioning.FORWARD)
    for failing in (A0, B1, A0):
        script.read(script.task(failing).failed())
        for subtask in script.settings.subtasks():
            if script.slot(subtask).phase is SlotPhase.ABSENT:
                script.hello(subtask)
    generations = {s: script.task(s).start.generation for s in script.settings.subtasks()}
    assert generations == {A0: 2, B0: 2, A1: 1, B1: 1}


def test_an_operator_without_channels_is_none_of_a_regions_business() -> None:
    """Section 2, region."""
    script = Script.running(
        OperatorSettings("a", 1),
        OperatorSettings("b", 1, inputs=(InputSettings("a", Partitioning.KEYED),)),
        OperatorSettings("lone", 1),
        restart=FOREVER,
    )
    script.read(script.task(A0).failed())
    assert set(resets(script)) == {A0, B0}


def test_a_region_reaches_over_several_operators() -> None:
    """Section 2: connected by channels, in any direction and at any distance."""
    keyed = Partitioning.KEYED
    script = Script.running(
        OperatorSettings("a", 1), OperatorSettings("other", 1),
        OperatorSettings("b", 1, inputs=(InputSettings("a", keyed), InputSettings("other", keyed))),
        OperatorSettings("end", 1, inputs=(InputSettings("b", keyed),)),
        restart=FOREVER,
    )  # fmt: skip
    script.read(script.task(SubtaskId("other", 0)).failed())
    assert {s.operator for s in resets(script)} == {"a", "other", "b", "end"}


# ---- policies


@pytest.mark.parametrize(
    ("a", "b"), [(FailoverPolicy.GLOBAL, FailoverPolicy.REPLAY), (FailoverPolicy.RESET, FailoverPolicy.GLOBAL)]
)
@pytest.mark.parametrize("failing", [A0, B0])
def test_a_region_with_one_global_operator_fails_over_globally(
    a: FailoverPolicy, b: FailoverPolicy, failing: SubtaskId
) -> None:
    """Section 8: whichever member fails."""
    script = pair(a=a, b=b)
    script.read(script.task(failing).failed())
    assert script.epoch.number == 2
    assert names(script.calls).count("reset") == 2
    assert reset_subtasks(script) == []
    assert resets(script) == {s: [Reset(2, 0)] for s in (A0, A1, B0, B1)}
    assert [s for s, _, reason in failures(script) if reason is not None] == [failing]


def test_a_region_without_the_global_operator_does_not() -> None:
    """Section 8: the policy of an operator in another region is not asked."""
    script = Script.running(
        OperatorSettings("a", 1),
        OperatorSettings("b", 1, inputs=(InputSettings("a", Partitioning.KEYED),)),
        OperatorSettings("lone", 1, on_failover=FailoverPolicy.GLOBAL),
        restart=FOREVER,
    )
    script.read(script.task(B0).failed())
    assert script.epoch.number == 1


@pytest.mark.parametrize("failing", [A0, B0])
def test_futures_of_reset_members_fail_and_those_of_replay_members_stay(failing: SubtaskId) -> None:
    """Section 6: under reset they fail with TaskNotRunning, under replay they belong to the successor."""
    script = pair(a=FailoverPolicy.REPLAY, b=FailoverPolicy.RESET, parallelism=1)
    replayed, void = script.send(script.task(A0), b"to a"), script.send(script.task(B0), b"to b")
    script.forget()
    script.read(script.task(failing).failed())
    assert isinstance(void.failure, TaskNotRunning)
    assert script.made(effects.Settle) == [effects.Settle(void)]
    assert replayed.failure is None
    again = script.hello(A0)
    assert again.stream is replayed
    assert again.start.expected_sequence == 0
    script.read(again.heartbeat(handled_through=1))
    assert replayed.handled_through == 1
    assert script.hello(B0).stream is not void


def test_futures_of_reset_members_fail_before_their_coordinator_is_told() -> None:
    """Section 6: exactly once, always; a coordinator that sends again from subtask_reset sends to the successor."""
    script = pair(b=FailoverPolicy.RESET, parallelism=1)
    script.send(script.task(B0), b"event")
    script.forget()
    script.read(script.task(A0).failed())
    order = [type(e) for e in script.effects if isinstance(e, effects.Settle | effects.CallSubtaskReset)]
    assert order == [effects.Settle, effects.CallSubtaskReset, effects.CallSubtaskReset]


def test_events_held_for_a_member_are_replayed_or_void_by_its_own_policy() -> None:
    """Section 6: replacing a gateway settles or carries over every future it has."""
    script = pair(a=FailoverPolicy.REPLAY, b=FailoverPolicy.RESET, parallelism=1)
    script.trigger()
    kept, void = script.send(script.task(A0), b"held for a"), script.send(script.task(B0), b"held for b")
    assert (script.events(A0), script.events(B0)) == ([], [])
    script.read(script.task(B0).failed())
    assert script.events(A0) == [b"held for a"]
    assert script.events(B0) == []
    assert kept.failure is None
    assert isinstance(void.failure, TaskNotRunning)
    assert script.epoch.held_bytes.total() == 0


def test_what_is_sent_while_a_replay_member_is_down_is_appended_behind_its_reset() -> None:
    """Section 6: appended for the successor."""
    script = pair(parallelism=1)
    stream = script.task(B0).stream
    script.read(script.task(A0).failed())
    script.send(stream, b"meanwhile")
    assert [type(r) for r in script.appended(B0)] == [Reset, EventFrame]


# ---- silence


@pytest.mark.parametrize("lag_s", [0, 3])
def test_a_frozen_executor_with_two_members_of_a_region_gets_both_tasks_killed(lag_s: int) -> None:
    """Section 8: an attempt failed as silent is also killed, for Spark does not retry a frozen task; G6."""
    script = pair(parallelism=1)
    script.live(lag_s, A0)
    script.live(40, A0, B0)
    assert {kill.subtask for kill in script.made(effects.KillTask)} == {A0, B0}


def test_a_member_that_is_alive_is_not_killed_for_a_silent_one() -> None:
    """Section 8: it starts over in place."""
    script = pair(parallelism=1)
    script.live(12, A0)
    assert [kill.subtask for kill in script.made(effects.KillTask)] == [A0]
    assert script.slot(B0).generation == 1


# ---- the end of an epoch


def test_a_takeover_resets_every_region_in_generation_zero() -> None:
    """Section 8: global failover; every region begins anew."""
    script = pair()
    script.read(script.task(A0).failed())
    script.hello_all()
    script.read(*(task.heartbeat() for task in script.tasks.values()))
    script.checkpoint()
    script.restart()
    script.hello_all()
    assert {script.task(s).start.full_generation for s in script.settings.subtasks()} == {(2, 0)}


def test_what_a_done_member_left_behind_survives_a_takeover() -> None:
    """Section 8: an end that the restored checkpoint contains is final; the others of its region start."""
    script = pair()
    finish(script, A0)
    script.restart()
    for subtask in (A1, B0, B1):
        script.hello(subtask)
    script.hello(A0)
    assert script.slot(A0).phase is SlotPhase.DONE
    script.read(script.task(B1).failed())
    assert {s for s in script.settings.subtasks() if script.slot(s).generation == 1} == {A1, B0, B1}


def test_a_finished_region_and_a_running_one_do_not_touch_each_other() -> None:
    """Section 8, with forward channels: one pair has ended altogether."""
    script = pair(Partitioning.FORWARD)
    script.positions[B0] = (channel(A0),)
    finish(script, A0, B0)
    script.forget()
    script.read(script.task(A1).failed())
    assert set(resets(script)) == {A1, B1}
