"""A job that is purged, forked, taken back or rescaled; a table that is cleaned up between a commit and its notice."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.job_client import JobClient
from penstock.coordinator.options import CoordinatorOptions
from penstock.recorded.fork import fork
from penstock.recorded.job import RecordedJob
from penstock.schemas.settings import Restore
from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .jobs import PATIENCE_S, SCHEMA, Gate, Place, rows_job
from .troubled import Held, troubled_sink

ROWS = 200


def clean_up(place: Place) -> None:
    """What maintenance does, with no regard for age: no snapshot and no log record of the commit is left."""
    if place.kind == "delta":
        from deltalake import DeltaTable, write_deltalake

        uri = str(place.folder / "table")
        write_deltalake(uri, pa.Table.from_pylist([{"n": -1, "letter": "x"}], schema=SCHEMA), mode="append")
        DeltaTable(uri).create_checkpoint()
        for log in sorted((place.folder / "table" / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
        return
    from pyiceberg.catalog import load_catalog

    properties = place.catalog
    table = load_catalog(properties.pop("name"), **properties).load_table("db.rows")
    table.append(pa.Table.from_pylist([{"n": -1, "letter": "x"}], schema=SCHEMA))
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    assert len(table.refresh().snapshots()) == 1


def numbers_by_the_library(place: Place) -> list[int]:
    """By deltalake or pyiceberg: the log's JSON is gone."""
    if place.kind == "delta":
        from deltalake import DeltaTable

        return sorted(DeltaTable(str(place.folder / "table")).to_pyarrow_table()["n"].to_pylist())
    return place.numbers()


