"""Another parallelism: what a start makes of a checkpoint of another layout, what it refuses (protocol, section 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.checkpoint_log.history import History
from penstock.checkpoint_log.restorability import Offsets
from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.coordinator.protocol.effects import Append, CallEvents, CallReset, Commit, Redistribute, Truncate
from penstock.schemas.acks import Hello, RunStarted
from penstock.schemas.checkpoints import CheckpointCompleted, EpochClaimed, SubtaskSnapshot
from penstock.schemas.errors import JobRefused
from penstock.schemas.events import Reset, Start, Stop
from penstock.schemas.ids import NO_ATTEMPT, SubtaskId
from penstock.schemas.settings import OperatorSettings, Rescale, Restore
from penstock.schemas.state import OPEN_END, Segment, StateHandle

from .data_jobs import A0, B0, RANGE, operator, started, unaligned
from .driver import S0, S1, Script, job_settings, names


def op(parallelism: int, rescale: Rescale = Rescale.LIST, name: str = "op", **changes: Any) -> OperatorSettings:
    return OperatorSettings(name, parallelism, rescale=rescale, **changes)


def running(parallelism: int, rescale: Rescale = Rescale.LIST) -> Script:
    return Script.running(op(parallelism, rescale))


def rescale(script: Script, *operators: OperatorSettings, **changes: Any) -> None:
    """A coordinator with other operators takes the place of the one before; then a run of that layout begins."""
    script.restart(job_settings(*operators), **changes)
    script.read(RunStarted(f"run of {operators[0].parallelism}", "here"))
    script.hello_all(f"run of {operators[0].parallelism}")


def refused(script: Script, operators: list[OperatorSettings], match: str) -> None:
    script.settings = job_settings(*operators)
    for subtask in script.settings.subtasks():
        script.events_log.setdefault(subtask, [])
    before = list(script.log)
    with pytest.raises(JobRefused, match=match):
        CoordinatorCore(script.settings, "second").handle(script.beginning(), script.now)
    assert script.log == before


def states(script: Script, operator: str = "op") -> list[bytes | None]:
    """What the newest Start of each subtask restores."""
    count = script.settings.parallelism[operator]
    starts = [script.records(SubtaskId(operator, index), Start)[-1] for index in range(count)]
    return [start.state.inline if start.state is not None else None for start in starts]


# ---- n' is derived, and is a checkpoint like any other


@pytest.mark.parametrize(("p", "q"), [(2, 5), (5, 2), (1, 3), (3, 1)])
def test_states_are_dealt_and_everybody_starts_from_the_derived_checkpoint(p: int, q: int) -> None:
    script = running(p)
    n = script.checkpoint()
    rescale(script, op(q))
    assert states(script) == [b"%d of %d" % (index, p) for index in range(q)]
    derived = script.job.history.last
    assert derived is not None and derived.header.rescaled_from == n
    assert {script.records(s, Start)[-1].checkpoint_id for s in script.settings.subtasks()} == {derived.id}
    assert [was.parallelism for was in derived.header.operators] == [q]
    assert script.checkpoint() > derived.id


def test_a_subtask_that_is_new_has_sent_nothing_and_was_sent_nothing() -> None:
    script = running(1)
    script.checkpoint()
    rescale(script, op(2))
    derived = script.job.history.last
    assert derived is not None
    new = derived.subtasks[SubtaskId("op", 1)]
    assert replace(new, state=None) == SubtaskSnapshot(1, NO_ATTEMPT, 0, 0, 0, None, 0, (), 0, 0, (), False)


def test_the_checkpoint_itself_is_never_changed() -> None:
    script = running(2)
    n = script.checkpoint()
    before = script.job.history.checkpoints[n]
    rescale(script, op(5))
    assert script.job.history.checkpoints[n] == before


def test_the_derived_checkpoint_is_committed_with_the_epoch_or_not_at_all() -> None:
    """Section 5: a crash leaves n restorable, and n' whole or absent."""
    script = running(2)
    n = script.checkpoint()
    script.restart(job_settings(op(5)))
    (commit,) = script.made(Commit)
    kinds = [type(record) for _, record in commit.records]
    assert kinds[0] is EpochClaimed and kinds.count(CheckpointCompleted) == 1
    assert History.of(script.log[: -len(commit.records)]).last_id == n
    assert History.of(script.log).last_id == script.last_id > n


