"""The page about data channels runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import LocalJob

PAGE = (Path(__file__).parents[2] / "docs" / "data-channels.md").read_text(encoding="utf-8")


def test_the_job_of_the_page_prints_the_sums_of_every_digit(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    with LocalJob(names["job"]) as running:
        assert running.wait(60).ending.value == "finished"
        running.check()
    printed = sorted(capsys.readouterr().out.splitlines())
    assert printed == sorted(str({"digit": str(d), "total": sum(range(d, 1000, 10))}) for d in range(10))
