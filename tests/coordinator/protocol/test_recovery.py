"""How an epoch begins: claim, catching up, and what the coordinators are told (protocol, sections 4 and 8)."""

from __future__ import annotations

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AckRead, CoordinatorRaised
from penstock.schemas.acks import RunStarted
from penstock.schemas.checkpoints import EpochClaimed, RunClaimed
from penstock.schemas.events import FailoverPolicy, Reset, Start, Stop, Welcome
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.settings import OperatorSettings, Restore
from penstock.schemas.state import StateHandle

from .driver import S0, S1, Script, names


def crashed_coordinator(script: Script) -> None:
    """User code raises: a global failover within the process."""
    script.handle(CoordinatorRaised("op", script.epoch.number, "handle_event_from_operator", "ValueError: no"))


def test_the_first_thing_it_does_is_to_commit_its_epoch() -> None:
    """Section 4."""
    script = Script()
    first = script.begin()[0]
    assert isinstance(first, effects.Commit)
    (_, claimed) = first.records[0]
    assert isinstance(claimed, EpochClaimed)
    assert (claimed.epoch, claimed.restored_checkpoint_id, claimed.instance) == (1, NO_CHECKPOINT, "first")
    assert claimed.topic_ids == script.topic_ids


def test_every_new_process_claims_the_next_epoch() -> None:
    """Section 4: EpochClaimed(last + 1)."""
    script = Script.running()
    script.restart()
    script.restart()
    assert [claim.epoch for claim in script.committed(EpochClaimed)] == [1, 2, 3]


def test_a_job_that_never_completed_a_checkpoint_starts_without_a_reset() -> None:
    """R89: reset_to_checkpoint before start(), only if there is a checkpoint."""
    script = Script.begun()
    assert names(script.calls) == ["start"]


def test_a_new_process_resets_before_it_starts() -> None:
    """R89; section 8: reset_to_checkpoint(n, state)."""
    script = Script.running()
    n = script.checkpoint()
    script.restart()
    reset, start = script.calls[:2]
    assert reset == effects.CallReset("op", n, StateHandle(len(b"op@%d" % n), inline=b"op@%d" % n))
    assert start == effects.CallStart("op")


def test_a_failover_inside_a_process_resets_without_starting_again() -> None:
    """R89."""
    script = Script.running()
    n = script.checkpoint()
    script.forget()
    crashed_coordinator(script)
    assert names(script.calls) == ["failed", "failed", "reset", "complete"]
    assert script.epoch.restored is not None
    assert script.epoch.restored.id == n


def test_without_a_completed_checkpoint_it_resets_to_nothing() -> None:
    """Section 8: (-1, None); R86."""
    script = Script.running()
    crashed_coordinator(script)
    assert script.calls[-1] == effects.CallReset("op", NO_CHECKPOINT, None)


def test_a_checkpoint_without_state_of_this_operator_resets_to_its_id_and_nothing() -> None:
    """Section 8: (n, None); R86."""
    script = Script.running()
    script.state = lambda operator, n: None
    n = script.checkpoint()
    crashed_coordinator(script)
    assert effects.CallReset("op", n, None) in script.calls


def test_an_operator_that_the_checkpoint_does_not_know_starts_empty() -> None:
    """R86."""
    script = Script.running(OperatorSettings("op", 1))
    n = script.checkpoint()
    added = Script(OperatorSettings("op", 1), OperatorSettings("added", 1)).settings
    script.restart(added)
    resets = [call for call in script.calls if isinstance(call, effects.CallReset)]
    assert [(r.operator, r.checkpoint_id, r.state is None) for r in resets] == [("op", n, False), ("added", n, True)]