def test_a_coordinator_that_dies_before_its_claim_stands_leaves_everything_as_it_was() -> None:
    script = running(2)
    n = script.checkpoint()
    script.settings = job_settings(op(5))
    for subtask in script.settings.subtasks():
        script.events_log.setdefault(subtask, [])
    (asked,) = CoordinatorCore(script.settings, "dies").handle(script.beginning(), script.now)
    assert isinstance(asked, Redistribute) and asked.restored == n
    rescale(script, op(3))
    assert states(script) == [b"%d of 2" % index for index in range(3)]


def test_the_coordinators_state_is_what_it_was() -> None:
    script = running(2)
    n = script.checkpoint()
    rescale(script, op(5))
    (reset,) = [c for c in script.calls if isinstance(c, CallReset)]
    assert reset.state is not None
    assert (reset.checkpoint_id, reset.state.inline) == (script.last_id, b"op@%d" % n)
    assert names(script.calls)[:2] == ["reset", "start"]


def test_a_restart_in_the_new_layout_goes_on_from_the_derived_checkpoint_without_dealing_again() -> None:
    script = running(2)
    script.checkpoint()
    rescale(script, op(5))
    derived = script.last_id
    script.restart()
    assert script.last_id == derived and not script.made(Redistribute)


def test_a_region_failover_restores_the_dealt_state() -> None:
    script = running(2)
    script.checkpoint()
    rescale(script, op(5))
    fifth = SubtaskId("op", 4)
    script.read(script.task(fifth).failed())
    again = script.hello(fifth, "run of 5")
    assert again.start.state == StateHandle(6, inline=b"4 of 2")


def test_yet_another_parallelism_before_any_checkpoint_deals_the_derived_states() -> None:
    script = running(2)
    script.checkpoint()
    rescale(script, op(5))
    rescale(script, op(3))
    assert states(script) == [b"%d of 5" % index for index in range(3)]
    script.checkpoint()


def test_ids_are_never_used_twice() -> None:
    script = running(2)
    script.checkpoint()
    reserved = script.job.history.reserved_through
    rescale(script, op(5))
    assert script.last_id == reserved + 1
    assert script.committed(EpochClaimed)[-1].first_checkpoint_id == reserved + 2
    assert script.trigger() == reserved + 2


def test_going_back_to_an_older_checkpoint_with_another_parallelism_is_a_line_of_its_own() -> None:
    """Section 2, last completed: what was completed behind the older one does not come back."""
    script = running(2)
    older = script.checkpoint()
    newer = script.checkpoint()
    rescale(script, op(3), restore=Restore.CHECKPOINT, restore_checkpoint=older)
    derived = script.last_id
    assert script.job.history.lineage == [older, derived]
    assert newer not in History.of(script.log).lineage
    script.restart()
    assert script.last_id == derived


def test_a_compacted_log_says_the_same() -> None:
    script = running(2)
    n = script.checkpoint()
    rescale(script, op(5))
    newest = {key: at for at, (key, _) in enumerate(script.log)}
    compacted = [entry for at, entry in enumerate(script.log) if newest[entry[0]] == at]
    history = History.of(compacted)
    assert (history.lineage, history.last) == ([n, script.last_id], script.job.history.last)


def test_what_the_older_checkpoint_needs_goes_when_nobody_keeps_it() -> None:
    script = running(2)
    n = script.checkpoint()
    rescale(script, op(5))
    for _ in range(2):
        script.checkpoint()
    assert n not in script.job.history.checkpoints
    assert script.last_id in script.job.history.checkpoints


def test_an_operator_that_keeps_its_parallelism_keeps_its_snapshots() -> None:
    script = Script.running(op(2), op(2, Rescale.REFUSE, "other"))
    n = script.checkpoint()
    rescale(script, op(3), op(2, Rescale.REFUSE, "other"))
    before, after = script.job.history.checkpoints[n], script.job.history.checkpoints[script.last_id]
    for index in range(2):
        assert after.subtasks[SubtaskId("other", index)] == before.subtasks[SubtaskId("other", index)]
    assert states(script, "other") == [b"state"] * 2


