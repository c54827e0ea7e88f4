"""Who is told that the job has ended by whoever finds that it has (protocol, P-4.2.6)."""

from __future__ import annotations

from penstock.checkpoint_log.history import History
from penstock.coordinator.protocol import late_stops
from penstock.schemas.acks import AcksRecord, CommandKind, Hello, RunStarted
from penstock.schemas.checkpoints import JobFinished, JobOutcome, RunClaimed
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.settings import OperatorSettings, Rescale
from penstock.schemas.versions import CURRENT

from .driver import LAYOUT, S0, Script, job_settings


def hello(run: str, nonce: str) -> Hello:
    return Hello(*S0, run, nonce, "a task", "a host", LAYOUT, CURRENT.protocol)


def told(read: dict[int, AcksRecord], run: str = "run-2") -> list[tuple[int, str]]:
    """Attempt and nonce of each Stop, where the job has ended in ``run``; run-2 began at offset 10 and was claimed."""
    finished = JobFinished(3, JobOutcome.STOPPED, "stopped by somebody", run)
    history = History.of([("run", RunClaimed("run-2", 10)), ("finished", finished)])
    return [(stop.attempt, stop.nonce) for _, stop in late_stops.stops(job_settings(), history, read.items())]


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


def test_an_older_run_announced_twice_is_not_newer() -> None:
    older = hello("run-1", "older")
    read = {0: RunStarted("run-1", ""), 1: older, 10: RunStarted("run-2", ""), 12: RunStarted("run-1", "")}
    assert told(read) == [(1, "older")]


def test_a_run_older_than_one_that_ended_unclaimed_is_told() -> None:
    read = {
        12: RunStarted("run-3", ""),
        13: hello("run-3", "older"),
        14: RunStarted("run-4", ""),
        15: hello("run-4", ""),
    }
    assert told(read, "run-4") == [(13, "older"), (15, "")]


def test_a_forged_hello_whose_names_no_record_could_hold_is_passed_over() -> None:
    assert told({11: hello("run-2", "n" * 999_900), 12: hello("run-2", "of it")}) == [(12, "of it")]


def test_hellos_are_read_from_where_a_start_reads_too() -> None:
    """A checkpoint derived from a savepoint has its inbox at the end of the topic: those of its run stand below."""
    script = Script.running(OperatorSettings("op", 2, rescale=Rescale.LIST))
    script.savepoint(CommandKind.STOP_WITH_SAVEPOINT)
    for n in list(script.pending):
        script.acknowledge(n)
    wider = job_settings(OperatorSettings("op", 3, rescale=Rescale.LIST))
    began = script.write(RunStarted("run-2", "here"))
    script.restart(wider)
    assert script.job.history.last is not None
    assert script.job.history.last.header.rescaled_from != NO_CHECKPOINT
    assert late_stops.hellos_from(script.job.history) <= began
