"""docs/flink.md is the index of these scenarios: every rule stands there once, and the tests that it names exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "flink.md"
RULES = [f"R{n}" for n in range(1, 97)]
HOLES = [f"P{n}" for n in range(1, 8)]
SCENARIOS = [f"C{test}.{n}" for test, cases in ((1, 8), (2, 8), (3, 17), (6, 4)) for n in range(1, cases + 1)]
SHOWN = ("kept", "different", "closed")
"""What must be shown by a test; where something is not here there is nothing to show."""


@dataclass(frozen=True)
class Row:
    name: str
    status: str
    here: str
    tests: tuple[str, ...]


def rows_of(text: str) -> list[Row]:
    """The rows of every table whose first cell is the name of a rule, a hole or a scenario."""
    rows = []
    for line in text.splitlines():
        if (begin := re.match(r"\| ([RPC]\d+(?:\.\d+)?) \|", line)) is None:
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        assert len(cells) == 4, f"{begin[1]} has {len(cells)} cells"
        status = re.match(r"\*\*([a-z ]+)\*\*", cells[2])
        assert status is not None, f"{begin[1]} does not begin with what becomes of it: {cells[2]!r}"
        rows.append(Row(begin[1], status[1], cells[2], tuple(re.findall(r"`([^`]+)`", cells[3]))))
    return rows


def wrong_in(rows: list[Row]) -> list[str]:
    """What is missing, doubled or named in vain."""
    said = Counter(row.name for row in rows)
    wrong = [
        f"{name} stands there {said[name]} times" for name in (*RULES, *HOLES, *SCENARIOS, "C5") if said[name] != 1
    ]
    wrong += [f"{name} is no rule" for name in said if name.startswith("R") and name not in RULES]
    for row in rows:
        if row.status not in (*SHOWN, "not here"):
            wrong.append(f"{row.name} is {row.status!r}")
        if row.status in SHOWN and not row.tests:
            wrong.append(f"{row.name} is {row.status} and names no test")
        if row.status == "different" and not re.search(r"§\d", row.here) and row.name in RULES:
            wrong.append(f"{row.name} is different and cites no section")
        wrong += [f"{row.name} names {test}, which does not exist" for test in row.tests if not exists(test)]
    return wrong


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return bool(re.fullmatch(r"tests/[\w/]+\.py", path)) and name in names_in(ROOT / path)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the test functions in a file, which is only parsed."""
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


def test_every_rule_has_one_row_and_every_test_it_names_exists() -> None:
    assert wrong_in(rows_of(DOCUMENT.read_text(encoding="utf-8"))) == []


def test_every_scenario_that_stands_here_is_named_there() -> None:
    named = {test for row in rows_of(DOCUMENT.read_text(encoding="utf-8")) for test in row.tests}
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    here = {f"{path.relative_to(ROOT).as_posix()}::{name}" for path in files for name in names_in(path)}
    assert len(files) > 3
    assert sorted(here - named) == []


GOOD = "`tests/scenarios/test_index.py::test_what_is_wrong_is_found`"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (f"| R1 | a | **kept** | {GOOD} |\n| R1 | b | **kept** | {GOOD} |", "R1 stands there 2 times"),
        (f"| R97 | a | **kept** | {GOOD} |", "R97 is no rule"),
        (f"| R1 | a | **different**. Because. | {GOOD} |", "R1 is different and cites no section"),
        ("| R1 | a | **kept** |  |", "R1 is kept and names no test"),
        (f"| R1 | a | **mended** | {GOOD} |", "R1 is 'mended'"),
        ("| R1 | a | **kept** | `tests/scenarios/test_index.py::test_x` |", "test_x, which does not exist"),
        ("| R1 | a | **kept** | `tests/nowhere.py::test_x` |", "tests/nowhere.py::test_x, which does not exist"),
        ("| R1 | a | **not here** |  |", "R2 stands there 0 times"),
    ],
)
def test_what_is_wrong_is_found(line: str, complaint: str) -> None:
    assert any(complaint in wrong for wrong in wrong_in(rows_of(line)))