def test_event_sequences_begin_anew_and_events_flow_to_everybody() -> None:
    script = running(2)
    script.send(script.task(), b"a", b"b")
    script.checkpoint()
    rescale(script, op(5))
    for index in range(5):
        subtask = SubtaskId("op", index)
        start = script.task(subtask).start
        assert (start.expected_epoch, start.expected_sequence, start.event_ranges) == (2, 0, ())
        script.send(script.task(subtask), b"x")
        assert script.events(subtask, epoch=2) == [b"x"]


# ---- states that handles say enough of


@pytest.mark.parametrize(("state", "becomes"), [(None, None), (StateHandle(0, inline=b""), b"")])
def test_missing_and_empty_states_need_no_rule_and_stay_different(
    state: StateHandle | None, becomes: bytes | None
) -> None:
    script = running(2, Rescale.REFUSE)
    script.checkpoint(state=state)
    rescale(script, op(3, Rescale.REFUSE))
    assert states(script) == [becomes] * 3


def test_states_without_a_rule_refuse_and_name_the_ways_out() -> None:
    script = running(2, Rescale.REFUSE)
    n = script.checkpoint()
    refused(
        script,
        [op(3, Rescale.REFUSE)],
        rf"checkpoint {n} of job job holds 2 subtasks of operator op, the job now has 3: its subtasks 0, 1 have states"
        r'.*rescale="list", rescale="keyed" or a function.*start with parallelism 2, or with --fresh',
    )


def test_states_that_are_all_missing_are_not_dealt() -> None:
    """A list of nothing is no list: who never had a state is restored without one."""
    script = running(2)
    script.checkpoint(state=None)
    rescale(script, op(3))
    assert states(script) == [None] * 3


# ---- undelivered events


def test_undelivered_events_refuse_and_a_savepoint_is_the_way_out() -> None:
    script = running(2)
    ranges = (Segment(0, 1, 1, 0, script.task().attempt),)
    n = script.trigger()
    script.read(script.task(S0).ack(n, event_ranges=ranges), script.task(S1).ack(n))
    refused(
        script, [op(3)], r"events for its subtask 0 are undelivered \(offsets 0 to 1 of .*op\.events\[0\]\).*savepoint"
    )


# ---- events on their way to the coordinator


def sent_before_and_not_received(script: Script, index: int) -> None:
    """Subtask ``index`` has sent ``late`` before checkpoint n, and n was cut before it was read."""
    n = script.trigger()
    task = script.task(SubtaskId("op", index))
    frame = task.frame(b"late from %d" % index)
    acks = [t.ack(n) for t in script.tasks.values()]
    script.read(frame, *acks)
    assert script.last_id == n


@pytest.mark.parametrize("index", [0, 4])
def test_what_a_subtask_had_sent_comes_also_where_the_subtask_is_gone(index: int) -> None:
    """Section 8, inbox range: by whom it was sent, not by who is there now."""
    script = running(5)
    sent_before_and_not_received(script, index)
    rescale(script, op(3))
    assert script.received() == [b"late from %d" % index]
    (call,) = [c for c in script.calls if isinstance(c, CallEvents)]
    assert (call.attempt == -1) == (index == 4)
    script.checkpoint()


def test_what_a_gone_subtask_had_sent_survives_another_rescaling_and_a_restart() -> None:
    script = running(5)
    sent_before_and_not_received(script, 4)
    rescale(script, op(3))
    for parallelism in (3, 4, 5):
        rescale(script, op(parallelism))
        since_reset = script.calls[max(i for i, call in enumerate(script.calls) if isinstance(call, CallReset)) :]
        assert [call.events for call in since_reset if isinstance(call, CallEvents)] == [[b"late from 4"]]


def test_a_savepoint_gives_its_inbox_to_the_derived_checkpoint_and_the_log_need_not_have_it() -> None:
    script = running(5)
    n = script.savepoint()
    task = script.task(SubtaskId("op", 4))
    script.read(task.frame(b"late"), *(t.ack(n) for t in script.tasks.values()))
    assert script.last_id == n
    script.acks_begin = len(script.acks)
    rescale(script, op(2), acks=Offsets(script.acks_begin, len(script.acks)))
    assert script.received() == [b"late"]
    assert not script.job.history.checkpoints[script.last_id].header.savepoint
    script.restart(acks=Offsets(script.acks_begin, len(script.acks)))
    script.hello_all("run of 2")
    assert script.received() == [b"late"]


