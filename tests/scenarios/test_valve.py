"""Flink's valve and subtask gateway (C1, C2): what tests/coordinator/protocol/test_gateway.py leaves to say.

A gateway here knows marks and what it holds. What a reset or a refused append does to its events is decided around it,
so those scenarios are played on the core.
"""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.gateway import GatewayState
from penstock.coordinator.protocol.inputs import AppendFailed, CoordinatorRaised
from penstock.schemas.errors import RolledBack, TaskNotRunning
from penstock.schemas.events import EventFrame, FailoverPolicy
from penstock.schemas.frames import pack, unpack
from penstock.schemas.settings import OperatorSettings
from tests.coordinator.protocol.driver import S0, S1, Script


def frame(event: bytes) -> EventFrame:
    return EventFrame(1, 7, 0, *pack([event]))


def events(frames: list[EventFrame]) -> list[bytes]:
    return [event for f in frames for event in unpack(f.count, f.lengths, f.payload)]


def closed_with_held(policy: FailoverPolicy) -> Script:
    """Both gateways are closed for a checkpoint under way, and each holds one event."""
    script = Script.running(OperatorSettings("op", 2, on_failover=policy))
    script.trigger()
    script.send(script.task(S0), b"for 0")
    script.send(script.task(S1), b"for 1")
    assert (script.events(S0), script.events(S1)) == ([], [])
    return script


def test_gateways_opened_one_after_the_other_release_each_its_own() -> None:
    """C1.3, C2.6: in the order in which they are opened."""
    gateways = {subtask: GatewayState() for subtask in (3, 0)}
    for subtask, gateway in gateways.items():
        gateway.mark(17)
        assert gateway.close(17)
        assert gateway.hold(frame(b"for %d" % subtask))
    assert [events(gateway.open(17)) for gateway in gateways.values()] == [[b"for 3"], [b"for 0"]]
    assert [gateway.open(17) for gateway in gateways.values()] == [[], []]


@pytest.mark.parametrize("policy", FailoverPolicy)
def test_a_released_event_that_the_broker_refuses_fails_its_future(policy: FailoverPolicy) -> None:
    """C1.4, C2.7; R15. There its attempt fails; here nothing may follow a hole, so everybody is rolled back."""
    script = closed_with_held(policy)
    stream = script.task(S0).stream
    script.read(script.task(S0).snapshot_taken(max(script.pending)))
    assert script.events(S0) == [b"for 0"]
    assert stream.failure is None
    script.handle(AppendFailed(1, "timed out"))
    assert isinstance(stream.failure, RolledBack)
    assert script.epoch.number == 2


@pytest.mark.parametrize("policy", FailoverPolicy)
def test_a_global_failover_drops_whatever_is_held_and_fails_its_future(policy: FailoverPolicy) -> None:
    """C1.5; R13: it was sent by a coordinator that has been rolled back."""
    script = closed_with_held(policy)
    streams = [script.task(s).stream for s in (S0, S1)]
    script.handle(CoordinatorRaised("op", 1, "fail_job", "told to"))
    script.hello_all()
    assert (script.events(S0), script.events(S1)) == ([], [])
    assert all(isinstance(stream.failure, RolledBack) for stream in streams)
    assert script.epoch.held_bytes["op"] == 0


def test_under_reset_the_failure_of_one_subtask_drops_what_is_held_for_it_and_nothing_else() -> None:
    """C1.6: the checkpoint is aborted, so the other one's event goes."""
    script = closed_with_held(FailoverPolicy.RESET)
    kept, failed = script.task(S0).stream, script.task(S1).stream
    script.read(script.task(S1).failed())
    script.hello(S1)
    assert (script.events(S0), script.events(S1)) == ([b"for 0"], [])
    assert kept.failure is None
    assert isinstance(failed.failure, TaskNotRunning)


@pytest.mark.parametrize("how", ["region", "global"])
def test_after_a_reset_the_gateway_is_open(how: str) -> None:
    """C1.7, C3.7: what is sent to the next attempt leaves at once, whatever was closed before."""
    script = closed_with_held(FailoverPolicy.RESET)
    if how == "region":
        script.read(script.task(S0).failed())
    else:
        script.handle(CoordinatorRaised("op", 1, "fail_job", "told to"))
    script.hello_all()
    assert script.slot(S0).gateway.closed == ()
    script.send(script.task(S0), b"new")
    assert script.events(S0) == [b"new"]
