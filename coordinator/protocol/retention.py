"""What no checkpoint needs any more: stored states are deleted, logs truncated (protocol, section 7.9)."""

from __future__ import annotations

from collections.abc import Mapping

from ...schemas.graph import DataPartition
from ...schemas.state import OPEN_END
from .effects import DeleteStates, Truncate
from .history import Checkpoint
from .state import JobState


def forget(job: JobState, gone: list[Checkpoint]) -> None:
    """What only these needed is deleted and truncated; their discards are committed."""
    unnamed = sorted(set().union(*(checkpoint.locations() for checkpoint in gone)) - job.history.locations())
    if unnamed:
        job.emit(DeleteStates(tuple(unnamed)))
    job.emit(_truncation(job))


def _truncation(job: JobState) -> Truncate:
    """What no kept checkpoint needs: below the last one's positions and below every range (section 7.9).

    Behind an older one's open position nothing is needed: a restore begins a new epoch.
    """
    kept = [c for c in job.history.checkpoints.values() if not c.header.savepoint]
    last = job.history.last
    assert last is not None
    floors = {}
    for subtask in job.settings.subtasks():
        ranges = [
            r.begin for c in job.history.checkpoints.values() if (s := c.subtasks.get(subtask)) for r in s.event_ranges
        ]
        floors[subtask] = min([last.subtasks[subtask].event_position, *ranges])
    acks = min([c.inbox_position for c in kept] + [last.inbox_position, last.header.commands_position])
    return Truncate(floors, acks, _data_floors(job, last))


def _data_floors(job: JobState, last: Checkpoint) -> Mapping[DataPartition, int]:
    """None of a partition whose senders have all ended: nothing more comes."""
    begins: dict[DataPartition, list[int]] = {partition: [] for partition in job.settings.graph.data_partitions()}
    for checkpoint in job.history.checkpoints.values():
        for receiver, snapshot in checkpoint.subtasks.items():
            for position in snapshot.data_positions:
                needed = [s.begin for s in position.segments if s.end != OPEN_END or checkpoint is last]
                begins.get(DataPartition(position.sender.operator, receiver), []).extend(needed)
    return {partition: min(needed) for partition, needed in begins.items() if needed}
