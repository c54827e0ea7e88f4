"""An engine, images, a network and a broker for the session; a run of the ledger job for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from testcontainers.core.network import Network

from .engine import IMAGE_VARIABLE, KafkaInContainer, load_builder, require_engine
from .running import LedgerRun


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """The images by name; those that are not built yet are built, which takes minutes the first time."""
    require_engine()
    builder = load_builder()
    public = os.environ.get(IMAGE_VARIABLE)
    builder.build([name for name in builder.IMAGES if not (name == "kafka" and public)])
    return {**builder.IMAGES, **({"kafka": public} if public else {})}


@pytest.fixture(scope="session")
def network(images: dict[str, str]) -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture(scope="session")
def kafka(images: dict[str, str], network: Network) -> Iterator[KafkaInContainer]:
    """One broker for the session. Tests leave it running, at its address."""
    broker = KafkaInContainer(images["kafka"], network, "kafka")
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture
def start_run(kafka: KafkaInContainer, images: dict[str, str], tmp_path: Path) -> Iterator[Callable[[], LedgerRun]]:
    """Starts a coordinator and a Spark, and returns when subtasks have begun to answer."""
    with ExitStack() as stack:

        def start() -> LedgerRun:
            name = f"ledger-{next(_numbers)}"
            run = stack.enter_context(LedgerRun(kafka, images["coordinator"], name, tmp_path))
            run.start_driver()
            run.start_coordinator()
            run.wait_for_status(lambda status: status.last_completed >= 0, "no checkpoint was completed")
            run.wait_until_answered(20)
            return run

        yield start


_numbers = itertools.count()
