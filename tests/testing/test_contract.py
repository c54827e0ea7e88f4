"""The contract suite over a transport whose faults are armed for another process: they must change nothing here.

In memory alone: the wrapper knows no more of Kafka than the contract does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import Faults, FaultyTransport
from penstock.transport import MemoryBroker, MemoryTransport
from tests.transport.conftest import append_all, make_topic, partition, read_records  # noqa: F401
from tests.transport.test_append_and_read import *  # noqa: F403
from tests.transport.test_fenced_log import *  # noqa: F403


@pytest.fixture
def transport(faults: Faults) -> Iterator[FaultyTransport]:
    faults.refuse(process="somebody else", times=None)
    faults.lag(process="somebody else", times=None)
    with faults.broker_away("somebody else"):
        made = FaultyTransport(MemoryTransport(MemoryBroker()), faults)
        yield made
        made.close()
