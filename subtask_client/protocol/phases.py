"""Where an instance stands, and what moves it on: the whole table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Phase(StrEnum):
    NEW = "new"
    """Wants to say Hello; reads nothing."""
    WAITING = "waiting"
    """Has said Hello."""
    RUNNING = "running"
    """Runs under a Start."""
    FINISHED = "finished"
    """The same, but has no work of its own left: waits for a checkpoint that contains its end."""
    LEFT = "left"


class Turn(StrEnum):
    """What moves an instance from phase to phase."""

    HELLO = "hello"
    START = "start"
    OVER = "over"
    """The attempt has ended and the instance goes on: Reset, a failure."""
    WORK_ENDED = "work ended"
    LEAVE = "leave"


TRANSITIONS: Mapping[tuple[Phase, Turn], Phase] = {
    (Phase.NEW, Turn.HELLO): Phase.WAITING,
    (Phase.NEW, Turn.LEAVE): Phase.LEFT,
    (Phase.WAITING, Turn.START): Phase.RUNNING,
    (Phase.WAITING, Turn.OVER): Phase.NEW,
    (Phase.WAITING, Turn.LEAVE): Phase.LEFT,
    (Phase.RUNNING, Turn.START): Phase.RUNNING,
    (Phase.RUNNING, Turn.WORK_ENDED): Phase.FINISHED,
    (Phase.RUNNING, Turn.OVER): Phase.NEW,
    (Phase.RUNNING, Turn.LEAVE): Phase.LEFT,
    (Phase.FINISHED, Turn.START): Phase.RUNNING,
    (Phase.FINISHED, Turn.OVER): Phase.NEW,
    (Phase.FINISHED, Turn.LEAVE): Phase.LEFT,
}
