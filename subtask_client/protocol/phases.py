"""Where an instance stands, and what moves it on: the whole table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Phase(StrEnum):
    NEW = "new"
    """Wants to say Hello; reads no more than it has to look through before."""
    WAITING = "waiting"
    """Has said Hello."""
    RUNNING = "running"
    """Runs under a Start."""
    FINISHED = "finished"
    """The same, but has no work of its own left: waits for a checkpoint that contains its end."""
    LEFT = "left"


class Transition(StrEnum):
    """What moves an instance from phase to phase."""

    HELLO = "hello"
    START = "start"
    OVER = "over"
    """The attempt has ended and the instance goes on: Reset, a failure."""
    WORK_ENDED = "work ended"
    LEAVE = "leave"


TRANSITIONS: Mapping[tuple[Phase, Transition], Phase] = {
    (Phase.NEW, Transition.HELLO): Phase.WAITING,
    (Phase.NEW, Transition.LEAVE): Phase.LEFT,
    (Phase.WAITING, Transition.START): Phase.RUNNING,
    (Phase.WAITING, Transition.OVER): Phase.NEW,
    (Phase.WAITING, Transition.LEAVE): Phase.LEFT,
    (Phase.RUNNING, Transition.START): Phase.RUNNING,
    (Phase.RUNNING, Transition.WORK_ENDED): Phase.FINISHED,
    (Phase.RUNNING, Transition.OVER): Phase.NEW,
    (Phase.RUNNING, Transition.LEAVE): Phase.LEFT,
    (Phase.FINISHED, Transition.START): Phase.RUNNING,
    (Phase.FINISHED, Transition.OVER): Phase.NEW,
    (Phase.FINISHED, Transition.LEAVE): Phase.LEFT,
}
