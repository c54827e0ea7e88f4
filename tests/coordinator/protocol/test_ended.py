"""Who is told that the job has ended by whoever finds that it has (protocol, P-4.2.6)."""

from __future__ import annotations

from penstock.coordinator.protocol import ended
from penstock.coordinator.protocol.history import History
from penstock.schemas.acks import AcksRecord, Hello, RunStarted
from penstock.schemas.checkpoints import JobFinished, JobOutcome, RunClaimed
from penstock.schemas.versions import CURRENT

from .driver import LAYOUT, S0, job_settings


def hello(run: str, nonce: str) -> Hello:
    return Hello(*S0, run, nonce, "a task", "a host", LAYOUT, CURRENT.protocol)


def told(read: dict[int, AcksRecord]) -> list[tuple[int, str]]:
    """Attempt and nonce of each Stop, where the job has ended in run-2, which began at offset 10 of the acks topic."""
    finished = JobFinished(3, JobOutcome.STOPPED, "stopped by somebody", "run-2")
    history = History.of([("run", RunClaimed("run-2", 10)), ("finished", finished)])
    return [(stop.attempt, stop.nonce) for _, stop in ended.stops(job_settings(), history, read.items())]


def test_attempts_of_the_run_that_ended_and_of_older_runs_are_told() -> None:
    older, late, of_it = hello("run-1", "older"), hello("run-1", "late"), hello("run-2", "of it")
    read = {0: RunStarted("run-1", ""), 1: older, 10: RunStarted("run-2", ""), 11: of_it, 12: late}
    assert told(read) == [(1, "older"), (11, "of it"), (12, "late")]


def test_those_of_a_newer_run_wait_for_its_coordinator() -> None:
    read = {10: RunStarted("run-2", ""), 12: RunStarted("run-3", ""), 13: hello("run-3", "newer")}
    assert told(read) == []


def test_a_run_announced_twice_is_not_newer_than_itself() -> None:
    read = {10: RunStarted("run-2", ""), 11: RunStarted("run-2", ""), 12: hello("run-2", "of it")}
    assert told(read) == [(12, "of it")]
