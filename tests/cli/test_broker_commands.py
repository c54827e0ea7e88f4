"""`penstock broker`: the one that other terminals find."""

from __future__ import annotations

import pytest

from penstock.cli.exits import Exit

from .conftest import Cli


@pytest.mark.kafka
def test_a_broker_is_started_found_and_stopped(cli: Cli) -> None:
    assert cli("broker", "status").code == Exit.NO_BROKER
    assert cli("broker", "stop", "--json").json["stopped"] is False
    started = cli("broker", "start", "--json").json
    try:
        assert cli("broker", "start", "--json").json == started
        status = cli("broker", "status", "--json")
        assert (status.code, status.json["answers"], status.json["pid"]) == (0, True, started["pid"])
        assert cli("jobs", "--json").json == []  # without --broker it is this one
        other = cli("broker", "start", "--port", "1")
        assert other.code == Exit.NO_BROKER
        assert "runs already" in other.err
    finally:
        stopped = cli("broker", "stop")
    assert f"stopped the broker at {started['bootstrap']}" in stopped.out
    assert cli("broker", "status", "--json").json == {"running": False}
