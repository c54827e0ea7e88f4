"""A job beside another process that appends to its table, compacts it and cleans it up."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import Faults, LocalJob
from tests.rounds import ROUNDS_VARIABLE, rounds

from .jobs import OTHERS, PATIENCE_S, SENDERS, Gate, Place, rows_job
from .troubled import RandomTrouble, troubled_sink

ROOT = Path(__file__).parents[2]
ENDLESS = OTHERS
"""Rows of a job that is stopped."""


class SecondWriter:
    """The process, from its start until it has said how much it appended."""

    def __init__(self, place: Place) -> None:
        self._stop = place.folder / "stop"
        command = [sys.executable, "-m", "tests.tables.second_writer", place.kind, str(place.folder), str(self._stop)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def end(self) -> list[int]:
        """The numbers that it has appended."""
        self._stop.touch()
        try:
            out, err = self._process.communicate(timeout=PATIENCE_S)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, err[-3000:]
        return [OTHERS + n for n in range(json.loads(out)["appended"])]


def beside(place: Place, checkpoints: int, interval: float) -> tuple[list[int], int, list[int]]:
    """Run a job beside a second writer until so many checkpoints have completed; stop it with a savepoint.

    Return the numbers that the job had emitted, how many checkpoints have completed, and what the other appended.
    """
    gate = Gate(1)
    job = rows_job(place.table().sink(), rows=ENDLESS, gate=gate, interval=interval, pause_s=0.01)
    with LocalJob(job) as running:
        running.wait_for(lambda _: place.is_there(), PATIENCE_S)
        other = SecondWriter(place)
        try:
            running.wait_for(lambda _: any(n >= OTHERS for n in place.numbers()), PATIENCE_S)
            gate.open()
            enough = running.client.history().last_id + checkpoints
            running.wait_for(lambda status: status.last_completed >= enough, PATIENCE_S + checkpoints)
            assert running.client.stop(savepoint=True).accepted
            running.wait(PATIENCE_S)
        finally:
            others = other.end()
        running.check()
        history = running.client.history()
        assert history.last is not None
        emitted = [
            n * SENDERS + who.index
            for who, part in history.last.subtasks.items()
            if who.operator == "numbers" and part.state is not None and part.state.inline is not None
            for n in range(json.loads(part.state.inline))
        ]
    return sorted(emitted), history.last_id, others


def test_beside_a_writer_that_appends_and_compacts_no_row_is_lost_or_doubled(place: Place) -> None:
    emitted, _, others = beside(place, 20, 0.05)
    assert emitted and others
    place.check([*emitted, *others])


@pytest.mark.soak
@pytest.mark.more
def test_of_500_checkpoints_beside_a_second_writer_none_is_lost_and_none_doubled(place: Place) -> None:
    """Iceberg has all 500 under ``make soak`` alone: that takes minutes, most of them in pyiceberg."""
    count = 500 if place.kind == "delta" or ROUNDS_VARIABLE in os.environ else 100
    emitted, completed, others = beside(place, count, 0.02)
    seen = place.check([*emitted, *others])
    assert completed >= count
    print(
        f"{place.kind}: {completed} checkpoints, {len(seen.commits)} commits in the log, {len(emitted)} rows,"
        f" {len(others)} appends of the other"
    )


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_whatever_happens_to_processes_logs_and_commits_the_table_holds_each_row_once(
    place: Place, round_: int
) -> None:
    rows, dice = 240, random.Random(round_)
    gate, trouble, faults = Gate(rows // 2), RandomTrouble(round_, 0.4), Faults(round_)
    sink = troubled_sink(place.table(target_file_size=dice.choice([1, 600, 1 << 20]), buffer_bytes=400), trouble)
    with LocalJob(rows_job(sink, rows=rows, gate=gate), faults=faults) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        chaos = faults.at_random(delay=0.03, lag=0.03, refuse=0.005, unknown_outcome=0.005, seconds=0.02)
        for _ in range(4):
            victim = dice.choice(["out", "out", "numbers", "coordinator", "nobody"])
            if victim == "coordinator":
                running.crash_coordinator()
                running.replace_coordinator()
            elif victim != "nobody":
                running.crash_subtask(victim, dice.randrange(2))
            done = running.wait_for(lambda status: True, PATIENCE_S).checkpoints_completed
            running.wait_for(
                lambda status, done=done: status.checkpoints_completed != done or status.epoch > 1, PATIENCE_S
            )
        chaos.release()
        trouble.ended.set()
        gate.open()
        assert running.wait(PATIENCE_S).ending.value == "finished"
        running.check()
    place.check(list(range(rows)))
