"""Heartbeats wait for the outcome of what was appended before them (protocol, section 8.2)."""

from __future__ import annotations

from penstock.coordinator.writers import Outstanding


def test_what_waits_is_done_once_everything_before_it_has_its_outcome() -> None:
    done = list[str]()
    outstanding = Outstanding()
    outstanding.began()
    outstanding.began()
    outstanding.behind(lambda: done.append("heartbeat"))
    outstanding.ended()
    assert not done
    outstanding.ended()
    assert done == ["heartbeat"]


def test_one_that_takes_the_place_of_another_waits_no_longer_than_that() -> None:
    """A broker that always has something to answer would else put heartbeats off for ever."""
    done = list[str]()
    outstanding = Outstanding()
    outstanding.began()
    outstanding.behind(lambda: done.append("first"))
    outstanding.began()
    outstanding.behind(lambda: done.append("second"))
    outstanding.ended()
    assert done == ["second"]
