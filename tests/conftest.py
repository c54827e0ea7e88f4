"""What tests of several packages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker import EmbeddedBroker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for the whole session. Tests that kill, pause or restart a broker use one of their own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka") / "data") as broker:
        yield broker
