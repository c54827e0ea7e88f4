"""Hello and Start (protocol, sections 4 and 5)."""

from __future__ import annotations

from typing import get_args

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import AckRead
from penstock.coordinator.protocol.state import Dropped
from penstock.schemas.acks import AcksRecord, FailureHint, FromAttempt, Hello, RunStarted
from penstock.schemas.checkpoints import RunClaimed
from penstock.schemas.events import CheckpointAborted, EventFrame, FailoverPolicy, Reset, Start, Stop, Welcome
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.sanitize import TEXT_CHARS_MAX
from penstock.schemas.settings import OperatorSettings, RestartStrategy
from penstock.schemas.status import End, Ending

from .driver import LAYOUT, S0, S1, Script, names


def hello(subtask: int, run: str = "run-1") -> Hello:
    return Hello("op", subtask, run, "nonce", "task", "host", LAYOUT, 1)


def test_the_offset_of_the_hello_is_the_attempt_id_and_start_echoes_the_nonce() -> None:
    """Section 4, Attempt."""
    script = Script.running()
    task = script.task()
    offset = next(i for i, (_, r) in enumerate(script.acks) if isinstance(r, Hello) and r.subtask == 0)
    assert (task.start.attempt, task.start.nonce) == (offset, task.nonce)


def test_the_first_start_names_no_checkpoint_and_the_position_where_the_epoch_began() -> None:
    """Section 5, last sentence."""
    script = Script.running()
    start = script.task().start
    assert (start.checkpoint_id, start.state, start.event_position) == (NO_CHECKPOINT, None, 0)
    assert (start.epoch, start.expected_epoch, start.expected_sequence) == (1, 1, 0)


def test_start_says_all_that_a_restore_needs() -> None:
    """Section 5.2."""
    script = Script.running()
    script.send(script.task(), b"a", b"b")
    n = script.trigger()
    script.acknowledge(n, S0)
    script.read(script.task().ack(n, event_position=2, handled_through=2))
    task = script.hello()
    start = task.start
    assert (start.checkpoint_id, start.event_position, start.expected_sequence) == (n, 2, 2)
    assert start.state is not None
    assert start.state.inline == b"state"
    assert start.next_checkpoint_id == n + 1
    assert start.policy is FailoverPolicy.REPLAY
    assert start.full_generation == (1, 1)


def test_start_stands_before_the_gateway_is_handed_over_and_before_any_event() -> None:
    """Section 5.2: what it sends next stands behind Start."""
    script = Script.begun()
    script.read(RunStarted("run-1", "here"))
    done = script.read(hello(0))
    kinds = [type(effect) for effect in done]
    assert kinds.index(effects.Append) < kinds.index(effects.CallReady)
    ready = next(effect for effect in done if isinstance(effect, effects.CallReady))
    script.send(ready.stream, b"a")
    assert [type(record) for record in script.events_log[S0][-2:]] == [Start, EventFrame]


def test_a_newer_hello_fails_the_live_attempt_and_gets_its_own_start() -> None:
    """Section 5.2; section 4: the newest Hello wins."""
    script = Script.running()
    older = script.task()
    newer = script.hello()
    assert names(script.calls) == ["failed", "subtaskreset", "ready"]
    failed = script.calls[0]
    assert isinstance(failed, effects.CallFailed)
    assert failed.attempt == older.attempt
    assert newer.start.generation == older.start.generation + 1


def test_a_hello_with_a_name_beyond_any_bound_is_dropped() -> None:
    """Hello names come back in records of its partition, which the broker must take."""
    script = Script.running()
    script.forget()
    script.read(Hello("op", 0, "run-1", "x" * 5_000, "task", "host", LAYOUT, 1))
    assert script.appended(S0) == []
    assert script.dropped("hello-of-unknown-subtask") == 1


def test_the_reason_of_a_stop_is_bounded_whatever_the_hello_says() -> None:
    script = Script.running()
    script.forget()
    script.read(Hello("op", 0, "run-1", "nonce", "task", "host", {f"operator-{i}": 1 for i in range(10_000)}, 1))
    (stop,) = script.appended(S0)
    assert isinstance(stop, Stop) and len(stop.reason) <= TEXT_CHARS_MAX


