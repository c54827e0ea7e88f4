"""The example that reads files, with rows of its own and with a folder's, whoever dies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.testing import LocalJob
from tests.examples.test_examples import ran


@pytest.mark.parametrize("crash", [None, "read", "count"])
def test_read_files_counts_every_row_once_whoever_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], crash: str | None
) -> None:
    for number in range(20):
        (folder := tmp_path / f"day={number % 3}").mkdir(exist_ok=True)
        rows = "".join(f"C{(number + i) % 4},{i}\n" for i in range(100))
        (folder / f"{number}.csv").write_text("carrier,delay\n" + rows)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "read_files", raising=False)

    def strike(running: LocalJob) -> None:
        if crash is not None:
            running.crash_subtask(crash, 0)

    assert {f"500 rows of C{n}" for n in range(4)} == set(ran("read_files", capsys, strike))


def test_read_files_makes_rows_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("FOLDER", raising=False)
    monkeypatch.delitem(sys.modules, "read_files", raising=False)
    assert set(ran("read_files", capsys)) == {f"150 rows of {carrier}" for carrier in ("AA", "B6", "DL", "UA")}
