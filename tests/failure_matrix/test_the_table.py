"""The table of section 11 names what shows each row, and what it names is there."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from tests.simulation.configs import CONFIGS

ROOT = Path(__file__).parents[2]


def rows() -> list[tuple[str, str]]:
    """Each row's fault, and what shows it."""
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = text.split("## 11. Failure matrix")[1]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [(fault, shown) for fault, _, shown in cells]


ROWS = rows()


@pytest.mark.parametrize(("fault", "shown"), ROWS, ids=[fault[:50] for fault, _ in ROWS])
def test_every_row_of_the_failure_matrix_names_tests_that_exist(fault: str, shown: str) -> None:
    named = re.findall(r"`([^`]+)`", shown)
    files = [name for name in named if "/" in name]
    for name in files:
        assert (ROOT / "tests" / f"{name}.py").exists(), name
    for name in set(named) - set(files):
        assert fnmatch.filter(CONFIGS, name), f"no simulated configuration is called {name}"
    if fault.endswith("*"):
        assert any(real in name for name in files for real in ("failure_matrix/", "spark_integration/")), shown