def test_the_subtask_whose_newer_hello_is_the_cause_gets_no_reset() -> None:
    """Section 8 ◆: its Start carries the new generation."""
    script = Script.running()
    script.hello()
    assert [type(record) for record in script.appended()] == [Welcome, Start]


def test_what_a_replaced_attempt_still_says_is_dropped_and_counted() -> None:
    """Section 3 ◆; G4."""
    script = Script.running()
    older = script.task()
    stale: list[AcksRecord] = [older.heartbeat(), older.failed(), older.finished(), older.frame(b"late")]
    script.hello()
    script.forget()
    script.read(*stale)
    assert script.calls == []
    assert [script.dropped(f"stale-{kind}") for kind in ("Heartbeat", "Failed", "Finished")] == [1, 1, 1]
    assert script.dropped("stale-OperatorEventFrame") == 1


def test_a_stale_record_of_each_kind_is_dropped_under_a_name_of_its_own() -> None:
    stale = {reason for reason in Dropped if reason.startswith("stale-")}
    assert stale == {f"stale-{kind.__name__}" for kind in get_args(FromAttempt)}


def test_the_same_attempt_under_an_older_generation_is_dropped() -> None:
    """Section 3 ◆: the same attempt can live on under a new epoch."""
    script = Script.running()
    task = script.task()
    old = task.failed()
    assert task.start.epoch == 1
    script.restart()  # answers the newest Hello of each: the same attempts, under epoch 2
    assert task.start.epoch == 2
    script.forget()
    script.read(old)
    assert script.calls == []
    assert script.dropped("stale-Failed") == 1


def test_an_attempt_is_judged_when_the_record_is_read_in_log_order() -> None:
    """Section 4: what stands in the log before the newer Hello counts, what stands behind it does not."""
    script = Script.running()
    older = script.task()
    before = older.frame(b"before")
    script.write(before)
    script.hello(read=False)
    script.write(older.frame(b"after"))
    script.read()
    assert script.received() == [b"before"]
    assert names(script.calls) == ["events", "failed", "subtaskreset", "ready"]


def test_what_was_read_before_a_failure_is_handed_over_ahead_of_it() -> None:
    """Section 4 ◆: also what was withheld for a checkpoint future."""
    script = Script.running()
    script.auto_cut = False
    script.trigger()
    task = script.task()
    script.read(task.frame(b"before"))
    assert script.received() == []
    script.read(task.failed())
    assert names(script.calls) == ["checkpoint", "events", "failed", "aborted", "subtaskreset"]


def test_a_hello_of_a_subtask_that_does_not_exist_is_dropped() -> None:
    """G5: nothing read from a topic is trusted."""
    script = Script.running()
    script.read(hello(9), Hello("nobody", 0, "run-1", "nonce", "task", "host", LAYOUT, 1), hello(-1))
    assert script.dropped("hello-of-unknown-subtask") == 3
    assert script.effects == []


def test_an_unreadable_record_is_counted_and_changes_nothing() -> None:
    """G5; section 11, garbage."""
    script = Script.running()
    script.read(None)
    assert script.dropped("unreadable") == 1
    assert script.effects == []


def test_a_record_of_a_higher_epoch_means_fenced() -> None:
    """Section 4: it knows itself fenced even if it never commits; it appends, deletes and truncates nothing."""
    script = Script.running()
    record = script.task().heartbeat()
    sender = record.sender
    foreign = type(sender)(sender.operator, sender.subtask, sender.attempt, sender.epoch + 1, 0)
    script.read(script.task().heartbeat(sender=foreign))
    assert script.ended is not None
    assert script.ended.ending is Ending.FENCED
    assert {type(effect) for effect in script.effects} <= {effects.Settle, End}


def test_an_ended_core_handles_nothing() -> None:
    """Section 4: being fenced, the instance ends and touches nothing."""
    script = Script.running()
    task = script.task()
    failed = task.failed()
    sender = task.sender
    script.read(task.heartbeat(sender=type(sender)("op", 0, 1, 99, 0)))
    offset = script.write(failed)
    assert script.handle(AckRead(offset, 0, failed)) == []


# ---- runs


def test_a_run_is_claimed_before_any_hello_of_it_is_answered() -> None:
    """Section 4, Run."""
    script = Script.begun()
    script.write(RunStarted("run-1", "here"))
    script.hello()
    kinds = [type(effect) for effect in script.effects]
    start = next(
        i for i, e in enumerate(script.effects) if isinstance(e, effects.Append) and isinstance(e.record, Start)
    )
    assert kinds.index(effects.Commit, kinds.index(effects.Commit) + 1) < start
    assert script.committed(RunClaimed) == [RunClaimed("run-1", 0)]


