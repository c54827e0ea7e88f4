"""The snippets of the pages on ready-made parts run as they stand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock.testing import LocalJob

DOCS = Path(__file__).parents[1] / "docs"


def run_page(name: str, monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[str, Any]:
    module = ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "page", module)
    vars(module).update(given)
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL):
        exec(block, vars(module))
    return vars(module)


def upstream() -> tuple[penstock.Job, penstock.Operator]:
    job = penstock.Job("page")
    return job, job.operator("upstream", subtask=penstock.Subtask, parallelism=1, output_codec="json")


def test_the_page_on_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    job, totals = upstream()
    page = run_page("tables.md", monkeypatch, job=job, totals=totals)
    assert page["job"].operators["out"].parallelism == 8


def test_the_page_on_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    job, records = upstream()
    page = run_page("rules.md", monkeypatch, job=job, records=records)
    assert page["job"].operators["score"].parallelism == 8
    alone = penstock.Job("rules", checkpoint=penstock.CheckpointSettings(interval=0.05))
    alone.operator("score", **penstock.Rules(page["Rule"]).operator(page["Score"]), parallelism=2)
    asked = re.findall(r"penstock request JOB score '(.*)'", (DOCS / "rules.md").read_text(encoding="utf-8"))
    with LocalJob(alone) as running:
        replies = [running.client.request("score", request.encode()) for request in asked]
    assert [reply.accepted for reply in replies] == [True] * 4
    told = json.loads(replies[1].payload)
    assert {"version", "digest", "origin", "durable_version", "subtasks"} <= set(told)
    assert told["rules"] == [{"field": "delay", "above": 60}]
    assert page["not_negative"]([page["Rule"]("delay", -1.0)])
