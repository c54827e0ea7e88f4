"""What no checkpoint needs any more: stored states are deleted, logs truncated (protocol, section 7.9).

There is no clock here: how old a checkpoint is, is how long before the newest one of its line it was completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...checkpoint_log.history import Checkpoint, History
from ...schemas.graph import DataPartition
from ...schemas.ids import NO_CHECKPOINT, SubtaskId
from ...schemas.settings import JobSettings
from ...schemas.state import OPEN_END
from .effects import DeleteStates, Truncate
from .state import JobState

REPLAY_STEPS = 10
"""Into how many steps a replay window is divided: of each one checkpoint is kept to begin at."""


def discarded_by(job: JobState, completing: int, *, savepoint: bool) -> list[int]:
    """Return the ids of the checkpoints to discard when ``completing`` completes now."""
    history, window = job.history, job.settings.replay_retention
    line = [*_times(history), (completing, job.wall_ms())]
    begins = beginnings(line, window) if window > 0 else frozenset()
    subsumed = history.subsumed_by(completing, job.settings.checkpoint.retained, savepoint=savepoint)
    return [n for n in subsumed if n not in begins]


def forget(job: JobState, gone: Iterable[Checkpoint]) -> None:
    """What only these needed is deleted and truncated; their discards are committed."""
    unnamed = sorted(set().union(*(checkpoint.locations() for checkpoint in gone)) - job.history.locations())
    if unnamed:
        job.emit(DeleteStates(tuple(unnamed)))
    if (floors := truncation(job.settings, job.history)) is not None:
        job.emit(floors)


# ---- a window for replays


def window_of(line: Sequence[tuple[int, int]], seconds: float) -> list[int]:
    """Ids of those checkpoints, of (id, completion in milliseconds since 1970), that ``seconds`` are replayed from.

    The newest one from before that time, and every one since. Empty where the line does not go back so far: then
    nothing says where that time begins in the logs. It ends with the last of the line: what was completed while a clock
    was ahead does not keep the window from being what it is.
    """
    since = line[-1][1] - 1000 * seconds if line else 0.0  # mutant: window-begins-too-late
    before = [at for at, (_, ms) in enumerate(line) if ms <= since]
    return [n for n, _ in line[before[-1] :]] if before else []


def beginnings(line: Sequence[tuple[int, int]], seconds: float) -> frozenset[int]:
    """Which of them are kept to begin a replay at: the one before the window, and of each of its steps the first."""
    window, step_ms = window_of(line, seconds), max(1.0, 1000 * seconds / REPLAY_STEPS)
    first: dict[int, int] = {}
    for n, ms in line:
        if not window or n > window[0]:
            first.setdefault(int(ms // step_ms), n)
    return frozenset([*window[:1], *sorted(first.values())[-REPLAY_STEPS - 1 :]])


def _times(history: History) -> list[tuple[int, int]]:
    return [(n, history.checkpoints[n].header.completed_at_ms) for n in history.lineage]


# ---- floors


def truncation(settings: JobSettings, history: History) -> Truncate | None:
    """What nobody needs: below every range that a kept checkpoint names, and below the positions of those that the
    replay window begins with; without a window that is the last completed one.

    Behind an older one's open position nothing is needed: a restore begins a new epoch. None: nothing may go.
    """
    last = history.last
    replayed = [history.checkpoints[n] for n in window_of(_times(history), settings.replay_retention)]
    if last is None or not replayed:  # mutant: never-truncates
        return None
    kept = [c for c in history.checkpoints.values() if not c.header.savepoint]  # a savepoint holds its inbox itself
    # mutant: truncates-too-far
    acks = min([c.inbox_position for c in (*kept, *replayed, last)] + [last.header.commands_position])
    events = {}
    for subtask in settings.subtasks():
        if subtask in replayed[0].subtasks:  # else it was added since, and its partition has nothing older
            events[subtask] = min(_events_needed(subtask, history.checkpoints.values(), replayed))
    return Truncate(events, acks, _data_floors(settings, history, replayed))


def _events_needed(subtask: SubtaskId, kept: Iterable[Checkpoint], replayed: Iterable[Checkpoint]) -> list[int]:
    positions = [c.subtasks[subtask].event_position for c in replayed if subtask in c.subtasks]
    ranges = [r.begin for c in kept if (s := c.subtasks.get(subtask)) for r in s.event_ranges]
    return positions + ranges  # mutant: truncates-one-too-far, batches-are-truncated


def _data_floors(
    settings: JobSettings, history: History, replayed: Sequence[Checkpoint]
) -> Mapping[DataPartition, int]:
    """None of a partition whose senders have all ended, nothing more comes; nor of one that the first does not know."""
    begins: dict[DataPartition, list[int]] = {
        partition: [] for partition in settings.graph.data_partitions() if _knows(replayed[0], partition)
    }
    opens = {checkpoint.id for checkpoint in replayed}
    for checkpoint in history.checkpoints.values():
        for receiver, snapshot in checkpoint.subtasks.items():
            for position in snapshot.data_positions:
                # mutant: data-truncated-below-the-open-position.ranges
                needed = [s.begin for s in position.segments if s.end != OPEN_END or checkpoint.id in opens]
                begins.get(DataPartition(position.sender.operator, receiver), []).extend(needed)
    # mutant: data-truncated-below-the-open-position.floor, open-data-truncated
    return {partition: min(needed) for partition, needed in begins.items() if needed}


def _knows(checkpoint: Checkpoint, partition: DataPartition) -> bool:
    """Whether it says where the partition is read on: not where an operator was added since, and not where it was
    derived for another parallelism, whose channels begin anew."""
    there = partition.receiver in checkpoint.subtasks and checkpoint.operator(partition.upstream) is not None
    return there and checkpoint.header.rescaled_from == NO_CHECKPOINT
