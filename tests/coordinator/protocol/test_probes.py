"""Three defects that were found by running Flink 2.3.0, and are closed here (flink-semantics, E.1: P1 to P3)."""

from __future__ import annotations

import pytest

from penstock.schemas.events import EventFrame, TriggerCheckpoint

from .driver import S0, S1, Script


def test_p1_an_unhandled_event_is_still_tracked_after_an_aborted_checkpoint() -> None:
    """Section 6: no checkpoint, abort or reset forgets one. There, the second checkpoint counted it as delivered."""
    script = Script.running()
    stream = script.send(script.task(), b"e")
    for _ in range(2):
        script.read(script.task(S1).decline(script.trigger()))
    assert (stream.appended_through, stream.handled_through) == (1, 0)
    assert stream.failure is None
    script.read(script.task().heartbeat(1))
    assert stream.handled_through == 1


def test_p1_the_marker_of_the_next_checkpoint_stands_behind_it() -> None:
    """Section 7.4: a marker, not a wait for acks, makes the cut safe."""
    script = Script.running()
    script.send(script.task(), b"e")
    script.read(script.task(S1).decline(script.trigger()))
    script.trigger()
    log = script.events_log[S0]
    assert all(
        log.index(m) > log.index(script.records(S0, EventFrame)[0]) for m in script.records(S0, TriggerCheckpoint)
    )


@pytest.mark.parametrize("opened", ["older", "newer"])
def test_p2_a_checkpoint_that_fails_opens_nobody_elses_gateways(opened: str) -> None:
    """Section 6: abort is by id."""
    script = Script.running(checkpoint={"max_concurrent": 2})
    older = script.trigger()
    script.send(script.task(), b"behind older")
    newer = script.trigger()
    script.send(script.task(), b"behind newer")
    script.read(script.task(S1).decline(older if opened == "older" else newer))
    assert script.events() == [b"behind older"]
    kept = newer if opened == "older" else older
    assert script.slot().gateway.closed == (kept,)


def test_p3_a_replaced_gateway_settles_or_hands_on_every_future() -> None:
    """Section 6: there, events held by a replaced gateway were neither sent nor failed."""
    script = Script.running()
    n = script.trigger()
    stream = script.send(script.task(), b"held")
    script.hello()
    assert script.events() == [b"held"]
    script.read(script.task().heartbeat(1))
    assert stream.handled_through == 1
    assert script.checkpoint() > n  # and the next checkpoint does not hang


def test_p3_a_late_completion_after_the_reset_is_harmless() -> None:
    """Section 6: opening an id that is no longer marked is a no-op; there, it raised."""
    script = Script.running()
    n = script.trigger()
    late = script.task().ack(n)
    script.hello()
    script.read(late, script.task().snapshot_taken(n), script.task().decline(n))
    assert script.slot().gateway.closed == ()
