"""The pages about data channels and batches run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import LocalJob

DOCS = Path(__file__).parents[2] / "docs"


def printed_by(page: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    with LocalJob(names["job"]) as running:
        assert running.wait(60).ending.value == "finished"
        running.check()
    return sorted(capsys.readouterr().out.splitlines())


def test_the_job_of_the_page_prints_the_sums_of_every_digit(capsys: pytest.CaptureFixture[str]) -> None:
    printed = printed_by("data-channels.md", capsys)
    assert printed == sorted(str({"digit": str(d), "total": sum(range(d, 1000, 10))}) for d in range(10))


def test_the_job_of_the_page_about_batches_prints_the_sum_of_the_squares(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_by("batches.md", capsys) == [str(sum(number * number for number in range(100_000)))]
