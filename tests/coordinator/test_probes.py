"""Probes: a process is alive unless its coordinator is stuck, and ready once its job runs."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.coordinator.metrics import MetricsServer
from penstock.coordinator.probes import SILENT_MAX_S, not_alive, not_ready
from penstock.schemas.status import ENDED, JobStatus
from tests.dashboard.statuses import status

NOW_MS = 10_000_000.0
LONG_AGO = int(NOW_MS - 1000 * SILENT_MAX_S - 1)


def at(state: str, at_ms: float = NOW_MS) -> JobStatus:
    return replace(status(), state=state, at_ms=int(at_ms))


@pytest.mark.parametrize("state", ["starting", "running", "failing-over"])
def test_a_coordinator_that_takes_its_turns_is_alive_in_each_state_and_one_that_is_stuck_is_not(state: str) -> None:
    assert not_alive(at(state), NOW_MS) is None
    assert "has done nothing for 120 s" in str(not_alive(at(state, LONG_AGO), NOW_MS))


def test_a_process_without_a_coordinator_or_with_an_ended_job_is_alive() -> None:
    assert not_alive(None, NOW_MS) is None
    assert not_alive(at(ENDED[0], LONG_AGO), NOW_MS) is None


def test_ready_is_who_runs_the_job_or_stands_by() -> None:
    assert not_ready(at("running"), NOW_MS, stands_by=False) is None
    assert not_ready(None, NOW_MS, stands_by=True) is None
    assert "not started" in str(not_ready(None, NOW_MS, stands_by=False))
    assert "is starting" in str(not_ready(at("starting"), NOW_MS, stands_by=True))
    assert "done nothing" in str(not_ready(at("running", LONG_AGO), NOW_MS, stands_by=False))


@pytest.fixture
def stuck_server() -> Iterator[MetricsServer]:
    server = MetricsServer(lambda: at("running", 0), 0)
    yield server
    server.close()


def test_the_metrics_port_answers_probes(stuck_server: MetricsServer) -> None:
    for path in ("livez", "readyz"):
        with pytest.raises(urllib.error.HTTPError, match="503") as raised:
            urllib.request.urlopen(f"http://127.0.0.1:{stuck_server.port}/{path}", timeout=10)
        with raised.value as answer:
            assert b"has done nothing for" in answer.read()
    with urllib.request.urlopen(f"http://127.0.0.1:{stuck_server.port}/metrics", timeout=10) as answer:
        assert b"penstock_epoch" in answer.read()


def test_a_standby_answers_that_it_is_ready() -> None:
    server = MetricsServer(lambda: None, 0, stands_by=True)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz", timeout=10) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
    finally:
        server.close()
