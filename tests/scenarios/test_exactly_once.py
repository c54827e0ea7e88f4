"""C5 in memory: each subtask's list is exactly 0, 1, ..., n-1, whatever failed on the way, under every policy."""

from __future__ import annotations

import pytest

from penstock.coordinator.options import CoordinatorOptions
from penstock.schemas.errors import RolledBack, TaskNotRunning
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.status import Ending, JobStatus
from penstock.testing import LocalJob
from tests.rounds import rounds

from .exactly_once import EVENTS, PATIENCE_S, OldSend, Script, exactly_once_job, final_lists


def played(policy: FailoverPolicy, scripts: list[Script]) -> JobStatus:
    """Plays the job to its end and checks what must hold in every case; returns the last status."""
    statuses: list[JobStatus] = []
    options = CoordinatorOptions(status_interval_s=0.02, on_status=statuses.append)
    with LocalJob(exactly_once_job(policy, scripts), options=options) as running:
        outcome = running.wait(PATIENCE_S)
        lists = final_lists(running)
    for script in scripts:
        for thread in script.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert script.broken == []
        assert script.job_failures == 1
        assert script.subtask_failures == script.subtask_fails
        assert script.old_sends, "no integer was sent through an old gateway"
        for old in script.old_sends:
            assert_settled_by_policy(old, policy)
    assert outcome.ending is Ending.FINISHED, outcome
    assert lists == {name: list(range(n)) for name, n in EVENTS.items()}
    return statuses[-1]


def assert_settled_by_policy(old: OldSend, policy: FailoverPolicy) -> None:
    """What went through an old gateway is void, but under replay after a region failover: then it reaches the
    successor, unless another failover, a global one, undoes that too."""
    assert old.future.done(), f"the future of {old.number} hangs"
    error = old.future.exception()
    if old.undone_by == "reset_to_checkpoint" or policy is FailoverPolicy.GLOBAL:
        assert isinstance(error, RolledBack)
    elif policy is FailoverPolicy.RESET:
        assert isinstance(error, TaskNotRunning)
    else:
        assert error is None or isinstance(error, RolledBack)


@pytest.mark.soak
@pytest.mark.parametrize("policy", FailoverPolicy)
@pytest.mark.parametrize("seed", rounds())
def test_lists_are_exact_when_each_coordinator_fails_the_job_once(seed: int, policy: FailoverPolicy) -> None:
    """C5: events fall between the request of a checkpoint and its cut, and one goes through an old gateway when the
    successor is up already."""
    status = played(policy, [Script(name, seed, subtask_fails=False) for name in EVENTS])
    assert status.failovers_global >= 1
    assert status.failovers_region == 0


@pytest.mark.soak
@pytest.mark.parametrize("policy", FailoverPolicy)
@pytest.mark.parametrize("seed", rounds())
def test_lists_are_exact_when_subtasks_fail_too(seed: int, policy: FailoverPolicy) -> None:
    """C5 with C6.3's failure: each subtask raises once in handling an event. Under reset the coordinator sends again
    from subtask_reset, under replay it does nothing about it, under global it is rolled back."""
    scripts = [Script(name, seed, subtask_fails=True) for name in EVENTS]
    status = played(policy, scripts)
    assert status.failovers_global >= 1
    assert (status.failovers_region > 0) == (policy is not FailoverPolicy.GLOBAL)
    assert (sum(script.sent_again for script in scripts) > 0) == (policy is FailoverPolicy.RESET)
