"""A broker that is away, and one that is killed and comes back: nobody is failed over (protocol, section 11)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from tests.rounds import rounds

from .conftest import MakeRig
from .rig import COORDINATOR, FIRST, SECOND

pytestmark = pytest.mark.kafka

Outage = Callable[[], AbstractContextManager[None]]

SHORT: dict[str, Any] = {
    "timing": {"heartbeat_interval": 0.2, "heartbeat_timeout": 2.0},
    "event_ack_timeout": 2.0,
    "checkpoint": {"timeout": 3.0},
}
SHORT_OUTAGE_S = 8.0
"""To those timeouts what a minute and more is to the default ones."""
DEFAULT: dict[str, Any] = {
    "timing": {"heartbeat_interval": 1.0, "heartbeat_timeout": 10.0},
    "event_ack_timeout": 30.0,
    "checkpoint": {"timeout": 60.0},
}
A_MINUTE_S = 60.0

UNDER_WAY = {
    "events-and-acks": [(FIRST, "before-ack"), (COORDINATOR, "before-frame")],
    "a-commit": [(COORDINATOR, "inside-commit-of-checkpoint")],
}
"""What falls into the outage."""


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka-matrix") / "data") as broker:
        yield broker


def away(broker: EmbeddedBroker, outage_s: float) -> Outage:
    @contextmanager
    def outage() -> Iterator[None]:
        broker.pause()
        try:
            yield
            time.sleep(outage_s)  # the outage itself; nothing is waited for
        finally:
            broker.resume()

    return outage


def killed(broker: EmbeddedBroker) -> Outage:
    @contextmanager
    def outage() -> Iterator[None]:
        broker.kill()
        try:
            yield
        finally:
            broker.start()

    return outage


def check_that_nobody_fails_over(
    make_rig: MakeRig, broker: EmbeddedBroker, settings: dict[str, Any], outage: Outage, under_way: str
) -> None:
    with make_rig(broker.bootstrap, **settings).start() as rig:
        rig.run_up_to(20)
        processes = [rig.coordinator.pid, *rig.pids()]
        holds = []
        for who, point in UNDER_WAY[under_way]:
            holds.append(rig.gates.hold(who, point))
            rig.gates.limit += 10
            holds[-1].wait()
        with outage():
            for hold in holds:
                hold.release()
        rig.wait_completed()
        status = rig.finish()
        assert (status.failovers_region, status.failovers_global) == (0, 0), status
        assert [rig.coordinator.pid, *rig.pids()] == processes
        for subtask in (FIRST, SECOND):
            assert len(rig.gates.of(subtask, "after-hello")) == 1
        assert rig.epochs() == [1]


@pytest.mark.parametrize("under_way", UNDER_WAY)
def test_a_broker_that_is_away_for_several_timeouts_fails_nobody_over(
    make_rig: MakeRig, own_broker: EmbeddedBroker, under_way: str
) -> None:
    check_that_nobody_fails_over(make_rig, own_broker, SHORT, away(own_broker, SHORT_OUTAGE_S), under_way)


@pytest.mark.soak
@pytest.mark.parametrize("under_way", [pytest.param("events-and-acks", marks=pytest.mark.smoke), "a-commit"])
@pytest.mark.parametrize("round_", rounds())
def test_a_broker_that_is_killed_and_started_again_fails_nobody_over(
    make_rig: MakeRig, own_broker: EmbeddedBroker, under_way: str, round_: int
) -> None:
    check_that_nobody_fails_over(make_rig, own_broker, SHORT, killed(own_broker), under_way)


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_a_broker_that_is_away_for_a_minute_fails_nobody_over_with_the_default_timeouts(
    make_rig: MakeRig, own_broker: EmbeddedBroker, round_: int
) -> None:
    under_way = list(UNDER_WAY)[round_ % len(UNDER_WAY)]
    check_that_nobody_fails_over(make_rig, own_broker, DEFAULT, away(own_broker, A_MINUTE_S), under_way)
