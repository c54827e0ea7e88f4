"""The page about sinks says what works: its classes are run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import penstock
from penstock.sinks import FileSink

from .driving import context, opened, records

PAGE = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(words: str, **names: Any) -> dict[str, Any]:
    (block,) = [block for block in BLOCKS if words in block]
    exec(block, names)
    return names


def test_the_job_of_the_page_makes_sinks() -> None:
    operators: dict[str, Any] = {}
    job = SimpleNamespace(operator=lambda name, **settings: operators.update({name: settings}))
    run("job.operator(", job=job, totals=SimpleNamespace(rebalance=lambda: "an input"))
    assert isinstance(operators["out"]["subtask"](), FileSink)


def test_the_subclasses_of_the_page_write_what_it_says(tmp_path: Path) -> None:
    delays = run("class Delays", FileSink=FileSink)["Delays"]
    sink = opened(tmp_path, sink=delays(tmp_path))
    sink.process(SimpleNamespace(carrier="UA", minutes=7), "totals")
    sink.snapshot_state(1)
    sink.notify_checkpoint_complete(1)
    assert records(tmp_path) == [{"carrier": "UA", "delay": 7}]
    reads = run("class ReadSplit", FileSink=FileSink, rows_of=range)["ReadSplit"]
    sink = opened(tmp_path / "splits", sink=reads(tmp_path / "splits"))
    sink.handle_operator_event(3)
    sink.snapshot_state(1)
    sink.notify_checkpoint_complete(1)
    assert records(tmp_path / "splits") == [0, 1, 2]


def test_the_rescale_function_of_the_page_deals_both_parts_of_a_state(tmp_path: Path) -> None:
    rescale = run("def rescale", FileSink=FileSink)["rescale"]
    sink = opened(tmp_path)
    sink.process(1, "totals")
    state = {"splits": [4, 5, 6, 7], "sink": sink.snapshot_state(1).decode()}
    dealt = rescale([None, state], 3)
    assert [each["splits"] for each in dealt] == [[4, 7], [5], [6]]
    for subtask, each in enumerate(dealt):
        opened(tmp_path, epoch=2, subtask=subtask).restore_state(2, each["sink"])
    assert records(tmp_path) == [1]


class Store:
    """Takes data under a name, and shows it later."""

    def __init__(self) -> None:
        self.staged: dict[str, list[int]] = {}
        self.published: set[str] = set()

    def stage(self, name: str, rows: list[int]) -> None:
        assert name not in self.staged
        self.staged[name] = rows

    def publish(self, name: str) -> None:
        assert name in self.staged
        self.published.add(name)

    @property
    def rows(self) -> list[int]:
        return sorted(row for name in self.published for row in self.staged[name])


def test_the_two_phase_commit_of_the_page_keeps_its_promise() -> None:
    store = Store()
    staged = run("class Staged", penstock=penstock, store=store)["Staged"]

    def attempt(number: int, state: Any = None) -> Any:
        made = staged()
        made.open(context(number))
        if state is not None:
            made.restore_state(7, json.loads(json.dumps(state)))
        return made

    first = attempt(1)
    for n in (5, 6, 7):
        first.process(n, "totals")
        state = first.snapshot_state(n)
    first.notify_checkpoint_complete(5)
    assert store.rows == [5]
    first.process(8, "totals")
    first.snapshot_state(8)
    second = attempt(2, state)
    assert store.rows == [5, 6, 7]
    second.process(8, "totals")
    second.snapshot_state(9)
    first.notify_checkpoint_complete(7)
    second.notify_checkpoint_complete(9)
    assert store.rows == [5, 6, 7, 8]
