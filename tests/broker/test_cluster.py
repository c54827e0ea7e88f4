"""A cluster of brokers; what it survives is in tests/three_brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker import EmbeddedCluster


def test_fewer_than_three_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use 3 or more"):
        EmbeddedCluster(tmp_path, 2)