def test_a_truncation_that_comes_late_takes_nothing_from_what_was_derived_of_a_savepoint() -> None:
    """The coordinator that was replaced had completed newer checkpoints, and truncates below them only now."""
    script = running(5)
    n = script.savepoint()
    script.acknowledge(n)
    for _ in range(2):
        script.checkpoint()
    late = script.made(Truncate)[-1].acks
    rescale(script, op(2), restore=Restore.CHECKPOINT, restore_checkpoint=n)
    assert script.job.history.checkpoints[script.last_id].header.rescaled_from == n
    script.acks_begin = late
    script.restart(acks=Offsets(late, len(script.acks)))
    script.hello_all("run of 2")
    assert states(script) == [b"0 of 5", b"1 of 5"]


# ---- ends


def test_an_operator_whose_subtasks_have_all_finished_stays_finished() -> None:
    script = Script.running(op(2), op(1, Rescale.REFUSE, "other"))
    n = script.trigger()
    for subtask, task in script.tasks.items():
        script.read(task.ack(n, finished=subtask.operator == "op"))
    rescale(script, op(4), op(1, Rescale.REFUSE, "other"))
    assert {slot.subtask.operator for slot in script.job.live()} == {"other"}
    assert script.checkpoint()
    rescale(script, op(1), op(1, Rescale.REFUSE, "other"))
    assert {slot.subtask.operator for slot in script.job.live()} == {"other"}


def test_an_operator_of_which_some_have_finished_refuses() -> None:
    script = running(3)
    n = script.trigger()
    for subtask, task in script.tasks.items():
        script.read(task.ack(n, finished=subtask.index == 1))
    refused(script, [op(2)], "its subtasks 1 have finished and the others have not.*Start with parallelism 3")


# ---- who is still there from before


def test_who_runs_as_a_subtask_that_is_gone_is_reset_in_every_epoch_and_told_to_leave() -> None:
    """Also long after, when no kept checkpoint knows it any more: it may have been frozen."""
    script = running(5)
    script.checkpoint()
    rescale(script, op(3))
    for _ in range(3):
        script.checkpoint()
    assert all(was.parallelism == 3 for c in script.job.history.checkpoints.values() for was in c.header.operators)
    script.restart()
    for index in (3, 4):
        (reset,) = (e.record for e in script.made(Append) if e.subtask == SubtaskId("op", index))
        assert reset == Reset(script.epoch.number, 0)
    script.forget()
    script.read(Hello("op", 4, "run-1", "thawed", "task", "host", {"op": 5}, 1))
    (stop,) = script.appended(SubtaskId("op", 4))
    assert isinstance(stop, Stop) and stop.nonce == "thawed"


@pytest.mark.parametrize("index", [0, 4])
def test_a_hello_of_another_layout_is_answered_by_a_stop_that_names_both(index: int) -> None:
    script = running(5)
    script.checkpoint()
    rescale(script, op(3))
    script.forget()
    run = script.job.registry.run_id
    script.read(Hello("op", index, run, "nonce", "task", "host", {"op": 5}, 1))
    (stop,) = script.appended(SubtaskId("op", index))
    assert isinstance(stop, Stop) and stop.nonce == "nonce"
    assert "has the operators op x 3" in stop.reason and "was started with op x 5" in stop.reason
    assert script.dropped("hello-of-another-layout") == 1


def test_a_hello_of_another_layout_that_waited_through_a_takeover_is_stopped() -> None:
    script = running(2)
    script.checkpoint()
    script.write(Hello("op", 0, "run-1", "nonce", "task", "host", {"op": 2}, 1))
    script.restart(job_settings(op(3), start_timeout=5.0))
    assert [r.nonce for r in script.appended(S0) if isinstance(r, Stop)] == ["nonce"]
    assert not script.job.registry.waiting
    script.live(7)
    assert script.ended is not None and "tasks of another parallelism were stopped" in script.ended.cause


