"""A coordinator and instances of other versions: work, or end with one clear reason (section 12)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.schemas.acks import Refused, RunStarted
from penstock.schemas.events import Start, Stop, Welcome
from penstock.schemas.status import Ending
from penstock.schemas.versions import CURRENT, Versions

from .driver import S0, S1, Script

ALL = [(own, oldest, theirs) for own in (2, 3, 4) for oldest in range(1, own + 1) for theirs in range(1, 6)]


def coordinator_of(versions: Versions) -> Script:
    script = Script()
    script.core = CoordinatorCore(script.settings, "first", versions=versions)
    script.begin()
    script.read(RunStarted("run-1", "here"))
    return script


@pytest.mark.parametrize(("own", "oldest", "theirs"), ALL)
def test_an_instance_is_started_in_the_lower_version_or_the_job_ends_naming_both(
    own: int, oldest: int, theirs: int
) -> None:
    script = coordinator_of(Versions(own, oldest, "2.0"))
    task = script.hello(S0, protocol=theirs, release="1.0")
    if theirs < oldest:
        assert script.ended is not None and script.ended.ending is Ending.FAILED
        cause = script.ended.cause
        assert f"(protocol {theirs})" in cause and f"Penstock 2.0 (protocol {own})" in cause
        assert f"serves protocol {oldest} and above: upgrade the tasks first" in cause
        assert [stop.reason for stop in script.records(S0, Stop)] == [cause]
        assert not task.started
    else:
        assert script.ended is None and task.started
        assert [w.protocol for w in script.records(S0, Welcome)] == [min(own, theirs)]


@pytest.mark.parametrize("cause", ["upgrade the coordinator first", ""])
def test_an_instance_that_is_refused_says_so_and_the_job_ends_with_its_reason(cause: str) -> None:
    """The newer side decides: an instance that is newer than the coordinator knows whether it still works with it."""
    script = coordinator_of(CURRENT)
    task = script.hello(S0, protocol=9)
    script.read(Refused(task.sender, cause))
    assert script.ended is not None
    assert (script.ended.ending, script.ended.cause) == (
        Ending.FAILED,
        cause or "op/0 refused to start, without a cause",
    )


def test_a_newer_coordinator_that_takes_over_older_tasks_goes_on() -> None:
    """Whoever is supported is started like any other, and nothing is counted against the restart budget."""
    script = Script.running()
    script.checkpoint()
    script.core = CoordinatorCore(script.settings, "newer", versions=Versions(7, 1, "9.0"))
    script.forget()
    script.begin()
    for subtask in (S0, S1):
        script.hello(subtask)
    assert len(script.job.live()) == 2
    assert [type(r) for r in script.appended(S0)][-2:] == [Welcome, Start]
    assert script.records(S0, Welcome)[-1].protocol == CURRENT.protocol
    assert script.job.statistics.region_failovers == 0
    script.checkpoint()


def test_a_newer_coordinator_that_no_longer_serves_them_ends_the_job_once_at_the_first_hello() -> None:
    script = Script.running()
    script.core = CoordinatorCore(script.settings, "newer", versions=Versions(7, 5, "9.0"))
    script.forget()
    script.begin()
    script.hello(S0)
    assert script.ended is not None and "upgrade the tasks first" in script.ended.cause
    assert script.job.statistics.global_failovers == 0
