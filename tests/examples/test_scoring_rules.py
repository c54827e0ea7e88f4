"""The example whose rules change while it runs: by a request, and by a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock.testing import LocalJob
from tests.examples.test_examples import ran


@pytest.mark.parametrize("by", ["request", "file"])
def test_scoring_rules_works_by_the_new_rules_in_each_subtask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    monkeypatch.delitem(sys.modules, "scoring_rules", raising=False)
    monkeypatch.setenv("PAYMENTS", "150")
    file, new = tmp_path / "rules.json", [{"field": "amount", "above": -1}]
    monkeypatch.setenv("RULES", str(file))

    def change(running: LocalJob) -> None:
        running.wait_for(lambda status: status.operators[0].totals.running == 1, 30)
        if by == "file":
            file.write_text(json.dumps(new))
        else:
            assert running.client.request("score", json.dumps({"set": new}).encode()).accepted

    lines = ran("scoring_rules", capsys, change)
    for subtask in (0, 1):
        assert f"subtask {subtask} works by version 1: [Rule(field='amount', above=-1.0)]" in lines
        assert any(line.startswith(f"subtask {subtask} has marked") and "'1': " in line for line in lines)
