"""How checkpoints fail, and what that leads to (protocol, section 7.8), and its bounds (section 6, last point)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import FutureFailed, StateNotStored
from penstock.schemas.acks import CommandKind
from penstock.schemas.events import CheckpointAborted, TriggerCheckpoint
from penstock.schemas.settings import OperatorSettings

from .driver import INTERVAL, S0, S1, Script, names

TIMEOUT = 60.0


def timed_out(script: Script) -> int:
    """A checkpoint that runs into its timeout while the log is alive."""
    n = script.trigger()
    script.live(TIMEOUT)
    assert n not in (script.pending if script.job.epoch is not None else {})
    return n


def test_everybody_is_told_of_an_abort() -> None:
    """Section 7.8; R51, R53."""
    script = Script.running()
    n = script.trigger()
    script.forget()
    script.read(script.task().decline(n))
    assert script.calls == [effects.CallAborted("op", n, "op/0 declined: cannot")]
    for subtask in (S0, S1):
        assert script.appended(subtask) == [CheckpointAborted(1, n, "op/0 declined: cannot")]


def test_subtasks_are_told_the_beginning_of_a_long_reason() -> None:
    """One record for each subtask: a thousand of them must not carry a traceback each."""
    script = Script.running()
    n = script.trigger()
    script.forget()
    script.read(replace(script.task().decline(n), reason="x" * 4_000))
    (notice,) = script.appended(S0)
    assert isinstance(notice, CheckpointAborted)
    assert notice.reason == "op/0 declined: " + "x" * 481 + " ..."


def test_subtasks_are_not_told_of_a_checkpoint_whose_marker_they_never_got() -> None:
    """R41: a subtask knows nothing of it."""
    script = Script.running()
    script.auto_cut = False
    n = script.trigger()
    script.forget()
    script.handle(FutureFailed("op", n, "no"))
    assert script.appended() == []
    assert names(script.calls) == ["aborted"]


def test_what_was_withheld_for_its_future_is_handed_over_before_the_abort_is_told() -> None:
    """Section 7.2: from that call until its future completes; an abort ends it too."""
    script = Script.running()
    script.auto_cut = False
    n = script.trigger()
    script.read(script.task().frame(b"a"))
    script.forget()
    script.handle(FutureFailed("op", n, "no"))
    assert names(script.calls) == ["events", "aborted"]


def test_stored_state_of_an_aborted_checkpoint_is_released() -> None:
    """Section 7.8."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task().ack(n, stores=True))
    script.forget()
    script.read(script.task(S1).decline(n))
    assert script.made(effects.DeleteStates) == [effects.DeleteStates((script.task().stored(n).location,))]


def test_a_decline_for_a_checkpoint_that_is_over_is_ignored() -> None:
    """R62."""
    script = Script.running()
    n = script.checkpoint()
    script.forget()
    script.read(script.task().decline(n))
    assert script.effects == []


def test_the_timeout_covers_the_coordinators_phase() -> None:
    """Section 7.1: it starts at the trigger; R42."""
    script = Script.running(heartbeat_timeout=1000.0)
    script.auto_cut = False
    n = script.trigger()
    assert script.pending[n].triggered_at == script.now
    script.live(TIMEOUT - 1)
    assert n in script.pending
    script.live(1)
    assert n not in script.pending
    assert script.records(S0, TriggerCheckpoint) == []


