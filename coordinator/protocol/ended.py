"""What is left to do where a coordinator died as soon as the end of its job stood in the log (protocol, section 4)."""

from __future__ import annotations

from collections.abc import Iterable

from ...schemas.acks import AcksRecord, Hello, RunStarted
from ...schemas.events import Stop
from ...schemas.ids import NO_ATTEMPT, SubtaskId
from ...schemas.settings import JobSettings
from .history import History


def hellos_from(history: History) -> int:
    """Offset in the acks topic from which on stand the Hellos of whoever has not acknowledged the last checkpoint."""
    return 0 if history.last is None else history.last.inbox_position


def stops(
    settings: JobSettings, history: History, read: Iterable[tuple[int, AcksRecord]]
) -> list[tuple[SubtaskId, Stop]]:
    """A Stop for each attempt that may not have been told to leave, but for those of a newer run.

    ``read`` is what stands in the acks topic behind :func:`hellos_from`. Who has left already is not harmed.
    """
    read = list(read)
    finished, here = history.finished, frozenset(settings.subtasks())
    assert finished is not None
    if settings.batches:
        return []  # a query's tasks wait for nobody
    acknowledged = {} if history.last is None else history.last.subtasks
    found = [
        (subtask, Stop(finished.epoch, snapshot.attempt, "", finished.cause))
        for subtask, snapshot in acknowledged.items()
        if subtask in here and snapshot.attempt != NO_ATTEMPT  # mutant: acknowledged-and-not-told-of-the-end
    ]
    claimed = -1 if history.run is None else history.run.offset
    newer = {r.run for offset, r in read if isinstance(r, RunStarted) and offset > claimed} - {finished.run}
    return found + [
        (hello.subtask_id, Stop(finished.epoch, offset, hello.nonce, finished.cause))
        for offset, hello in read
        # mutant: hello-behind-the-end-unanswered
        if isinstance(hello, Hello)
        and hello.subtask_id in here
        and hello.run not in newer  # mutant: hello-of-an-older-run-unanswered
    ]