@pytest.mark.parametrize("completed", [True, False])
def test_tasks_that_feed_an_operator_of_another_parallelism_are_stopped(completed: bool) -> None:
    """Else they would go on to write to a subtask that is gone."""
    script = Script.running(*feeding(2, 3))
    if completed:
        script.checkpoint()
    for instance in ("second", "third"):
        script.restart(job_settings(*feeding(2, 2)), instance=instance)
        script.forget()
        for subtask in (A0, B0, SubtaskId("b", 2)):
            script.read(Hello(*subtask, "run-1", f"of {subtask}", "task", "host", {"a": 2, "b": 3}, 1))
            (stop,) = script.appended(subtask)
            assert isinstance(stop, Stop) and stop.nonce == f"of {subtask}"
            assert "has the operators a x 2, b x 2" in stop.reason and "with a x 2, b x 3" in stop.reason
    assert not script.job.live()
    script.read(RunStarted("run-2", "here"))
    script.hello_all("run-2")
    assert script.checkpoint()


def test_a_job_that_has_lost_an_operator_does_not_wait_for_the_tasks_that_it_sends_away() -> None:
    """Section 5.5: those of the operators that are left are of another layout too."""
    script = Script.running(*feeding(2, 2))
    script.checkpoint()
    script.restart(job_settings(op(2, name="a"), start_timeout=5.0))
    for subtask in (A0, SubtaskId("a", 1)):
        script.read(Hello(*subtask, "run-1", f"of {subtask}", "task", "host", {"a": 2, "b": 2}, 1))
    assert not script.job.registry.undone
    script.live(7)
    assert script.ended is not None and "tasks of another parallelism were stopped" in script.ended.cause


def test_tasks_of_the_layout_before_are_not_waited_for() -> None:
    """They leave; a start that nobody registers with must fail by its own timeout."""
    script = running(2)
    script.checkpoint()
    script.restart(job_settings(op(3)))
    assert not script.job.registry.undone and not script.job.registry.registered


# ---- operators that feed one another (section 9)


def feeding(a: int, b: int, **changes: Any) -> list[OperatorSettings]:
    return [
        replace(operator("a", a), rescale=Rescale.LIST),
        replace(operator("b", b, "a"), rescale=Rescale.KEYED, **changes),
    ]


@pytest.mark.parametrize(("a", "b"), [(3, 2), (2, 3), (1, 4)])
def test_channels_of_an_operator_that_changes_begin_where_the_epoch_does(a: int, b: int) -> None:
    script = Script.running(*feeding(2, 2))
    script.emit_data("a", B0, 12)
    script.checkpoint()
    script.emit_data("a", B0, 3)
    rescale(script, *feeding(a, b))
    for index in range(b):
        receiver = SubtaskId("b", index)
        positions = script.task(receiver).start.data_positions
        end = script.data_end("a", receiver)
        assert [p.channel for p in positions] == [f"a/{sender}" for sender in range(a)]
        assert {(s.begin, s.end, s.epoch) for p in positions for s in p.segments} == {(end, OPEN_END, 2)}
        assert {p.sequence for p in positions} == {0}
    script.checkpoint()


def test_channels_between_operators_that_stay_keep_their_positions() -> None:
    script = Script.running(*feeding(2, 2), op(1, name="other"))
    unaligned(script)
    rescale(script, *feeding(2, 2), op(3, name="other"))
    assert RANGE in started(script)["a/0"]


@pytest.mark.parametrize(("a", "b"), [(3, 2), (2, 3)])
def test_records_on_their_way_refuse_and_a_savepoint_is_the_way_out(a: int, b: int) -> None:
    script = Script.running(*feeding(2, 2))
    unaligned(script)
    refused(
        script, feeding(a, b), r"unaligned, with records on their way from a/0 to b/0\..*savepoint, which is aligned"
    )


def test_an_operator_of_which_some_know_that_their_inputs_have_ended_refuses() -> None:
    script = Script.running(*feeding(2, 2))
    n = script.trigger()
    for subtask, task in script.tasks.items():
        script.read(task.ack(n, inputs_ended=subtask == B0))
    why = "its subtasks 0 have been notified that their inputs have ended and the others have not"
    refused(script, feeding(2, 3), why)


def test_key_groups_never_change_with_the_parallelism() -> None:
    script = Script.running(*feeding(2, 2))
    script.checkpoint()
    script.settings = job_settings(*feeding(2, 3), max_parallelism=64)
    for subtask in script.settings.subtasks():
        script.events_log.setdefault(subtask, [])
    with pytest.raises(JobRefused, match=r"by 128 key groups \(max_parallelism\), the job now has 64"):
        CoordinatorCore(script.settings, "second").handle(script.beginning(), script.now)
