"""What is left to do where a coordinator died as soon as the end of its job stood in the log (protocol, section 4)."""

from __future__ import annotations

from collections.abc import Iterable

from ...checkpoint_log.history import History
from ...schemas.acks import AcksRecord, Hello, RunStarted
from ...schemas.events import Stop
from ...schemas.ids import NO_ATTEMPT, SubtaskId
from ...schemas.settings import JobSettings
from .attempts import names_fit


def hellos_from(history: History) -> int:
    """Offset in the acks topic from which on the Hellos of all stand who have not acknowledged the last checkpoint."""
    return 0 if history.last is None else history.last.acks_needed


def stops(
    settings: JobSettings, history: History, read: Iterable[tuple[int, AcksRecord]]
) -> list[tuple[SubtaskId, Stop]]:
    """A Stop for each attempt of the run that ended, and of older runs. One that has left already ignores it.

    ``read`` is what stands in the acks topic behind :func:`hellos_from`, in order.
    """
    if settings.driven_by_query:
        return []  # a query's tasks wait for nobody
    finished, here = history.finished, frozenset(settings.subtasks())
    assert finished is not None
    acknowledged = {} if history.last is None else history.last.subtasks
    found = [
        (subtask, Stop(finished.epoch, snapshot.attempt, "", finished.cause))
        for subtask, snapshot in acknowledged.items()
        if subtask in here and snapshot.attempt != NO_ATTEMPT  # mutant: acknowledged-and-not-told-of-the-end
    ]
    begun, hellos = dict[str, int](), list[tuple[int, Hello]]()
    for offset, record in read:
        if isinstance(record, RunStarted):
            begun.setdefault(record.run, offset)  # it may stand twice
        elif isinstance(record, Hello) and record.subtask_id in here and names_fit(record):
            hellos.append((offset, record))
    claimed = -1 if history.run is None else history.run.offset
    ended_run_began = begun.get(finished.run, claimed)
    newer = {run for run, offset in begun.items() if offset > ended_run_began}
    return found + [
        (hello.subtask_id, Stop(finished.epoch, offset, hello.nonce, finished.cause))
        for offset, hello in hellos
        # mutant: hello-behind-the-end-unanswered, hello-of-an-older-run-unanswered
        if hello.run not in newer
    ]
