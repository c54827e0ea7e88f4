"""Fixtures of the tests about jobs that share a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .secured import SecuredBroker, secured


@pytest.fixture(scope="session")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured(tmp_path_factory.mktemp("kafka-sasl-tls")) as broker:
        yield broker
