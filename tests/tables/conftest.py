from __future__ import annotations

from pathlib import Path

import pytest

from .jobs import Place


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)