def test_a_hello_of_a_run_that_is_not_the_claimed_one_is_answered_by_stop() -> None:
    """Section 4, Run: its task returns normally."""
    script = Script.running()
    stranger = script.hello(run="run-0")
    (stop,) = script.appended()
    assert isinstance(stop, Stop)
    assert (stop.attempt, stop.nonce) == (stranger.attempt, stranger.nonce)
    assert script.calls == []


def test_a_hello_before_any_run_is_answered_by_stop() -> None:
    """Section 4, Run."""
    script = Script.begun()
    script.forget()
    script.hello()
    assert [type(record) for record in script.appended()] == [Stop]


def test_a_newer_run_stops_the_live_attempts_and_fails_over_globally() -> None:
    """Section 4, Run."""
    script = Script.running()
    older = script.task()
    script.read(RunStarted("run-2", "there"))
    assert Stop in [type(r) for r in script.appended() if isinstance(r, Stop) and r.attempt == older.attempt]
    assert script.epoch.number == 2
    assert script.committed(RunClaimed)[-1].run == "run-2"
    script.forget()
    newer = script.hello(run="run-2")
    assert newer.start.epoch == 2
    script.hello(run="run-1")
    assert isinstance(script.appended()[-1], Stop)


def test_a_newer_run_costs_nothing_of_the_restart_budget() -> None:
    """Section 8: it is no failure."""
    script = Script.running()
    script.read(RunStarted("run-2", "there"))
    assert script.epoch.number == 2
    assert script.job.restarts.spend(script.now) == 0.0  # still the first


def test_a_repeated_run_started_changes_nothing() -> None:
    """Section 4, Run: an unknown outcome may leave it twice in the log."""
    script = Script.running()
    script.read(RunStarted("run-1", "here"))
    assert script.effects == []


def test_a_waiting_hello_of_the_older_run_is_stopped_when_a_newer_run_begins() -> None:
    """Section 4, Run."""
    script = Script.running(OperatorSettings("op", 1), restart=RestartStrategy(backoff_first=5.0))
    script.read(script.task().failed())
    waiting = script.hello()
    assert not waiting.started
    script.forget()
    script.read(RunStarted("run-2", "there"))
    assert [(type(r), r.attempt) for r in script.appended() if isinstance(r, Stop)] == [(Stop, waiting.attempt)]


# ---- failover by policy: what the next attempt is told


def test_a_reset_of_one_subtask_is_not_appended_to_another() -> None:
    """Section 2: a subtask without data channels is a region of its own."""
    script = Script.running()
    script.read(script.task().failed())
    assert [type(record) for record in script.appended(S0)] == [Reset]
    assert script.appended(S1) == []


def test_an_aborted_checkpoint_is_told_before_the_reset() -> None:
    """Section 8, region failover: pending checkpoints aborted; then the new generation and its Reset."""
    script = Script.running()
    script.trigger()
    script.forget()
    script.read(script.task().failed())
    assert [type(record) for record in script.appended(S0)] == [CheckpointAborted, Reset]
    assert [type(record) for record in script.appended(S1)] == [CheckpointAborted]


