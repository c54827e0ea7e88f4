"""The restart budget, its backoff, and the start timeout of a run (protocol, section 8)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.failover import ALIKE_MAX
from penstock.coordinator.protocol.inputs import CoordinatorRaised
from penstock.coordinator.protocol.restarts import RestartBudget
from penstock.schemas.acks import RunStarted
from penstock.schemas.checkpoints import JobFinished, JobOutcome
from penstock.schemas.errors import CoordinatorClosed
from penstock.schemas.events import Stop
from penstock.schemas.settings import OperatorSettings, RestartStrategy
from penstock.schemas.status import Ending

from .driver import S0, S1, Script


def raised(script: Script, cause: str = "ValueError: no") -> None:
    script.handle(CoordinatorRaised("op", script.job.history.epoch, "call_later", cause))


# ---- budget and backoff


def test_the_first_restart_does_not_wait() -> None:
    """Section 8: none for the first."""
    script = Script.running()
    script.read(script.task().failed())
    assert script.hello().started


def test_a_later_start_waits_for_the_backoff() -> None:
    """Section 8: the coordinator delays Start by the restart strategy's backoff."""
    script = Script.running(restart=RestartStrategy(backoff_first=0.0, backoff_next=2.0))
    script.read(script.task().failed())
    script.hello()
    script.read(script.task().failed())
    task = script.hello()
    assert not task.started
    assert (script.core.deadline() or 0.0) <= script.now + 2.0
    script.advance(1.9)
    assert not task.started
    script.advance(0.1)
    assert task.started


def test_a_later_epoch_waits_for_the_backoff() -> None:
    """Section 8."""
    script = Script.running(restart=RestartStrategy(backoff_first=3.0))
    raised(script)
    assert script.job.epoch is None
    assert script.core.deadline() == script.now + 3.0
    script.hello()  # meanwhile instances come
    script.advance(3.0)
    assert script.epoch.number == 2
    assert script.task().started


def test_past_the_budget_the_job_fails_with_the_last_cause() -> None:
    """Section 8."""
    script = Script.running(restart=RestartStrategy(budget=2))
    for _ in range(2):
        script.read(script.task().failed("earlier"))
        script.advance(60.0)
        script.hello()
        script.advance(60.0)
    stream = script.send(script.task(S1), b"a")
    script.forget()
    script.read(script.task().failed("the last straw"))
    assert script.ended is not None
    assert script.ended.ending is Ending.FAILED
    assert "the last straw" in script.ended.cause
    (finished,) = script.committed(JobFinished)
    assert finished.outcome is JobOutcome.FAILED
    assert isinstance(stream.failure, CoordinatorClosed)
    assert Stop in {type(r) for r in script.appended(S1)}


def test_a_lost_host_of_many_subtasks_is_one_failover() -> None:
    """P-8.7.3: and one of them that fails once more is another failover."""
    settings = OperatorSettings("op", 100)
    script = Script.running(settings, restart=RestartStrategy(backoff_next=0.0, backoff_max=0.0, budget=2))
    for subtask in script.settings.subtasks():
        script.read(script.task(subtask).failed())
        script.advance(0.01)
    assert script.ended is None
    script.advance(60.0)
    script.hello_all()
    for subtask in (S0, S1):
        script.read(script.task(subtask).failed())
    assert script.ended is None
    script.hello(S0)
    script.read(script.task(S0).failed())
    assert script.ended is not None and "more than 2 failovers" in script.ended.cause


def test_past_the_budget_a_raising_coordinator_fails_the_job_too() -> None:
    """Section 8."""
    script = Script.running(restart=RestartStrategy(budget=1))
    raised(script)
    raised(script, "KeyError: last")
    assert script.ended is not None
    assert "KeyError: last" in script.ended.cause


