"""Events on their way to subtasks: numbers, frames, who gets them (protocol, sections 5.4 and 6)."""

from __future__ import annotations

from penstock.coordinator.protocol import effects
from penstock.schemas.events import EventFrame, TriggerCheckpoint
from penstock.schemas.settings import OperatorSettings

from .driver import S0, S1, Script


def frames(script: Script) -> list[tuple[int, int]]:
    return [(f.sequence, f.count) for f in script.records(S0, EventFrame)]


def test_events_of_one_turn_travel_in_frames_that_leave_when_full() -> None:
    """Section 6; section 3."""
    script = Script.running(frame_events_max=2)
    script.send(script.task(), b"a", b"b", b"c", b"d", b"e")
    assert frames(script) == [(0, 2), (2, 2), (4, 1)]
    assert script.events() == [b"a", b"b", b"c", b"d", b"e"]


def test_a_frame_is_bounded_in_bytes_and_a_larger_event_travels_alone() -> None:
    """Section 6."""
    script = Script.running(frame_bytes_max=4)
    script.send(script.task(), b"ab", b"cd", b"efghij", b"k")
    assert frames(script) == [(0, 2), (2, 1), (3, 1)]


def test_frames_carry_epoch_and_attempt() -> None:
    """Sections 3 and 4: the epoch in the record fences."""
    script = Script.running()
    script.send(script.task(), b"a")
    (frame,) = script.records(S0, EventFrame)
    assert (frame.epoch, frame.attempt) == (1, script.task().attempt)


def test_events_of_one_subtask_are_nobody_elses() -> None:
    """Section 3: partition = subtask."""
    script = Script.running()
    script.send(script.task(S1), b"a")
    assert (script.events(S0), script.events(S1)) == ([], [b"a"])


def test_sequences_go_on_across_checkpoints_holds_and_releases() -> None:
    """Section 5.4: the receiver checks that it never skips or repeats."""
    script = Script.running(OperatorSettings("op", 1), checkpoint={"max_concurrent": 2})
    count = 0
    for round_ in range(4):
        script.send(script.task(), b"%d" % count, b"%d" % (count + 1))
        n = script.trigger()
        script.send(script.task(), b"%d" % (count + 2))
        if round_ % 2:
            script.acknowledge(n)
        else:
            script.read(script.task().decline(n))
        count += 3
    expected = 0
    for record in script.events_log[S0]:
        if isinstance(record, EventFrame | TriggerCheckpoint):
            assert record.sequence == expected
            expected += record.count if isinstance(record, EventFrame) else 0
    assert expected == count
    assert script.events() == [b"%d" % i for i in range(count)]


def test_the_stream_moves_with_heartbeats_and_with_acks() -> None:
    """Section 6: the cumulative handled-through, or a CheckpointAck, covers it."""
    script = Script.running(OperatorSettings("op", 1))
    stream = script.send(script.task(), b"a", b"b")
    script.read(script.task().heartbeat(1))
    assert stream.handled_through == 1
    script.acknowledge(script.trigger(), handled_through=2)
    assert stream.handled_through == 2
    assert [effect.stream for effect in script.made(effects.Settle)] == [stream, stream]


def test_no_news_settles_nothing() -> None:
    """Section 6: exactly once."""
    script = Script.running()
    script.send(script.task(), b"a")
    script.read(script.task().heartbeat(0), script.task().heartbeat(7))
    assert script.made(effects.Settle) == []
