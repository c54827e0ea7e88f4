"""A Hello that waits for its Start, and those that it took the place of."""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.acks import Hello


@dataclass(slots=True)
class WaitingHello:
    """The newest Hello of a subtask that has not been answered."""

    offset: int
    hello: Hello
    at_takeover: bool = False
    astray_since: float | None = None
    """Log time at which it was first heard in a generation that is over, where nothing was heard under its Start."""
    displaced: WaitingHello | None = None
    """The one that waited when this one came: it is the newest again should this one's task be reported dead."""


DISPLACED_MAX = 4
"""Hellos of other tasks that one which displaced them remembers: so many tasks of one subtask may die at once."""


def shorten(waiting: WaitingHello) -> None:
    """Forget the Hellos of its own task that it displaced, and those of others beyond ``DISPLACED_MAX``."""
    link, kept = waiting, 0
    while link.displaced is not None:
        if link.displaced.hello.task == waiting.hello.task:
            link.displaced = link.displaced.displaced
        elif kept == DISPLACED_MAX:
            link.displaced = None
        else:
            link, kept = link.displaced, kept + 1
