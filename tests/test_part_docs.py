"""The snippets of the pages on ready-made parts run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock

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
