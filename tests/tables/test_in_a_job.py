"""A table's sink as an operator of a job: a finite one, failures, a stop and a later start."""

from __future__ import annotations

import pytest

from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .jobs import PATIENCE_S, Gate, Place, rows_job


def test_after_a_finite_job_the_table_holds_every_row_once(place: Place) -> None:
    with LocalJob(rows_job(place.table().sink())) as running:
        assert running.wait(PATIENCE_S).ending.value == "finished"
        running.check()
    seen = place.check(list(range(300)))
    assert len(seen.commits) > 1
    assert place.data_files() == set(seen.files)


@pytest.mark.parametrize("operator", ["numbers", "out"])
def test_a_subtask_that_dies_loses_and_doubles_no_row(place: Place, operator: str) -> None:
    gate = Gate(200)
    with LocalJob(rows_job(place.table().sink(), gate=gate)) as running:
        running.wait_for(lambda _: len(place.numbers()) > 50, PATIENCE_S)
        running.crash_subtask(operator, 0)
        running.wait_for(lambda status: status.failovers_region >= 1, PATIENCE_S)
        gate.open()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        running.check()
    place.check(list(range(300)))


def test_a_coordinator_that_is_replaced_loses_and_doubles_no_row(place: Place) -> None:
    gate = Gate(200)
    with LocalJob(rows_job(place.table().sink(), gate=gate)) as running:
        running.wait_for(lambda _: len(place.numbers()) > 50, PATIENCE_S)
        running.crash_coordinator()
        running.replace_coordinator()
        gate.open()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        running.check()
    place.check(list(range(300)))


def test_a_job_that_was_stopped_with_a_savepoint_has_committed_all_and_goes_on(place: Place) -> None:
    broker, gate = MemoryBroker(), Gate(150)
    job = rows_job(place.table().sink(), gate=gate)
    with LocalJob(job, MemoryTransport(broker)) as first:
        first.wait_for(lambda _: len(place.numbers()) == 150, PATIENCE_S)
        assert first.client.stop(savepoint=True).accepted
        first.wait(PATIENCE_S)
    place.check(list(range(150)))
    gate.open()
    wider = rows_job(place.table().sink(), writers=3)
    with LocalJob(wider, MemoryTransport(broker)) as second:
        assert second.wait(PATIENCE_S).ending.value == "finished"
    seen = place.check(list(range(300)))
    assert len({writer for writer, _ in seen.commits}) == 1
