"""The page about sources says what works: its classes are run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec

import penstock
from penstock.sources import Files, SplitReader
from penstock.testing import LocalJob

from .driving import PATIENCE_S, empty_job

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(words: str) -> str:
    (found,) = [block for block in BLOCKS if words in block]
    return str(found)


class Totals(penstock.Subtask):
    pass


def test_the_job_of_the_page_reads_files() -> None:
    # The one thing that is not at hand is the store.
    names: dict[str, Any] = {"Totals": Totals}
    exec(block("files.read()").replace("s3://in", "memory://docs-in"), names)
    assert set(names["job"].operators) == {"read", "totals"}
    assert fsspec.filesystem("memory") is not None


def test_the_ranges_of_the_page_are_read_once_into_files(tmp_path: Path) -> None:
    job = empty_job("docs")
    text = block("def list_ranges").replace("1_000_000", "40").replace("* 1000", "* 10").replace("+ 1000", "+ 10")
    names: dict[str, Any] = {"job": SimpleNamespace(operator=lambda *given, **settings: None)}
    exec(text, names)
    exec(block("class Copy").replace("/data/out", str(tmp_path)), names)
    job.operator("copy", **names["ranges"].read_by(names["Copy"]), parallelism=3)
    with LocalJob(job) as running:
        running.wait_for(lambda status: status.state == "running", PATIENCE_S)
        running.crash_subtask("copy", 0)
        assert running.wait(PATIENCE_S).ending.value == "finished"
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["key"] for line in lines) == list(range(400))


def test_the_reader_of_lines_of_the_page_goes_on_at_a_position(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    names: dict[str, Any] = {"SplitReader": SplitReader}
    exec(block("class ReadLines"), names)
    reader = names["ReadLines"]()
    reader.source = files = Files(str(tmp_path))
    assert "coordinator" in files.read_by(names["ReadLines"])
    from penstock.sources.listing import Progress

    (found,) = files.walk(Progress())
    split, _ = files.cut(found.split)  # type: ignore[union-attr]
    read = list(reader.read(split, None))
    assert [line for _, line in read] == ["one\n", "two\n", "three\n"]
    assert [line for _, line in reader.read(split, read[1][0])] == ["three\n"]


def test_the_job_of_the_page_reads_kafka() -> None:
    names: dict[str, Any] = {"job": empty_job("docs"), "penstock": penstock}
    exec(block("sources.Kafka("), names)
    assert set(names["job"].operators) == {"in"}