def test_a_crash_right_after_the_commit_restores_what_it_completed() -> None:
    """Section 7.7: that commit is the only moment at which n becomes complete; section 11."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task(S0).ack(n))
    ack = script.task(S1).ack(n)
    decided = script.core.handle(AckRead(script.write(ack), 0, ack), script.now)
    (commit,) = [effect for effect in decided if isinstance(effect, effects.Commit)]
    script.log += commit.records  # it stands, and nobody ever learned of it
    script.restart()
    assert script.last_id == n


def test_a_commit_that_never_stood_leaves_the_checkpoint_before() -> None:
    """Section 11, commit outcome unknown: the successor sees what stands."""
    script = Script.running()
    n = script.checkpoint()
    kept = list(script.log)
    script.checkpoint()
    script.log = kept
    script.restart()
    assert script.last_id == n


# ---- Reset and Start


def test_an_epoch_is_above_those_of_an_earlier_incarnation_of_the_job() -> None:
    """P-4.1.7: whoever is left over from that writes under its epochs."""
    script = Script()
    script.begin(first_epoch=70)
    script.restart(first_epoch=70)
    assert [claim.epoch for claim in script.committed(EpochClaimed)] == [70, 71]


def test_a_new_epoch_is_told_to_every_partition_that_nobody_waits_in() -> None:
    """Section 8: Reset to every partition, except to one whose newer Hello waits for its Start ◆."""
    script = Script.running()
    crashed_coordinator(script)
    for subtask in (S0, S1):
        assert script.appended(subtask) == [Reset(2, 0)]


def test_a_waiting_hello_gets_its_start_alone_when_the_failover_is_global() -> None:
    """Section 8 ◆: also when the failover is global."""
    script = Script.running(OperatorSettings("op", 2, on_failover=FailoverPolicy.GLOBAL))
    script.hello(S0)
    assert script.epoch.number == 2
    assert [type(r) for r in script.appended(S0)] == [Welcome, Start]
    assert [type(r) for r in script.appended(S1)] == [Reset]


def test_each_current_hello_is_answered_by_start_once() -> None:
    """Section 8."""
    script = Script.running()
    script.read(script.task().failed())
    script.hello()
    assert len([r for r in script.records(S0, Start) if r.generation == 1]) == 1


# ---- a new process


def test_a_new_process_answers_only_the_newest_hello_per_subtask() -> None:
    """Section 8 ◆."""
    script = Script.running()
    script.hello(S0, read=False)
    newest = script.hello(S0, read=False)
    script.restart()
    assert [r.attempt for r in script.appended(S0) if isinstance(r, Start)] == [newest.attempt]
    assert [r for r in script.appended(S0) if isinstance(r, Reset)] == []


def test_a_hello_of_an_older_run_does_not_take_the_place_of_the_newer_runs() -> None:
    """Section 4: the newest Hello of the newest run wins, and the other one is answered by Stop."""
    script = Script.running()
    script.write(RunStarted("run-2", "there"))
    current = script.hello(S0, "run-2", read=False)
    stranger = script.hello(S0, "run-1", read=False)
    script.restart()
    assert [r.attempt for r in script.appended(S0) if isinstance(r, Start)] == [current.attempt]
    assert [r.attempt for r in script.appended(S0) if isinstance(r, Stop)] == [stranger.attempt]


def test_a_run_found_while_catching_up_is_claimed_before_its_hello_is_answered() -> None:
    """Section 4, Run."""
    script = Script()
    script.write(RunStarted("run-1", "here"))
    task = script.hello(read=False)
    script.begin()
    assert script.committed(RunClaimed) == [RunClaimed("run-1", 0)]
    commits = [i for i, e in enumerate(script.effects) if isinstance(e, effects.Commit)]
    starts = [i for i, e in enumerate(script.effects) if isinstance(e, effects.Append) and isinstance(e.record, Start)]
    assert commits[-1] < starts[0]
    assert task.started


def test_the_claimed_run_survives_the_process() -> None:
    """Section 4: it is committed."""
    script = Script.running()
    n = script.checkpoint()
    script.restart()
    assert script.job.registry.run == RunClaimed("run-1", 0)
    assert len(script.committed(RunClaimed)) == 1
    assert script.hello().start.checkpoint_id == n


def test_it_reads_from_the_inbox_position_to_the_end_it_found_at_its_claim() -> None:
    """Section 8 ◆."""
    script = Script.running()
    script.checkpoint()
    restored = script.job.history.last
    assert restored is not None
    end = script.write(None) + 1
    done = script.restart()
    read = next(effect for effect in done if isinstance(effect, effects.ReadAcks))
    assert read == effects.ReadAcks(restored.inbox_position, end)
    assert script.job.position == end


def test_without_a_checkpoint_it_reads_from_the_start_of_the_log() -> None:
    """Section 8 ◆: the start of the log if n = -1."""
    script = Script.running()
    script.restart()
    assert script.made(effects.ReadAcks) == [effects.ReadAcks(0, len(script.acks))]


def test_a_failover_inside_a_process_never_rewinds_its_main_position() -> None:
    """Section 8 ◆."""
    script = Script.running()
    script.checkpoint()
    position = script.job.position
    crashed_coordinator(script)
    assert script.job.position == position
    (read,) = script.made(effects.ReadAcks)
    assert read.end == position


def test_a_live_instance_may_say_hello_again_after_a_takeover_at_no_cost() -> None:
    """Section 8: one extra failover, not counted against the restart budget."""
    script = Script.running()
    script.restart()
    assert script.slot().attempt is not None
    script.hello()
    assert script.task().started
    assert script.job.restarts.spend(script.now) == 0.0  # nothing had been spent


def test_that_hello_costs_nothing_under_policy_global_either() -> None:
    """Section 8: one extra failover, not counted against the restart budget."""
    script = Script.running(OperatorSettings("op", 1, on_failover=FailoverPolicy.GLOBAL))
    script.restart()
    script.hello()
    assert script.epoch.number == 3
    assert script.job.restarts.spend(script.now) == 0.0


def test_the_hello_after_that_counts_again() -> None:
    """Section 8: one."""
    script = Script.running()
    script.restart()
    script.hello()
    script.hello()
    assert script.job.restarts.spend(script.now) != 0.0


def test_states_that_no_checkpoint_names_are_collected_by_a_new_process() -> None:
    """Section 7.7 ◆: its successor collects what no checkpoint names."""
    script = Script.running()
    kept = script.checkpoint(stores=True)
    locations = {task.stored(kept).location for task in script.tasks.values()}
    script.restart()
    (collect,) = script.made(effects.CollectOrphans)
    assert collect == effects.CollectOrphans(frozenset(locations), 2)


# ---- where it begins


def test_events_of_the_epoch_before_lie_below_the_new_epochs_position() -> None:
    """Section 5.3: older ones were sent by coordinators that have been rolled back: void."""
    script = Script.running()
    script.send(script.task(), b"void")
    end = len(script.events_log[S0])
    crashed_coordinator(script)
    task = script.hello()
    assert task.start.event_position == end
    assert task.start.expected_sequence == 0


def test_a_restored_checkpoint_of_an_earlier_epoch_names_no_position_in_the_new_one() -> None:
    """Section 5.3: behind its position there are only void frames; sequences begin at 0 again (5.4)."""
    script = Script.running()
    script.send(script.task(), b"in the state")
    n = script.trigger()
    script.acknowledge(n, S0)
    script.read(script.task().ack(n, event_position=2, handled_through=1))
    script.send(script.task(), b"void")
    end = len(script.events_log[S0])
    crashed_coordinator(script)
    start = script.hello().start
    assert (start.checkpoint_id, start.event_position, start.expected_sequence) == (n, end, 0)
    script.send(script.task(), b"new")
    assert script.events(epoch=2) == [b"new"]


def test_a_fresh_start_forgets_the_line_and_stays_fresh_after_a_crash() -> None:
    """Section 2: what its EpochClaimed restored."""
    script = Script.running()
    script.checkpoint()
    script.restart(restore=Restore.FRESH)
    assert names(script.calls)[0] == "start"
    assert script.hello().start.checkpoint_id == NO_CHECKPOINT
    script.restart()
    assert script.last_id == NO_CHECKPOINT


def test_going_back_to_an_older_checkpoint_is_not_undone_by_a_crash() -> None:
    """Section 2; section 11: the older line goes on; the newer one does not come back."""
    script = Script.running()
    older, newer = script.checkpoint(), script.checkpoint()
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=older)
    assert script.last_id == older
    script.restart()
    assert script.last_id == older
    script.hello_all()
    n = script.checkpoint()
    script.restart()
    assert script.last_id == n > newer
    assert newer not in script.job.history.checkpoints