def test_a_commit_whose_trace_has_been_cleaned_up_is_still_known_to_be_done(place: Place) -> None:
    gate, held = Gate(ROWS // 2), Held("after")
    with LocalJob(rows_job(troubled_sink(place.table(), held), rows=ROWS, gate=gate)) as running:
        assert held.reached.wait(PATIENCE_S)
        running.crash_coordinator()
        clean_up(place)
        running.replace_coordinator()
        gate.open()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        held.let_go.set()
    assert [n for n in numbers_by_the_library(place) if n >= 0] == list(range(ROWS))


def test_a_job_that_begins_anew_under_the_same_name_commits_all_of_its_own(place: Place) -> None:
    """It counts checkpoints from 1 again, and the table knows higher ones of its predecessor."""
    transport = MemoryTransport(MemoryBroker())
    with LocalJob(rows_job(place.table().sink(), rows=100), transport) as first:
        assert first.wait(PATIENCE_S).ending.value == "finished"
    JobClient(transport, "rows").purge()
    with LocalJob(rows_job(place.table().sink(), rows=100), transport) as second:
        assert second.wait(PATIENCE_S).ending.value == "finished"
    assert place.numbers() == sorted([*range(100), *range(100)])
    commits = place.read().commits
    assert len({writer for writer, _ in commits}) == 2
    assert len(commits) == len(set(commits))


@pytest.mark.parametrize("origin_commits", [True, False])
def test_a_fork_into_the_same_table_commits_what_its_checkpoint_named_only_if_the_origin_has_not(
    place: Place, origin_commits: bool
) -> None:
    """The origin dies within the commit of the checkpoint that the fork begins with."""
    transport, gate = MemoryTransport(MemoryBroker()), Gate(60)
    held = Held("after" if origin_commits else "lost answer, not done")
    job = rows_job(troubled_sink(place.table(), held), rows=ROWS, gate=gate, interval=3600.0)
    with LocalJob(job, transport) as running:
        assert gate.reached.wait(PATIENCE_S)
        assert running.client.savepoint(timeout_s=PATIENCE_S).accepted
        assert held.reached.wait(PATIENCE_S)
        running.crash_coordinator()
    recorded = RecordedJob(transport, "rows")
    fork(recorded, "sandbox", recorded.history.last_id, savepoint=True)
    with LocalJob(rows_job(place.table().sink(), rows=ROWS, name="sandbox"), transport) as sandbox:
        assert sandbox.wait(PATIENCE_S).ending.value == "finished"
    held.let_go.set()
    seen = place.check(list(range(ROWS)))
    assert len({writer for writer, _ in seen.commits}) == 2
    with LocalJob(job, transport) as origin:  # goes on too: what it committed, or the fork for it, is done
        origin.wait_for(lambda status: all(t.phase == "running" for o in status.operators for t in o.subtasks), 30.0)
        assert origin.client.stop(savepoint=True).accepted
        origin.wait(PATIENCE_S)
    place.check(list(range(ROWS)))


def test_a_fork_into_another_table_leaves_the_origins_files_to_the_origin(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    place, other = Place("delta", tmp_path), Place("delta", tmp_path / "other")
    transport, gate = MemoryTransport(MemoryBroker()), Gate(60)
    with LocalJob(rows_job(place.table().sink(), rows=ROWS, gate=gate), transport) as running:
        running.wait_for(lambda _: len(place.numbers()) == 60, PATIENCE_S)
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
    recorded = RecordedJob(transport, "rows")
    fork(recorded, "sandbox", recorded.history.last_id)
    with LocalJob(rows_job(other.table().sink(), rows=ROWS, name="sandbox"), transport) as sandbox:
        assert sandbox.wait(PATIENCE_S).ending.value == "finished"
    place.check(list(range(60)))
    other.check(list(range(60, ROWS)))


def test_a_job_that_changes_its_table_finishes_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    place, other = Place("delta", tmp_path), Place("delta", tmp_path / "other")
    transport, gate, held = MemoryTransport(MemoryBroker()), Gate(60), Held("lost answer, not done")
    job = rows_job(troubled_sink(place.table(), held), rows=ROWS, gate=gate)
    with LocalJob(job, transport) as running:
        assert held.reached.wait(PATIENCE_S)
        running.crash_coordinator()
    with LocalJob(rows_job(other.table().sink(), rows=ROWS), transport) as second:
        assert second.wait(PATIENCE_S).ending.value == "finished"
    held.let_go.set()
    old, new = place.numbers(), other.numbers()
    assert old
    assert sorted(old + new) == list(range(ROWS))


def test_a_job_taken_back_to_an_older_checkpoint_commits_its_rows_beside_those_that_were_given_up(place: Place) -> None:
    transport, gate = MemoryTransport(MemoryBroker()), Gate(60)
    with LocalJob(rows_job(place.table().sink(), rows=ROWS, gate=gate, interval=3600.0), transport) as running:
        assert gate.reached.wait(PATIENCE_S)
        assert running.client.savepoint(timeout_s=PATIENCE_S).accepted
        older = JobClient(transport, "rows").history().last_id
        assert running.client.savepoint(timeout_s=PATIENCE_S).accepted
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
    before = place.read()
    options = CoordinatorOptions(restore=Restore.CHECKPOINT, restore_checkpoint=older)
    with LocalJob(rows_job(place.table().sink(), rows=ROWS), transport, options) as second:
        assert second.wait(PATIENCE_S).ending.value == "finished"
    seen = place.read()
    (_writer,) = {writer for writer, _ in seen.commits}
    assert seen.commits[: len(before.commits)] == before.commits
    assert min(n for _, n in seen.commits[len(before.commits) :]) > max((n for _, n in before.commits), default=0)
    assert {row["n"] for row in seen.rows} == set(range(ROWS))


def test_fewer_writers_go_on_with_what_the_others_had_written(place: Place) -> None:
    transport, gate, held = MemoryTransport(MemoryBroker()), Gate(60), Held("lost answer, not done")
    job = rows_job(troubled_sink(place.table(), held), rows=ROWS, gate=gate, writers=3)
    with LocalJob(job, transport) as running:
        assert held.reached.wait(PATIENCE_S)
        running.crash_coordinator()
    with LocalJob(rows_job(place.table().sink(), rows=ROWS, writers=1), transport) as second:
        assert second.wait(PATIENCE_S).ending.value == "finished"
    held.let_go.set()
    place.check(list(range(ROWS)))


def test_files_that_a_clean_up_took_while_the_job_was_down_are_named(tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    transport, held = MemoryTransport(MemoryBroker()), Held("lost answer, not done")
    with LocalJob(rows_job(troubled_sink(place.table(), held), gate=Gate(60)), transport) as running:
        assert held.reached.wait(PATIENCE_S)
        running.crash_coordinator()
    from deltalake import DeltaTable

    table = DeltaTable(str(tmp_path / "table"))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    with LocalJob(rows_job(place.table().sink(), restarts=1), transport) as second:
        outcome = second.wait(PATIENCE_S)
    held.let_go.set()
    assert outcome.ending.value == "failed"
    assert "are not there any more" in outcome.cause and "VACUUM" in outcome.cause
