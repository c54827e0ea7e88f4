"""The demo's job in memory: exact whatever fails, and visibly not exact where a fault is put into the code."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.demo.faults import Fault, Injector
from penstock.cli.demo.inputs import Question, question, totals_of
from penstock.cli.demo.job import TOTALS, Totals, demo_job
from penstock.cli.demo.report import Result, read_table
from penstock.schemas.errors import JobError
from penstock.testing import LocalJob

FILES, ROWS = 6, 500
PACE_S = 0.001


@pytest.fixture
def asked(tmp_path: Path) -> Question:
    folder = tmp_path / "input"
    folder.mkdir()
    for file in range(FILES):
        rows = "".join(f"g{n % 7},{Decimal(n) / 100 if n % 50 else 'NA'}\n" for n in range(ROWS))
        (folder / f"{file}.csv").write_text("g,v\n" + rows)
    return question(tmp_path, folder, "g", "v")


def ran(asked: Question, folder: Path, faults: tuple[Fault, ...] = (), totals: type[Totals] = Totals) -> Result:
    """Return what is in the table, after every fault has come and been survived."""
    job = demo_job("demo", asked, folder, subtasks=2, pace_s=PACE_S if faults else 0.0, totals=totals)
    with LocalJob(job) as running:

        def ask(request: Any, timeout_s: float) -> Any:
            reply = running.client.request(TOTALS, json.dumps(request).encode(), timeout_s)
            if not reply.accepted:
                raise JobError(reply.outcome)
            return json.loads(reply.payload)

        injector = Injector(ask, FILES * ROWS, seed=1, say=print, faults=faults).start()
        assert running.wait(120).ending.value == "finished"
        injector.stop()
    assert dict(injector.injected) == {fault.value: 1 for fault in faults}
    return read_table(folder / "table", asked)


def test_without_faults_the_result_is_exact(asked: Question, tmp_path: Path) -> None:
    result = ran(asked, tmp_path)
    assert result.totals == totals_of(asked)
    assert result.commits >= 1


def test_with_faults_the_result_is_exact(asked: Question, tmp_path: Path) -> None:
    assert ran(asked, tmp_path, (Fault.RAISE, Fault.ROLL_BACK)).totals == totals_of(asked)


class EmitsTwice(Totals):
    def _emit(self) -> None:
        sums = dict(self._sums)
        super()._emit()
        self._sums.update(dict(list(sums.items())[:1]))
        super()._emit()


class ForgetsARow(Totals):
    def process(self, record: Any, input: str) -> None:
        if record["v"] != "1.23":
            super().process(record, input)


@pytest.mark.parametrize("totals", [EmitsTwice, ForgetsARow])
def test_a_row_lost_or_doubled_shows_in_the_table(asked: Question, tmp_path: Path, totals: type[Totals]) -> None:
    assert ran(asked, tmp_path, totals=totals).totals != totals_of(asked)
