"""When a subtask's heart beats, and when another record does in its place (protocol, section 8.2)."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from penstock.subtask_client import heartbeat_thread
from penstock.subtask_client.heartbeat_thread import HeartbeatThread

PATIENCE_S = 20.0


@pytest.mark.parametrize(("news", "every"), [(True, 1), (False, 4)])
def test_acks_take_the_place_of_beats_for_four_intervals_unless_there_is_news(
    monkeypatch: pytest.MonkeyPatch, news: bool, every: int
) -> None:
    """P-8.2.4. A checkpoint each interval, a little early or late each time."""
    clock, beats = [0.0], []
    monkeypatch.setattr(heartbeat_thread, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    heart = HeartbeatThread(10.0, lambda periodic: beats.append((round(clock[0] / 10), periodic)), lambda: False)
    for n in range(9):
        clock[0] = 10.0 * n + (-1.0) ** n
        heart.record_written(news)
        assert heart._due_at > clock[0] + 11.0, "the next ack comes before the next beat"
        assert heart._due_at <= clock[0] + 12.5
    assert beats == [(n, True) for n in range(0, 9, every)]


def test_the_heart_beats_by_itself_when_no_further_record_is_written() -> None:
    """P-8.2.4: silence is never longer than one interval and a quarter."""
    beat = threading.Event()
    heart = HeartbeatThread(0.05, lambda periodic: beat.set(), lambda: False)
    heart.start()
    try:
        heart.record_written(news=False)
        beat.clear()
        assert beat.wait(PATIENCE_S)
    finally:
        heart.close()
