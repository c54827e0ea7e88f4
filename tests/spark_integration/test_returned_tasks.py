"""When all tasks have returned, the run says why by what the coordinator or the log says, not by how long it took."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import Job, Subtask
from penstock.checkpoint_log.history import History
from penstock.schemas.checkpoints import JobFinished, JobOutcome, RunClaimed
from penstock.schemas.errors import BrokerUnreachable, JobFailed, RunReplaced
from penstock.schemas.ids import SubtaskId
from penstock.schemas.status import End, Ending
from penstock.spark_integration import supervisor as supervision
from penstock.spark_integration.supervisor import RunParts, Supervisor, _Conclusion
from penstock.spark_integration.task import SubtaskReturn


class Coordinator:
    """Ends when the log has been looked at ``looks`` times."""

    def __init__(self, looks: int, client: Client) -> None:
        self.looks, self.client = looks, client

    def done(self) -> bool:
        return self.client.looks >= self.looks

    def wait(self, timeout: float) -> End:
        return End(Ending.FINISHED, "every subtask has finished")


class Client:
    """Gives no status, and the log; the first ``silent`` times the broker does not answer."""

    def __init__(self, history: History, silent: int = 0, status: Any = None) -> None:
        self.log, self.silent, self.newest = history, silent, status
        self.asked = self.looks = 0

    def _answer(self) -> None:
        self.asked += 1
        if self.asked <= self.silent:
            raise BrokerUnreachable("the broker has stalled")

    def status(self) -> Any:
        self._answer()
        return self.newest

    def history(self) -> History:
        self.looks += 1
        self._answer()
        return self.log


def history_of(run: str, finished: JobFinished | None = None) -> History:
    history = History()
    history.run, history.finished = RunClaimed(run, 0), finished
    return history


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "OTHER_SIDE_S", 0.05)
    monkeypatch.setattr(supervision, "TICK_S", 0.01)


def conclude(client: Client, service: Coordinator | None = None) -> _Conclusion:
    job = Job("hello")
    job.operator("only", subtask=Subtask, parallelism=1)
    returned = [SubtaskReturn(SubtaskId("only", 0), "the job has finished")]
    spark_job = SimpleNamespace(error=None, returns=returned)
    unused = cast(Any, None)
    parts = RunParts(
        job.settings, "ours", unused, unused, cast(Any, service), cast(Any, client), cast(Any, spark_job), unused, 1
    )
    watch = Supervisor(cast(Any, None), parts)
    found: list[_Conclusion] = []
    thread = threading.Thread(target=lambda: found.append(watch._of_tasks()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the run has come to no conclusion within 20 s"
    return found[0]


def test_a_coordinator_that_a_stall_holds_up_at_the_end_has_not_been_replaced() -> None:
    client = Client(history_of("ours"), silent=3)
    conclusion = conclude(client, Coordinator(6, client))
    assert (conclusion.error, conclusion.ending) == (None, JobOutcome.FINISHED)


def test_a_coordinator_that_hangs_has_been_replaced_if_the_log_names_a_newer_run() -> None:
    conclusion = conclude(Client(history_of("newer")), Coordinator(1_000_000, Client(History())))
    assert isinstance(conclusion.error, RunReplaced)
    assert "run newer" in conclusion.cause


RUNNING = SimpleNamespace(run="ours", state="running", cause="")


def test_a_run_coordinated_elsewhere_waits_for_a_broker_that_has_stalled() -> None:
    finished = JobFinished(1, JobOutcome.FINISHED, "every subtask has finished", "ours")
    conclusion = conclude(Client(history_of("ours", finished), silent=30, status=RUNNING))
    assert (conclusion.error, conclusion.ending) == (None, JobOutcome.FINISHED)


def test_a_run_coordinated_elsewhere_is_replaced_by_a_newer_run_of_the_log() -> None:
    assert isinstance(conclude(Client(history_of("newer"), status=RUNNING)).error, RunReplaced)


def test_a_run_that_nothing_in_the_log_has_ended_fails_and_names_what_its_tasks_were_told() -> None:
    conclusion = conclude(Client(history_of("ours"), status=RUNNING))
    assert isinstance(conclusion.error, JobFailed)
    assert "the job has finished" in conclusion.cause
    assert "neither an end of the job nor a newer run" in conclusion.cause