def test_the_next_start_names_markers_below_its_next_checkpoint_id_dead() -> None:
    """Section 5.3."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task().failed())
    assert script.hello().start.next_checkpoint_id == n + 1


def test_a_hello_that_a_newer_one_displaced_is_the_newest_again_when_that_ones_task_dies() -> None:
    """Section 4: the newest Hello wins, and a dead task has none."""
    script = Script.begun()
    script.read(RunStarted("run-1", "here"))
    script.slot(S0).start_not_before = 100.0
    older, newer = script.hello(S0).attempt, script.hello(S0).attempt
    died = script.job.registry.waiting[S0].hello
    script.read(FailureHint("op", 0, "run-1", died.task, "its worker died"))
    script.advance(100.0)
    assert newer > older
    assert [start.attempt for start in script.records(S0, Start)] == [older]


def test_it_is_also_where_the_one_that_died_had_said_its_hello_twice() -> None:
    """Section 4: a Hello whose append failed is written again, and may stand twice."""
    script = Script.begun()
    script.read(RunStarted("run-1", "here"))
    script.slot(S0).start_not_before = 100.0
    older = script.hello(S0).attempt
    script.hello(S0)
    died = script.job.registry.waiting[S0].hello
    script.read(died, FailureHint("op", 0, "run-1", died.task, "its worker died"))
    script.advance(100.0)
    assert [start.attempt for start in script.records(S0, Start)] == [older]


def test_a_displaced_hello_whose_own_task_dies_is_not_answered() -> None:
    """Section 8: a FailureHint names the task that died."""
    script = Script.begun()
    script.read(RunStarted("run-1", "here"))
    script.slot(S0).start_not_before = 100.0
    script.hello(S0)
    died = script.job.registry.waiting[S0].hello
    newer = script.hello(S0).attempt
    script.read(FailureHint("op", 0, "run-1", died.task, "its worker died"))
    assert script.job.registry.waiting[S0].displaced is None
    script.advance(100.0)
    assert [start.attempt for start in script.records(S0, Start)] == [newer]


def says_again(script: Script, previous: int, task: str = "task-of-old") -> None:
    script.read(Hello("op", 0, "run-1", "again", task, "host", LAYOUT, 1, previous))


def test_an_instance_that_another_has_superseded_is_told_so_and_supersedes_nobody() -> None:
    """Section 4: its successor's Start may have been truncated away, so that it never read it."""
    script = Script.running()
    old = script.task(S0).attempt
    new = script.hello(S0).attempt
    script.forget()
    says_again(script, old)
    (told,) = script.appended(S0)
    assert isinstance(told, Stop)
    assert (told.nonce, told.superseded) == ("again", True)
    assert script.slot(S0).attempt is not None
    assert script.slot(S0).attempt.id == new
    assert script.dropped("hello-of-superseded") == 1


def test_an_instance_that_fails_and_says_hello_again_is_started_again() -> None:
    """Section 8: in place; nobody is newer than what it was."""
    script = Script.running()
    task = script.task(S0)
    script.read(task.failed())
    says_again(script, task.attempt)
    assert [start.nonce for start in script.records(S0, Start)][-1] == "again"


def test_a_second_hello_of_one_task_supersedes_its_first() -> None:
    """Section 4: the newest wins; what the same instance said before has not taken its place."""
    script = Script.running()
    task = script.task(S0)
    script.read(task.failed())
    script.slot(S0).start_not_before = 100.0
    says_again(script, task.attempt, "the task")
    script.read(Hello("op", 0, "run-1", "once more", "the task", "host", LAYOUT, 1, task.attempt))
    script.advance(100.0)
    assert [start.nonce for start in script.records(S0, Start)][-1] == "once more"


def test_a_hello_that_stands_twice_fails_nobody() -> None:
    """Section 4.1 ◆: a client may append again what it has appended already."""
    script = Script.running()
    task = script.hello(S0)
    said = script.acks[task.attempt][1]
    script.forget()
    script.read(said)
    assert script.appended(S0) == []
    assert script.slot(S0).attempt is not None
    assert script.slot(S0).attempt.id == task.attempt
    assert script.dropped("hello-repeated") == 1


def test_a_superseded_instance_is_told_so_at_a_takeover_too() -> None:
    """Section 8: the newest Hello per subtask, and not the last word of one that has a successor."""
    script = Script.running()
    old = script.task(S0).attempt
    new = script.hello(S0, read=False).attempt
    script.write(Hello("op", 0, "run-1", "again", "task-of-old", "host", LAYOUT, 1, old))
    script.forget()
    script.restart()
    stops = [r for r in script.appended(S0) if isinstance(r, Stop)]
    assert [(stop.nonce, stop.superseded) for stop in stops] == [("again", True)]
    assert [r.attempt for r in script.appended(S0) if isinstance(r, Start)] == [new]


def test_it_is_superseded_also_while_its_successor_starts_over() -> None:
    """Section 4: the successor is about to say Hello again in place."""
    script = Script.running()
    old = script.task(S0).attempt
    script.hello(S0)
    script.read(script.task(S0).failed())
    script.forget()
    says_again(script, old)
    (told,) = [r for r in script.appended(S0) if isinstance(r, Stop)]
    assert told.superseded