def test_delays_double_up_to_a_bound_and_begin_anew_after_a_quiet_window() -> None:
    """Section 8: exponential delay, a budget per time."""
    budget = RestartBudget(
        RestartStrategy(backoff_first=0.0, backoff_next=1.0, backoff_max=3.0, budget=5, budget_window=100.0)
    )
    assert [budget.spend(0.0) for _ in range(6)] == [0.0, 1.0, 2.0, 3.0, 3.0, None]
    assert budget.spend(100.0) == 0.0


# ---- the start of a run


def _passing(script: Script, seconds: int) -> None:
    """Time passes, and the log tells of it."""
    for _ in range(seconds):
        script.advance(1.0)
        script.beat()


def test_a_run_that_never_gets_all_its_subtasks_up_fails_and_names_them() -> None:
    """Start timeout (settings of the job); G6: what it waits for is nameable."""
    script = Script.begun(start_timeout=20.0)
    script.read(RunStarted("run-1", "here"))
    script.hello(S0)
    _passing(script, 19)
    assert script.ended is None
    _passing(script, 1)
    assert script.ended is not None
    assert script.ended.ending is Ending.FAILED
    assert "only 1 of 2 subtasks registered within 20 s (missing: op/1)" in script.ended.cause


def test_the_start_timeout_counts_from_the_run_and_ends_when_all_have_registered() -> None:
    """Start timeout: within which every subtask of a run must have registered for the first time."""
    script = Script.begun(start_timeout=20.0)
    script.advance(100.0)
    script.read(RunStarted("run-1", "here"))
    script.advance(19.0)
    script.hello_all()
    script.read(script.task().failed())
    script.advance(100.0)
    assert script.ended is None


def test_a_newer_run_has_its_own_start_timeout() -> None:
    """Start timeout; section 4, Run."""
    script = Script.running(start_timeout=20.0)
    script.read(RunStarted("run-2", "there"))
    _passing(script, 21)
    assert script.ended is not None


def test_a_hello_of_an_older_run_is_no_registration_in_the_newer() -> None:
    """Start timeout: every subtask of *that* run."""
    script = Script.running(start_timeout=20.0)
    script.write(RunStarted("run-2", "there"))
    script.restart()
    script.hello(S0, "run-2")
    _passing(script, 21)
    assert script.ended is not None
    assert "missing: op/1" in script.ended.cause


def test_time_in_which_the_log_was_away_is_not_counted() -> None:
    """Section 11: a broker that is away fails nobody; nobody could register."""
    script = Script.begun(start_timeout=20.0)
    script.read(RunStarted("run-1", "here"))
    script.hello(S0)
    script.advance(60.0)
    assert script.ended is None
    _passing(script, 19)
    assert script.ended is None
    _passing(script, 1)
    assert script.ended is not None


def test_a_mistake_in_the_job_ends_it_at_once() -> None:
    """Section 8: ConfigurationError is no fault that a restart could cure."""
    script = Script.running()
    script.handle(CoordinatorRaised("op", 1, "start", "ConfigurationError: no codec", final=True))
    assert script.ended is not None
    assert "no codec" in script.ended.cause
    assert script.job.statistics.global_failovers == 0


@pytest.mark.parametrize("completed", [False, True])
def test_the_same_failure_again_and_again_ends_a_job_that_never_completed_a_checkpoint(completed: bool) -> None:
    """Section 8: long before the budget is used up; with a checkpoint the budget alone counts."""
    script = Script.running(restart=RestartStrategy(budget=50))
    if completed:
        script.checkpoint()
    for _ in range(ALIKE_MAX):
        script.read(script.task().failed("the same"))
        script.advance(60.0)
        script.hello_all()
    assert script.ended is None
    script.read(script.task().failed("another"))
    script.advance(60.0)
    script.hello_all()
    assert script.ended is None
    script.read(script.task().failed("the same"))
    assert (script.ended is None) is completed
    if script.ended is not None:
        assert f"op/0 failed {ALIKE_MAX + 1} times with the same cause" in script.ended.cause
