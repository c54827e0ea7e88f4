"""Both transports under faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker import EmbeddedBroker
from penstock.testing import Faults
from penstock.transport import MemoryBroker, MemoryTransport, Transport
from penstock.transport.kafka import KafkaTransport


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def plain(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """A transport without faults."""
    made: Transport
    if request.param == "memory":
        made = MemoryTransport(MemoryBroker())
    else:
        broker: EmbeddedBroker = request.getfixturevalue("kafka_broker")
        made = KafkaTransport(broker.bootstrap)
    yield made
    made.close()


@pytest.fixture
def faults() -> Iterator[Faults]:
    made = Faults()
    yield made
    made.clear()
