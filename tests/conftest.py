"""What tests of several packages share."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from tests.auditing import AUDITOR, damaged, local_jobs
from tests.parts import PROCESSOR_TIME, ByFile, slowest_first, write_parts
from tests.soak.summary import write_soak_summary


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for the whole session. Tests that kill, pause or restart a broker use one of their own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka") / "data") as broker:
        AUDITOR.bootstrap = broker.bootstrap
        yield broker
        AUDITOR.bootstrap = None
        with PROCESSOR_TIME.server():
            broker.stop()


@pytest.fixture(autouse=True)
def logs_are_healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did to its jobs, their logs are not damaged; but where it says ``damages_logs``."""
    on_purpose = request.node.get_closest_marker("damages_logs") is not None
    on_kafka = any(request.node.get_closest_marker(name) for name in ("kafka", "spark"))
    with local_jobs() as ended:
        yield
    if on_purpose:
        if on_kafka:
            AUDITOR.pass_over()
        return
    found = damaged(ended)
    if on_kafka:
        found += [report for report in AUDITOR.changed() if not report.healthy]
    assert not found, "\n".join(map(str, found))


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order is slowest_first's


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers a core: over Kafka and on Spark tests mostly wait. Each may have a broker and a Spark of its own."""
    return min(2 * (os.cpu_count() or 1), 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if addresses := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"these ids hold an address, which differs between workers: {', '.join(addresses)}")
    slowest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.processor_s = PROCESSOR_TIME.lap()
    # A worker sends its reports as UTF-8, and what a test has logged may hold lone surrogates.
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


_SERVERS_S = pytest.StashKey[float]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    PROCESSOR_TIME.count_what_runs()
    if (told := getattr(session.config, "workeroutput", None)) is not None:
        told["servers_s"] = PROCESSOR_TIME.servers


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    stash = node.config.stash
    stash[_SERVERS_S] = stash.get(_SERVERS_S, 0.0) + getattr(node, "workeroutput", {}).get("servers_s", 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the soak tests' figures where they are repeated, and the time of each part of the suite."""
    write_soak_summary(terminalreporter)
    write_parts(terminalreporter, config.stash.get(_SERVERS_S, 0.0) + PROCESSOR_TIME.servers)
