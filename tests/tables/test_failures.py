"""Whoever dies, and at whichever point of a commit: the table holds each row once."""

from __future__ import annotations

import threading

import pytest

from penstock.testing import LocalJob

from .jobs import PATIENCE_S, Gate, Place, rows_job
from .troubled import Held, troubled_sink

ROWS = 200


@pytest.mark.parametrize("zombie", ["wakes up before its successor commits", "wakes up when all is committed"])
@pytest.mark.parametrize("victim", ["coordinator", "subtask", "both"])
@pytest.mark.parametrize("point", Held.POINTS)
def test_a_process_that_dies_within_a_commit_loses_and_doubles_no_row(
    place: Place, point: str, victim: str, zombie: str
) -> None:
    """What the dead process still does reaches the table, at the worst moment for its successor."""
    gate, held = Gate(ROWS // 2), Held(point)
    with LocalJob(rows_job(troubled_sink(place.table(), held), rows=ROWS, gate=gate)) as running:
        assert held.reached.wait(PATIENCE_S)
        if victim in ("coordinator", "both"):
            running.crash_coordinator()
        if victim in ("subtask", "both"):
            running.crash_subtask("out", 0)
            running.crash_subtask("numbers", 1)
        if zombie == "wakes up before its successor commits" or victim == "subtask":
            held.let_go.set()
        if victim in ("coordinator", "both"):
            running.replace_coordinator()
        gate.open()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        held.let_go.set()
        running.check()
    place.check(list(range(ROWS)))


def test_a_commit_that_fails_until_its_timeout_rolls_the_coordinator_back_and_is_made_then(place: Place) -> None:
    away = threading.Event()
    away.set()

    def around(append, checkpoint_id):  # type: ignore[no-untyped-def]
        if away.is_set():
            raise ConnectionError("the store is away")
        append()

    sink = troubled_sink(place.table(commit_timeout=0.2), around)
    with LocalJob(rows_job(sink, rows=ROWS)) as running:
        running.wait_for(lambda status: status.failovers_global >= 2, PATIENCE_S)
        away.clear()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        running.check()
    place.check(list(range(ROWS)))


def test_a_job_whose_table_is_away_for_good_fails_and_names_it(place: Place) -> None:
    def around(append, checkpoint_id):  # type: ignore[no-untyped-def]
        raise ConnectionError("the store is away for good")

    job = rows_job(troubled_sink(place.table(commit_timeout=0.05), around), rows=ROWS, restarts=2)
    with LocalJob(job) as running:
        outcome = running.wait(PATIENCE_S)
        assert outcome.ending.value == "failed"
        assert "the store is away for good" in outcome.cause


def test_files_of_an_attempt_that_was_undone_are_deleted(place: Place) -> None:
    """They were announced after the checkpoint that counts: no state names them, and no commit will."""
    gate = Gate(ROWS // 2)
    # Each row closes a file, so that files are announced between checkpoints.
    table = place.table(target_file_size=1, buffer_bytes=1)
    table_rows = rows_job(table.sink(), rows=ROWS, gate=gate, interval=0.2)
    with LocalJob(table_rows) as running:
        running.wait_for(lambda _: len(place.numbers()) > 0, PATIENCE_S)
        running.crash_subtask("numbers", 0)
        running.wait_for(lambda status: status.failovers_region >= 1, PATIENCE_S)
        gate.open()
        assert running.wait(PATIENCE_S).ending.value == "finished"
    seen = place.check(list(range(ROWS)))
    assert place.data_files() == set(seen.files)


def test_checkpoints_that_complete_during_a_slow_commit_are_one_commit(place: Place) -> None:
    """So a table that is slower than the checkpoints does not fall behind for ever."""
    held, gate = Held("before"), Gate(ROWS // 2)
    with LocalJob(rows_job(troubled_sink(place.table(), held), rows=ROWS, gate=gate, pause_s=0.02)) as running:
        assert held.reached.wait(PATIENCE_S)
        gate.open()
        enough = held.checkpoint_id + 5
        running.wait_for(lambda status: status.last_completed >= enough, PATIENCE_S)
        held.let_go.set()
        assert running.wait(PATIENCE_S).ending.value == "finished"
    seen = place.check(list(range(ROWS)))
    assert seen.commits[0][1] == held.checkpoint_id and seen.commits[1][1] >= enough