def test_a_timeout_names_which_subtask_and_step_it_waited_for() -> None:
    """Section 7.8; G6."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task(S0).ack(n), script.task(S1).heartbeat(step="restoring", step_age_ms=1500))
    script.live(TIMEOUT, S1)  # nothing newer is heard from it, and it is not silent for long enough to matter here
    assert n not in script.pending or script.job.schedule.blamed
    assert any("op/1" in blamed and "restoring" in blamed for blamed in script.job.schedule.blamed) or "op/1" in (
        script.job.statistics.last_failure
    )


def test_more_failures_in_a_row_than_tolerated_are_a_global_failover_that_names_them() -> None:
    """Section 7.8."""
    script = Script.running(checkpoint={"tolerable_failures": 2})
    for _ in range(2):
        script.read(script.task().decline(script.trigger()))
    assert script.epoch.number == 1
    n = script.trigger()
    script.read(script.task(S1).ack(n), script.task(S0).decline(n))
    assert script.epoch.number == 2
    cause = script.job.statistics.last_failure
    assert "3 checkpoints in a row" in cause
    assert "op/0 declined: cannot" in cause
    assert "waited for op/0" in cause


def test_the_global_failover_for_failed_checkpoints_is_on_the_restart_budget() -> None:
    """Section 7.8."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    script.read(script.task().decline(script.trigger()))
    assert script.job.statistics.global_failovers == 1
    assert script.job.restarts.spend(script.now) != 0.0


def test_a_completed_checkpoint_begins_the_count_anew() -> None:
    """Section 7.8: consecutive."""
    script = Script.running(checkpoint={"tolerable_failures": 1})
    for _ in range(5):
        script.read(script.task().decline(script.trigger()))
        script.checkpoint()
    assert script.epoch.number == 1


def test_aborts_by_failovers_do_not_count() -> None:
    """Section 7.8."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    for _ in range(3):
        script.trigger()
        script.hello()
    assert script.epoch.number == 1
    assert script.job.statistics.aborted == 3


def test_subsumed_ones_do_not_count() -> None:
    """Section 7.8; R63."""
    script = Script.running(checkpoint={"tolerable_failures": 0, "max_concurrent": 2})
    script.trigger()
    script.acknowledge(script.trigger())
    assert script.epoch.number == 1
    assert script.job.statistics.aborted == 1


def test_states_that_cannot_be_stored_roll_nothing_back() -> None:
    """P-7.8.2: neither a subtask's nor a coordinator's."""
    script = Script.running(
        OperatorSettings("op", 1),
        checkpoint={"tolerable_failures": 0, "inline_state_max": 4},
        state_storage="s3://states",
    )
    script.state = lambda operator, n: b"large"
    script.read(script.task().decline(script.trigger(), not_stored=True))
    script.handle(StateNotStored("op", script.trigger(), "no answer"))
    assert script.epoch.number == 1
    assert script.job.statistics.aborted == 2
    assert "no answer" in (script.job.timeline.checkpoints[-1].reason or "")


def test_states_of_a_job_without_state_storage_count_as_failures() -> None:
    """P-7.8.2: no later checkpoint can store them."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    script.read(script.task().decline(script.trigger(), not_stored=True))
    assert script.epoch.number == 2


def test_a_savepoint_that_fails_does_not_count_and_its_command_is_refused() -> None:
    """R64; section 8: a command's refusal is committed."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    n = script.savepoint()
    script.read(script.task().decline(n))
    assert script.epoch.number == 1
    (reply,) = script.replies()
    assert not reply.accepted
    assert "declined" in reply.outcome


def test_timeouts_count() -> None:
    """Section 7.8."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    timed_out(script)
    assert script.job.history.epoch == 2


