"""The contract suite of transports, over one that could go wrong: somebody else's faults concern nobody here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import Faults, FaultyTransport
from penstock.transport import Transport
from tests.transport.conftest import append_all, make_topic, partition, read_records  # noqa: F401
from tests.transport.test_append_and_read import *  # noqa: F403
from tests.transport.test_fenced_log import *  # noqa: F403


@pytest.fixture
def transport(plain: Transport, faults: Faults) -> Iterator[FaultyTransport]:
    faults.refuse(process="somebody else", times=None)
    faults.lag(process="somebody else", times=None)
    with faults.broker_away("somebody else"):
        yield FaultyTransport(plain, faults)
