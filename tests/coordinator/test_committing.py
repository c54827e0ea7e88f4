"""A coordinator that commits elsewhere, as docs/committing.md says: each row once, whoever dies (section 7.10)."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.coordinator import host
from penstock.coordinator.options import CoordinatorOptions
from penstock.schemas.settings import CheckpointSettings, RestartStrategy
from penstock.schemas.status import Ending
from penstock.testing.local import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport

from .jobs import PATIENCE_S, wait_until

ROWS, SUBTASKS = 200, 2
PAGE = (Path(__file__).parents[2] / "docs" / "committing.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class Table:
    """Rows that are committed, by name of the commit; a commit may be held up, or fail."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.begun = threading.Event()
        self.failures = 0

    def commit_once(self, name: str, rows: list[int]) -> None:
        self.begun.set()
        assert self.goes_on.wait(PATIENCE_S)
        if self.failures:
            self.failures -= 1
            raise OSError("the table cannot be reached")
        self.rows.setdefault(name, rows)

    def all(self) -> list[int]:
        return sorted(row for rows in self.rows.values() for row in rows)


class Writer(penstock.Subtask):
    """Sends a row at a time, as long as it is let; its state is how many."""

    def __init__(self, limit: int) -> None:
        self.sent, self.limit = 0, limit

    def open(self, context: Any) -> None:
        self.context = context

    def poll(self) -> penstock.Progress | penstock.Idle | penstock.Finished:
        if self.sent == ROWS // SUBTASKS:
            return penstock.Finished()
        if self.sent >= self.limit:
            return penstock.Idle(0.01)
        self.context.send_event_to_coordinator(self.sent * SUBTASKS + self.context.subtask)
        self.sent += 1
        return penstock.Progress()

    def snapshot_state(self, checkpoint_id: int) -> int:
        return self.sent

    def restore_state(self, checkpoint_id: int, state: int | None) -> None:
        self.sent = state or 0


def committing_job(table: Table, *, limit: int = ROWS // SUBTASKS, end_timeout: float = 600.0) -> penstock.Job:
    names: dict[str, Any] = {"penstock": penstock}
    exec(CODE, names)
    job = penstock.Job(
        "commits",
        checkpoint=CheckpointSettings(interval=0.05),
        restart=RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=50),
        heartbeat_interval=0.1,
        heartbeat_timeout=10.0,
        end_timeout=end_timeout,
    )
    job.operator(
        "out",
        coordinator=lambda: names["Committer"](table),
        subtask=lambda: Writer(limit),
        parallelism=SUBTASKS,
        codec="json",
        state_codec="json",
    )
    return job


def run(table: Table, transport: MemoryTransport | None = None, **changes: Any) -> LocalJob:
    return LocalJob(committing_job(table, **changes), transport, CoordinatorOptions(status_interval_s=0.02))


def test_a_finished_job_has_committed_every_row() -> None:
    table = Table()
    table.goes_on.clear()
    with run(table) as running:
        assert table.begun.wait(PATIENCE_S)
        running.wait_for(lambda s: all(t.phase == "finished" for o in s.operators for t in o.subtasks), PATIENCE_S)
        table.goes_on.set()
        assert running.wait(PATIENCE_S).ending is Ending.FINISHED
    assert table.all() == list(range(ROWS))


def test_a_job_that_is_stopped_with_a_savepoint_has_committed_what_that_holds() -> None:
    table, transport = Table(), MemoryTransport(MemoryBroker())
    with run(table, transport, limit=40) as running:
        wait_until(lambda: len(table.all()) == 2 * 40, "the rows of the first run")
        assert running.client.stop(savepoint=True, timeout_s=PATIENCE_S).accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
    with run(table, transport) as running:
        assert running.wait(PATIENCE_S).ending is Ending.FINISHED
    assert table.all() == list(range(ROWS))


def test_a_commit_that_fails_is_repeated_also_at_the_end() -> None:
    table = Table()
    table.failures = 3
    with run(table) as running:
        assert running.wait(PATIENCE_S).ending is Ending.FINISHED
    assert table.failures == 0
    assert table.all() == list(range(ROWS))


@pytest.mark.parametrize("end", ["finished", "stopped"])
def test_a_coordinator_that_dies_in_its_last_commit_is_followed_by_one_that_does_it(end: str) -> None:
    table, transport = Table(), MemoryTransport(MemoryBroker())
    limit = ROWS // SUBTASKS if end == "finished" else 40
    table.goes_on.clear()
    with run(table, transport, limit=limit) as running:
        assert table.begun.wait(PATIENCE_S)
        if end == "stopped":
            running.client.stop(savepoint=True, timeout_s=PATIENCE_S)
        running.wait_for(lambda s: all(t.phase == "finished" for o in s.operators for t in o.subtasks), PATIENCE_S)
        running.crash_coordinator()
    left, table = table, Table()  # what the dead process would still do reaches nothing
    left.goes_on.set()
    table.rows = dict(left.rows)
    with run(table, transport, limit=limit) as running:
        ending = running.wait(PATIENCE_S).ending
    assert ending is (Ending.FINISHED if end == "finished" else Ending.STOPPED)
    if end == "stopped":
        with run(table, transport) as running:
            assert running.wait(PATIENCE_S).ending is Ending.FINISHED
    assert table.all() == list(range(ROWS))


def test_a_commit_that_never_ends_fails_the_job_by_name() -> None:
    table = Table()
    table.goes_on.clear()
    try:
        with run(table, end_timeout=0.2) as running:
            outcome = running.wait(PATIENCE_S)
            assert outcome.ending is Ending.FAILED
            for what in ("coordinators of out", "call_async", "end_timeout"):
                assert what in outcome.cause
    finally:
        table.goes_on.set()


def test_a_close_that_does_not_return_is_left_behind_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "CLOSE_TIMEOUT_S", 0.1)
    goes_on, closed = threading.Event(), threading.Event()

    class Hangs(penstock.OperatorCoordinator):
        def close(self) -> None:
            goes_on.wait(PATIENCE_S)
            closed.set()

    job = committing_job(Table())
    job.operator("hangs", coordinator=Hangs, subtask=lambda: Writer(0), parallelism=1)
    with caplog.at_level(logging.ERROR), LocalJob(job) as running:
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        assert running.wait(PATIENCE_S).ending is Ending.STOPPED
        assert "operator=hangs: close() of the coordinator has not returned" in caplog.text
        goes_on.set()
        assert closed.wait(PATIENCE_S)


def test_what_a_subtask_sent_after_the_checkpoint_that_it_goes_back_to_is_not_committed() -> None:
    table = Table()
    failed = threading.Event()

    class Fails(Writer):
        def poll(self) -> penstock.Progress | penstock.Idle | penstock.Finished:
            if self.context.subtask == 0 and self.sent == 50 and not failed.is_set():
                failed.set()
                raise OSError("once, with events sent since its last checkpoint")
            return super().poll()

    job = committing_job(table)
    job.operators["out"] = replace(job.operators["out"], subtask=lambda: Fails(ROWS // SUBTASKS))
    with LocalJob(job, None, CoordinatorOptions(status_interval_s=0.02)) as running:
        assert running.wait(PATIENCE_S).ending is Ending.FINISHED
    assert failed.is_set()
    assert table.all() == list(range(ROWS))
