"""A file sink as the subtasks of a job: a finite one, failures in either phase, a stop and a later start."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.sinks import FileSink
from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .driving import records

PATIENCE_S = 180.0
RECORDS = 300


class Numbers(FileSink):
    """Reads its share of the numbers below RECORDS, in its own steps, and writes them."""

    position = 0
    gate: Failures | None = None
    """Half of the records wait for that failure."""

    def open(self, context: penstock.Context) -> None:
        super().open(context)
        self.context = context

    @property
    def ended(self) -> bool:
        return self.position * self.context.parallelism >= RECORDS

    def poll(self) -> penstock.Progress | penstock.Idle | penstock.Finished:
        if self.ended:
            return penstock.Finished() if self.settled else penstock.Idle(0.01)
        if self.position == 50 and self.gate is not None and not self.gate.happened:
            return penstock.Idle(0.01)
        self.write(self.position * self.context.parallelism + self.context.subtask)
        self.position += 1
        return penstock.Progress() if self.position % 10 else penstock.Idle(0.001)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {"position": self.position, "sink": super().snapshot_state(checkpoint_id).decode()}

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.position = state["position"]
        super().restore_state(checkpoint_id, state["sink"])


class Failures:
    """Makes one attempt fail where a test says, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.happened = False

    def happen(self) -> None:
        with self._lock:
            if not self.happened:
                self.happened = True
                raise OSError("the disk is away")


def empty_job() -> penstock.Job:
    return penstock.Job(
        "numbers",
        checkpoint=penstock.CheckpointSettings(interval=0.02, timeout=10.0, tolerable_failures=1000),
        heartbeat_interval=0.1,
        heartbeat_timeout=10.0,
        start_timeout=30.0,
    )


def numbers_job(subtask: Callable[[], FileSink]) -> penstock.Job:
    job = empty_job()
    job.operator("out", subtask=subtask, parallelism=3, state_codec="json")
    return job


class Emits(penstock.Subtask):
    """Reads its share of the numbers below RECORDS, and emits them; half of them wait for a failure."""

    position = 0

    def __init__(self, gate: Failures) -> None:
        self.gate = gate

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def poll(self) -> penstock.Progress | penstock.Idle | penstock.Finished:
        if self.position * self.context.parallelism >= RECORDS:
            return penstock.Finished()
        if self.position == 50 and not self.gate.happened:
            return penstock.Idle(0.01)
        self.context.emit(self.position * self.context.parallelism + self.context.subtask)
        self.position += 1
        return penstock.Progress() if self.position % 10 else penstock.Idle(0.02)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.position

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.position = state


def test_what_other_operators_emit_is_visible_once_when_the_job_has_ended(tmp_path: Path) -> None:
    """One of its attempts fails between the two phases, while records come."""
    failures = Failures()

    class Failing(FileSink):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            if not self.settled:  # half of the records are still to come
                failures.happen()
            super().notify_checkpoint_complete(checkpoint_id)

    job = empty_job()
    reader = job.operator(
        "reader", subtask=functools.partial(Emits, failures), parallelism=3, state_codec="json", output_codec="json"
    )
    job.operator("out", subtask=functools.partial(Failing, tmp_path), parallelism=2, inputs=[reader.rebalance()])
    with LocalJob(job) as running:
        running.wait(PATIENCE_S)
    assert failures.happened
    assert records(tmp_path) == list(range(RECORDS))


def test_after_a_finite_job_every_record_is_visible_once(tmp_path: Path) -> None:
    with LocalJob(numbers_job(functools.partial(Numbers, tmp_path))) as running:
        running.wait(PATIENCE_S)
    assert records(tmp_path) == list(range(RECORDS))


@pytest.mark.parametrize("when", ["while records come", "after the last record"])
def test_an_attempt_that_fails_in_its_second_phase_leaves_the_commit_to_its_successor(
    tmp_path: Path, when: str
) -> None:
    """Also after its last record: a subtask that waits until it is settled has not finished by then."""
    failures, at_the_end = Failures(), when == "after the last record"

    class Failing(Numbers):
        gate = None if at_the_end else failures

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            if not self.settled and self.ended is at_the_end:
                failures.happen()
            super().notify_checkpoint_complete(checkpoint_id)

    with LocalJob(numbers_job(functools.partial(Failing, tmp_path))) as running:
        running.wait(PATIENCE_S)
    assert failures.happened
    assert records(tmp_path) == list(range(RECORDS))


def test_an_attempt_that_fails_in_its_first_phase_shows_nothing_of_it(tmp_path: Path) -> None:
    failures = Failures()

    class Failing(Numbers):
        def snapshot_state(self, checkpoint_id: int) -> Any:
            state = super().snapshot_state(checkpoint_id)
            if self.position > 20:
                failures.happen()
            return state

    with LocalJob(numbers_job(functools.partial(Failing, tmp_path))) as running:
        running.wait(PATIENCE_S)
    assert failures.happened
    assert records(tmp_path) == list(range(RECORDS))


def test_a_job_that_was_stopped_with_a_savepoint_goes_on_where_its_files_end(tmp_path: Path) -> None:
    broker, halted = MemoryBroker(), threading.Event()

    class Halting(Numbers):
        def poll(self) -> penstock.Progress | penstock.Idle | penstock.Finished:
            return penstock.Idle(0.01) if self.position == 50 and not halted.is_set() else super().poll()

    job = numbers_job(functools.partial(Halting, tmp_path))
    with LocalJob(job, MemoryTransport(broker)) as first:
        first.wait_for(lambda _: len(records(tmp_path)) == 150, PATIENCE_S)
        assert first.client.stop(savepoint=True).accepted
        first.wait(PATIENCE_S)
    assert records(tmp_path) == list(range(150))
    halted.set()
    with LocalJob(job, MemoryTransport(broker)) as second:
        second.wait(PATIENCE_S)
    assert records(tmp_path) == list(range(RECORDS))
