"""Acks that no restore could be made of fail their attempt, and reach no checkpoint (protocol, section 7.6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.coordinator.protocol import effects
from penstock.schemas.acks import CheckpointAck
from penstock.schemas.ids import NO_ATTEMPT
from penstock.schemas.settings import OperatorSettings
from penstock.schemas.state import OPEN_END, ChannelPosition, Segment, StateHandle

from .data_jobs import A0, B0, pair
from .driver import S0, S1, Script, channel, open_from


def refused(script: Script, n: int, ack: CheckpointAck) -> str:
    """The cause with which the ack's attempt fails; checkpoint ``n`` is aborted."""
    script.forget()
    script.read(ack)
    assert n not in script.pending
    assert n not in script.job.history.checkpoints
    (failed, *_) = [call for call in script.calls if isinstance(call, effects.CallFailed)]
    assert failed.reason is not None
    return failed.reason


def test_an_ack_that_claims_unread_events_fails_its_attempt() -> None:
    """Section 7.6: the record before it was lost, and nothing else would tell. G2, G5."""
    script = Script.running()
    n = script.trigger()
    script.task().frame(b"lost")
    cause = refused(script, n, script.task().ack(n))
    assert "claims 1 events to the coordinator, and 0 were read" in cause
    assert script.job.statistics.region_failovers == 1


def test_an_ack_that_claims_unread_events_fails_its_attempt_without_a_coordinator_too() -> None:
    """Section 7.6: a record that is lost is a loss, whoever was to be handed it."""
    script = Script.running(OperatorSettings("op", 2), OperatorSettings("bare", 1, has_coordinator=False))
    bare = script.settings.subtasks()[2]
    n = script.trigger()
    script.tasks[bare].frame(b"lost")
    script.forget()
    script.read(script.tasks[bare].ack(n))
    assert n not in script.pending
    assert "claims 1 events" in script.job.statistics.last_failure


def test_a_late_ack_that_claims_unread_events_fails_its_attempt() -> None:
    """Section 7.6: whatever has become of its checkpoint."""
    script = Script.running()
    n = script.trigger()
    script.read(script.task(S1).decline(n))
    script.task().frame(b"lost")
    refused(script, n, script.task().ack(n))


def test_an_attempt_that_a_takeover_started_over_counts_from_0() -> None:
    """Section 7.6: sequences begin with the Start, so a successor knows what it has read of them."""
    script = Script.running()
    script.read(script.task().frame(b"a", b"b"))
    script.checkpoint()
    script.restart()
    script.hello_all()
    script.read(script.task().frame(b"c"))
    assert script.checkpoint() == script.last_id


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sent_sequence": 0}, "1 were read before its trigger"),
        ({"sent_sequence": -1}, "1 were read before its trigger"),
        ({"handled_through": 1}, "claims 1 handled events, and 0 were sent"),
        ({"handled_through": -1}, "claims -1 handled events"),
        ({"event_ranges": (Segment(0, 10**12, 1, 0, 1),)}, "names ranges [0 to 1000000000000]"),
        ({"event_ranges": (Segment(-1, 1, 1, 0, 1),)}, "names ranges [-1 to 1]"),
        ({"event_ranges": (Segment(2, 1, 1, 0, 1),)}, "names ranges [2 to 1]"),
        ({"event_ranges": (Segment(0, 1, 1, 0, 1), Segment(0, 1, 1, 0, 1))}, "names ranges [0 to 1, 0 to 1]"),
        ({"event_ranges": (Segment(0, OPEN_END, 1, 0, 1),)}, "names ranges [0 to open]"),
        ({"event_position": -1}, "names ranges"),
        ({"data_positions": (ChannelPosition("x", (), 0),)}, "names channel 'x'"),
        ({"data_positions": (ChannelPosition("op/1", (), 0),)}, "names channel 'op/1'"),
        ({"state": StateHandle(5)}, "names a state that is not its own"),
        ({"state": StateHandle(4, inline=b"state")}, "names a state that is not its own"),
        ({"state": StateHandle(5, location="checkpoint-1/epoch-1/op-coordinator")}, "names a state that is not"),
        ({"state": StateHandle(5, inline=b"state", location="x")}, "names a state that is not its own"),
    ],
)
def test_an_ack_that_no_restore_could_be_made_of_fails_its_attempt(changes: dict[str, Any], why: str) -> None:
    """Section 7.6."""
    script = Script.running()
    script.read(script.task().frame(b"a"))
    n = script.trigger()
    assert why in refused(script, n, script.task().ack(n, **changes))


@pytest.mark.parametrize(
    "positions",
    [
        (channel(S0), channel(S0)),
        (channel(S0, Segment(3, 2, 1, 0, NO_ATTEMPT)),),
        (channel(S0, open_from(3, (1, 0)), open_from(4, (1, 0))),),
        (channel(S0, Segment(3, 10**12, 1, 0, 1), open_from(4, (1, 0))),),
        (channel(S0, open_from(-5, (1, 0))),),
        (channel(S0, open_from(3, (1, 0)), sequence=-1),),
    ],
)
def test_positions_of_channels_ascend_and_name_each_channel_once(positions: tuple[ChannelPosition, ...]) -> None:
    """Section 7.6."""
    script = pair()
    named = tuple(replace(position, channel=str(A0)) for position in positions)
    n = script.trigger()
    assert "channel" in refused(script, n, script.task(B0).ack(n, data_positions=named))


def test_nothing_of_an_ack_that_is_not_acceptable_settles() -> None:
    """Section 7.6: a future that has settled as handled stays so."""
    script = Script.running()
    stream = script.send(script.task(), b"sent before the trigger")
    n = script.trigger()
    script.task().frame(b"lost")
    script.read(script.task().ack(n, handled_through=1))
    assert stream.handled_through == 0


@pytest.mark.parametrize("whose", ["kept", "a neighbour's", "the folder's owner"])
def test_a_forged_late_ack_deletes_nobodys_state(whose: str) -> None:
    """Section 7.8: only what its own attempt has stored."""
    script = Script.running()
    kept = script.checkpoint(stores=True)
    n = script.trigger()
    locations = {"kept": script.task().stored(kept).location, "a neighbour's": script.task(S1).stored(n).location}
    script.read(script.task(S1).decline(n))
    script.forget()
    state = StateHandle(9, location=locations.get(whose, "owner.json"))
    script.read(script.task().ack(n, state=state))
    assert script.made(effects.DeleteStates) == []
