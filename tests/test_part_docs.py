"""The snippets of the pages on ready-made parts run as they stand."""

from __future__ import annotations

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


class Collect(penstock.Subtask):
    def open(self, context: penstock.Context) -> None:
        self.seen: list[Any] = []

    def process(self, record: Any, input: str) -> None:
        self.seen.append(record)

    def end_inputs(self) -> None:
        COLLECTED.extend(self.seen)


COLLECTED: list[Any] = []


def test_the_page_on_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    page = run_page("sources.md", monkeypatch)
    assert set(page["job"].operators) == {"read", "tables", "in"}
    job = penstock.Job("tables", checkpoint=penstock.CheckpointSettings(interval=0.05))
    read = job.operator("tables", **page["tables"].read_by(page["ReadTable"]), parallelism=2)
    job.operator("collect", subtask=Collect, parallelism=1, inputs=[read.rebalance()])
    COLLECTED.clear()
    with LocalJob(job) as running:
        assert running.wait(30).ending.value == "finished"
    assert sorted(COLLECTED) == [f"{table} {number}" for table in ("customers", "orders") for number in range(3)]


def test_the_page_on_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    job, totals = upstream()
    page = run_page("tables.md", monkeypatch, job=job, totals=totals)
    assert page["job"].operators["out"].parallelism == 8


def test_the_page_on_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    job, records = upstream()
    page = run_page("rules.md", monkeypatch, job=job, records=records)
    assert page["job"].operators["score"].parallelism == 8