def test_timeouts_in_which_the_own_heartbeats_did_not_arrive_do_not_count() -> None:
    """Section 7.8; section 11, broker away."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    n = script.trigger()
    for _ in range(int(TIMEOUT)):
        script.advance(1.0)
    assert n not in script.pending
    assert script.epoch.number == 1
    assert script.job.schedule.failures_in_a_row == 0


def test_an_outage_in_the_middle_of_a_checkpoint_excuses_its_timeout() -> None:
    """Section 7.8: also where the broker is back when the time is over."""
    script = Script.running(checkpoint={"tolerable_failures": 0})
    script.live(5)
    n = script.trigger()
    for _ in range(int(TIMEOUT) - 10):
        script.advance(1.0)
    script.live(10)
    assert n not in script.pending
    assert script.epoch.number == 1


def test_an_outage_excuses_a_timeout_shorter_than_itself() -> None:
    """Section 7.8: a checkpoint that begins and ends while the broker is away."""
    script = Script.running(checkpoint={"tolerable_failures": 0, "timeout": 2.0})
    script.live(int(INTERVAL) - 3)
    for _ in range(5):
        script.advance(1.0)
    assert script.job.statistics.aborted == 1
    assert script.epoch.number == 1


def test_progress_resumes_when_failures_are_rarer_than_a_checkpoint_takes() -> None:
    """Section 11: subtask fails while n is pending, again and again."""
    script = Script.running()
    for _ in range(3):
        script.trigger()
        script.hello()
    assert script.last_id == -1
    assert script.checkpoint() == script.last_id


# ---- bounds


def test_the_oldest_is_aborted_when_held_events_pass_their_bound() -> None:
    """Section 6: with that reason, and its gateways open."""
    script = Script.running(OperatorSettings("op", 2, max_held_bytes=10), checkpoint={"max_concurrent": 2})
    first = script.trigger()
    script.send(script.task(), b"12345")
    second = script.trigger()
    script.send(script.task(), b"67890", b"a")
    assert list(script.pending) == [first, second]  # what the first held left ahead of the second marker
    script.send(script.task(), b"12345")
    assert first not in script.pending
    assert any("max_held_bytes (10)" in blamed for blamed in script.job.schedule.blamed)
    assert sum(script.epoch.held_bytes.values()) <= 10


def test_gateways_open_until_the_bound_holds_again() -> None:
    """Section 6; G7."""
    script = Script.running(OperatorSettings("op", 1, max_held_bytes=10))
    script.trigger()
    script.send(script.task(), b"12345678901")
    assert script.pending == {}
    assert script.events() == [b"12345678901"]
    assert script.epoch.held_bytes["op"] == 0


@pytest.mark.parametrize("how", ["snapshot", "abort", "failover", "complete"])
def test_held_bytes_are_counted_down_however_they_leave(how: str) -> None:
    """G7: no bound that drifts."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"max_concurrent": 2})
    n = script.trigger()
    script.send(script.task(), b"12345")
    assert script.epoch.held_bytes["op"] == 5
    match how:
        case "snapshot":
            script.read(script.task().snapshot_taken(n))
        case "abort":
            script.read(script.task().decline(n))
        case "failover":
            script.hello()
        case _:
            script.acknowledge(n)
    assert script.epoch.held_bytes["op"] == 0


def test_no_record_is_read_while_too_much_waits_for_a_checkpoint_future() -> None:
    """Section 7.2: the rest waits in the log (G7)."""
    script = Script.running(OperatorSettings("op", 1, max_held_bytes=10))
    script.auto_cut = False
    n = script.trigger()
    script.read(script.task().frame(b"123456"))  # and its length
    assert script.core.reads, "the bound is reached, not passed"
    script.read(script.task().frame(b""))
    assert not script.core.reads, "an empty event counts, too"
    assert list(script.pending) == [n]
    assert script.received() == []
    script.handle(script.completed("op", n))
    assert script.core.reads
    assert script.received() == [b"123456", b""]
    assert script.epoch.withheld_bytes == 0


def test_a_future_that_stays_open_while_nothing_is_read_counts_as_a_failure() -> None:
    """Section 7.2: the log was not away, the coordinator did not want it."""
    script = Script.running(OperatorSettings("op", 1, max_held_bytes=10), checkpoint={"timeout": 60.0})
    script.auto_cut = False
    n = script.trigger()
    script.read(script.task().frame(b"12345678901"))
    script.advance(61.0)
    assert n not in script.pending
    assert script.job.schedule.failures_in_a_row == 1
    assert "the coordinator of op to complete its checkpoint future" in script.job.schedule.blamed[0]
    assert script.received() == [b"12345678901"]
    assert script.core.reads


def test_events_copied_into_a_savepoint_are_bounded_too() -> None:
    """G7."""
    script = Script.running(OperatorSettings("op", 1, max_held_bytes=10))
    n = script.savepoint(CommandKind.SAVEPOINT)
    script.read(script.task().frame(b"12345678901"))
    assert n not in script.pending
