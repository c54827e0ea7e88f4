"""Snippets of pages that have no tests of their own run as they stand; every page with snippets has a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport

ROOT = Path(__file__).parents[1]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_every_page_with_snippets_is_read_by_a_test() -> None:
    pages = [page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if blocks(str(page))]
    assert len(pages) > 15
    tests = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py")))
    assert [page.name for page in pages if f'"{page.name}"' not in tests and f"docs/{page.name}" not in tests] == []


class Once(penstock.Subtask):
    def poll(self) -> penstock.Finished:
        return penstock.Finished()


def test_the_page_of_the_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        def __init__(self, spark: object, job: penstock.Job, *, broker: str) -> None:
            self.job = job

        def wait(self) -> None:
            with LocalJob(self.job) as running:
                running.wait(60)
                ended.append(running.service.status().state)

    ended: list[str] = []
    monkeypatch.setattr(penstock.spark_integration, "run", Run, raising=False)
    (block,) = blocks("docs/package-index.md")
    exec(block, {"SplitAssigner": penstock.OperatorCoordinator, "ReadSplit": Once, "spark": None})
    assert ended == ["finished"]


def test_the_pages_on_retention_and_on_rescaling() -> None:
    names: dict[str, Any] = {"penstock": penstock, "Splits": penstock.OperatorCoordinator, "Reader": penstock.Subtask}
    for block in [*blocks("docs/retention.md"), *blocks("docs/rescaling.md")]:
        exec(block, names)
    job, halves = names["job"], names["halves"]
    job.operator("halves", subtask=penstock.Subtask, parallelism=2, state_codec="json", rescale=halves)
    assert job.settings.replay_retention == 3600
    assert halves([{"numbers": [1, 2, 3]}, None, {"numbers": [4]}], 2) == [{"numbers": [1, 3]}, {"numbers": [2, 4]}]


@pytest.mark.kafka
def test_the_page_on_audits(kafka_broker: Any) -> None:
    job = penstock.Job("flights", checkpoint=penstock.CheckpointSettings(interval=0.1))
    job.operator("reader", subtask=Once, parallelism=2)
    transport = KafkaTransport(kafka_broker.bootstrap)
    with LocalJob(job, transport) as running:
        running.wait(60)
    transport.close()
    (block,) = blocks("docs/audit.md")
    names: dict[str, Any] = {}
    exec(block.replace("broker:9092", kafka_broker.bootstrap), names)
    assert names["report"].checked
