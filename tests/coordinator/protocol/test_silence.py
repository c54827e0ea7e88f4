"""The failure detector: log time, silence, event acks (protocol, sections 6 and 8)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised, HeartbeatLost
from penstock.coordinator.protocol.log_clock import LogClock
from penstock.schemas.acks import CoordinatorHeartbeat, RunStarted
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.settings import OperatorSettings
from penstock.schemas.status import Ending

from .driver import S0, S1, Script, names


def failed(script: Script) -> list[tuple[int, str | None]]:
    return [(c.subtask, c.reason) for c in script.calls if isinstance(c, effects.CallFailed)]


# ---- the clock


def test_log_time_passes_by_the_append_times_of_own_heartbeats() -> None:
    """Section 8: measured against heartbeats that did arrive, by their append times."""
    clock = LogClock(1.0)
    for at_ms in (5_000, 6_000, 7_500):
        clock.own_heartbeat(at_ms)
    assert clock.seconds == 2.5


def test_log_time_stands_still_without_own_heartbeats() -> None:
    """Section 8: a broker that is away for a minute fails nobody."""
    clock = LogClock(1.0)
    clock.own_heartbeat(5_000)
    assert clock.of(5_000) == 0.0
    assert clock.of(65_000) == 2.0  # never more than a step ahead


def test_a_step_is_bounded_and_time_never_runs_backwards() -> None:
    """Section 8: an outage does not end in a burst that makes everybody look silent."""
    clock = LogClock(1.0)
    clock.own_heartbeat(100_000)
    clock.own_heartbeat(400_000)
    assert clock.seconds == 2.0
    clock.own_heartbeat(1_000)
    assert clock.seconds == 2.0
    clock.own_heartbeat(2_000)
    assert clock.seconds == 3.0


# ---- own heartbeats


def test_one_own_heartbeat_is_written_each_interval_while_they_arrive() -> None:
    """Section 8."""
    script = Script.running()
    script.beat()
    for _ in range(5):
        script.advance(1.0)
        assert len(script.heartbeats) == 1
        script.beat()


def test_at_most_one_own_heartbeat_is_in_flight() -> None:
    """Section 8: so that an outage does not end in a burst."""
    script = Script.running()
    for _ in range(50):
        script.advance(1.0)
    assert len(script.heartbeats) == 1


def test_one_that_is_lost_is_written_again_at_last() -> None:
    """G6: losing it is harmless."""
    script = Script.running()
    script.heartbeats.clear()
    script.heartbeats = []
    for _ in range(120):
        script.advance(1.0)
    assert len(script.heartbeats) >= 1


def test_one_that_did_not_stand_is_written_again_an_interval_later() -> None:
    """G6: the clock of the failure detector must not stop for a record that the broker refused."""
    script = Script.running()
    script.advance(1.0)
    script.heartbeats = []
    script.handle(HeartbeatLost())
    script.advance(1.0)
    assert len(script.heartbeats) == 1


def test_a_heartbeat_of_another_instance_is_dropped() -> None:
    """G4."""
    script = Script.running()
    script.read(CoordinatorHeartbeat(1, "another"))
    assert script.dropped("heartbeat-of-another-coordinator") == 1


def test_a_heartbeat_of_a_higher_epoch_means_fenced() -> None:
    """Section 4."""
    script = Script.running()
    script.read(CoordinatorHeartbeat(2, "another"))
    assert script.ended is not None
    assert script.ended.ending is Ending.FENCED


# ---- silence


def test_a_silent_attempt_is_failed_and_its_task_killed() -> None:
    """Section 8: also killed on Spark: nobody restarts a frozen task."""
    script = Script.running(heartbeat_timeout=10.0)
    script.live(20, S0)
    ((subtask, reason),) = failed(script)
    assert subtask == 0
    assert reason is not None
    assert "silent for" in reason
    (kill,) = script.made(effects.KillTask)
    assert (kill.subtask, kill.task) == (S0, "task-1")


def test_the_cause_names_the_step_it_was_last_in() -> None:
    """Section 8: heartbeats name its step and age; G6."""
    script = Script.running()
    script.read(script.task().heartbeat(step="in snapshot_state", step_age_ms=10))
    script.live(20, S0)
    assert "in snapshot_state" in (failed(script)[0][1] or "")


def test_an_attempt_that_speaks_is_not_silent() -> None:
    """Section 8."""
    script = Script.running()
    script.live(60)
    assert failed(script) == []


def test_any_record_of_an_attempt_is_a_sign_of_life() -> None:
    """Section 8."""
    script = Script.running()
    for _ in range(30):
        script.live(1, S0)
        script.read(script.task().frame(b"busy"))
    assert failed(script) == []


def test_an_outage_of_a_minute_fails_nobody() -> None:
    """Section 8; section 11, broker away for a minute, then back."""
    script = Script.running()
    script.live(5)
    for _ in range(60):
        script.advance(1.0)  # nothing arrives, the own heartbeats neither
    script.beat()  # the one in flight is back first
    for _ in range(5):
        script.advance(1.0)
        script.beat()  # and subtasks take some seconds more
    script.live(20)
    assert failed(script) == []


def test_a_lost_own_heartbeat_is_written_again_after_sixty_intervals() -> None:
    """Section 8: at most one of its own is in flight, however long the coordinator has run."""
    script = Script.running()
    script.live(100)
    for _ in range(61):
        script.advance(1.0)
        assert len(script.heartbeats) == 1
    script.advance(1.0)
    assert len(script.heartbeats) == 2


def test_who_stays_silent_after_an_outage_is_failed() -> None:
    """Section 8: the outage only stops the clock."""
    script = Script.running()
    script.live(5)
    for _ in range(60):
        script.advance(1.0)
    script.live(20, S1)
    assert [subtask for subtask, _ in failed(script)] == [1]


def test_a_backlog_read_at_once_makes_nobody_silent() -> None:
    """Section 8: append times, not reading times."""
    script = Script.running()
    script.live(3)
    records = []
    for _ in range(30):
        script.now += 1.0
        script.write(CoordinatorHeartbeat(1, "first"))
        records += [script.write(script.task(s).heartbeat()) for s in (S0, S1)]
    script.read()
    assert failed(script) == []


# ---- event acks


def stuck(timeout: float = 5.0) -> Script:
    script = Script.running(OperatorSettings("op", 2, event_ack_timeout=timeout), checkpoint={"interval": None})
    script.send(script.task(), b"a", b"b")
    return script


def test_no_progress_on_events_fails_exactly_that_attempt() -> None:
    """Section 6; R76."""
    script = stuck()
    script.live(10)
    ((subtask, reason),) = failed(script)
    assert subtask == 0
    assert reason is not None
    assert "event 0 of 2 waits" in reason


def test_its_successor_has_the_whole_time_again() -> None:
    """Section 6: never its successor; R80."""
    script = stuck()
    script.live(7)
    assert len(failed(script)) == 1
    script.hello()
    script.live(4)
    assert len(failed(script)) == 1
    script.live(4)
    assert len(failed(script)) == 2


def test_the_clock_starts_again_whenever_handled_through_advances() -> None:
    """Section 6."""
    script = stuck()
    script.live(4)
    script.live(4, handled={S0: 1})
    assert failed(script) == []
    script.live(4, handled={S0: 1})
    assert len(failed(script)) == 1


def test_the_clock_runs_only_while_an_appended_event_is_unhandled() -> None:
    """Section 6: an event sent after a long idle time has all its time."""
    script = stuck()
    script.live(2, handled={S0: 2})
    script.live(30, handled={S0: 2})
    script.send(script.task(), b"c")
    script.live(4, handled={S0: 2})
    assert failed(script) == []
    script.live(4, handled={S0: 2})
    assert len(failed(script)) == 1


def test_a_held_event_does_not_run_the_clock() -> None:
    """Section 6: an appended event."""
    script = Script.running(OperatorSettings("op", 2, event_ack_timeout=5.0))
    script.trigger()
    script.send(script.task(), b"held")
    script.live(20)
    assert failed(script) == []


def test_the_clock_stands_still_while_the_heartbeat_reports_an_alignment() -> None:
    """Section 6."""
    script = stuck()
    for _ in range(20):
        script.live(1, S0)
        script.read(script.task().heartbeat(aligning=True))
    assert failed(script) == []
    script.live(10)
    assert len(failed(script)) == 1


def test_an_outage_does_not_run_the_clock() -> None:
    """Section 8: a broker that is away for a minute fails nobody."""
    script = stuck(timeout=20.0)
    script.live(3)
    for _ in range(60):
        script.advance(1.0)
    script.live(10)
    assert failed(script) == []


def test_a_busy_job_fails_nobody() -> None:
    """Section 6: with progress at every heartbeat."""
    script = stuck()
    for handled in range(2, 40):
        script.send(script.task(), b"x")
        script.live(1, handled={S0: handled})
    assert failed(script) == []
    assert "failed" not in names(script.calls)


# ---- who is to start over


@pytest.mark.parametrize("policy", list(FailoverPolicy))
def test_one_that_is_to_start_over_and_says_nothing_has_its_task_ended(policy: FailoverPolicy) -> None:
    """Section 8: whoever froze when a failover took it along obeys no Reset, and says no Hello that could fail."""
    script = Script.running(OperatorSettings("op", 2, on_failover=policy))
    frozen = script.slot(S1).attempt
    assert frozen is not None
    script.handle(CoordinatorRaised("op", script.job.current.number, "step", "boom"))
    script.advance(5.0)
    script.forget()
    script.hello(S0)
    script.live(9.0, S1)
    assert not script.made(effects.KillTask)
    script.live(5.0, S1)
    (kill,) = script.made(effects.KillTask)
    assert (kill.subtask, kill.task) == (S1, frozen.hello.task)
    script.live(30.0, S1)
    assert len(script.made(effects.KillTask)) == 1


def test_one_that_is_to_start_over_and_still_speaks_is_left_alone() -> None:
    """Section 8: user code may take its time, and its instance obeys a Reset when that returns."""
    script = Script.running()
    speaks = script.task(S0).heartbeat()
    script.read(script.task(S0).failed())
    script.slot(S0).start_not_before = 1e9
    script.forget()
    for _ in range(30):
        script.live(1.0, S0)
        script.read(speaks)
    assert not script.made(effects.KillTask)


def test_one_that_has_said_hello_again_is_left_alone() -> None:
    script = Script.running()
    script.read(script.task(S0).failed())
    script.slot(S0).start_not_before = 1e9
    script.hello(S0)
    script.forget()
    script.live(30.0, S0)
    assert not script.made(effects.KillTask)


def test_no_task_of_an_older_run_is_ended() -> None:
    """Its name may be that of another task by now."""
    script = Script.running()
    script.read(script.task(S0).failed())
    script.read(RunStarted("run-2", "there"))
    script.hello_all("run-2")
    script.forget()
    script.live(30.0)
    assert not script.made(effects.KillTask)
