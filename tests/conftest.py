"""What tests of several packages share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.broker import EmbeddedBroker
from tests.auditing import AUDITOR, damaged, local_jobs
from tests.soak.summary import write_soak_summary


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for the whole session. Tests that kill, pause or restart a broker use one of their own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka") / "data") as broker:
        AUDITOR.bootstrap = broker.bootstrap
        yield broker
        AUDITOR.bootstrap = None


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long each part of the suite took, and what the soak tests came to where they are repeated."""
    write_soak_summary(terminalreporter)
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in (r for reports in terminalreporter.stats.values() for r in reports):
        if isinstance(report, pytest.TestReport):
            part = "/".join(report.nodeid.partition("::")[0].split("/")[:2])
            seconds[part] += report.duration
            tests[part] += report.when == "call"
    if len(seconds) > 1:
        terminalreporter.section("how long each part took")
        for part, took in seconds.most_common():
            terminalreporter.write_line(f"{took:7.1f} s  {part} ({tests[part]} tests)")
