"""What a checkpoint has of one subtask, and where the events that come behind it begin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..checkpoint_log.history import Checkpoint
from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.errors import ConfigurationError
from ..schemas.events import EventsRecord, Start
from ..schemas.ids import NO_CHECKPOINT, SubtaskId
from .reading import Recorded


@dataclass(frozen=True)
class Part:
    """A subtask's part of a checkpoint."""

    checkpoint_id: int
    snapshot: SubtaskSnapshot
    epoch: int
    """Whose events follow: the one that took it, or one that has restored it, as it was or for another parallelism."""
    dealt: bool = False
    """A rescaling has derived the checkpoint."""

    @property
    def inherited(self) -> bool:
        """Whether another epoch goes on from it than the one that took it."""
        return self.epoch != self.snapshot.epoch


def part_of(job: str, checkpoint: Checkpoint, subtask: SubtaskId) -> Part:
    """Raises ConfigurationError where no subtask can be restored from it."""
    header, snapshot = checkpoint.header, checkpoint.subtasks.get(subtask)
    where, operator = f"checkpoint {checkpoint.id} of job {job}", checkpoint.operator(subtask.operator)
    if snapshot is None or operator is None or subtask.index >= operator.parallelism:
        held = ", ".join(f"{o.parallelism} of {o.operator}" for o in header.operators)
        raise ConfigurationError(f"{where} has no part of {subtask}: it holds {held}")
    if header.committer:
        raise ConfigurationError(
            f"{where} belongs to a Structured Streaming query, and no subtask is restored from it: its batch is a range"
            f" of events (penstock events {job} {subtask.operator} --from-checkpoint {checkpoint.id})"
        )
    dealt = header.rescaled_from != NO_CHECKPOINT
    return Part(checkpoint.id, snapshot, header.epoch if dealt else snapshot.epoch, dealt)


def begin_behind(part: Part, records: Iterable[Recorded], first: int, end: int) -> int:
    """From which offset of the subtask's events on those of the part's epoch count; below ``first`` where it is gone.

    ``records`` are those events, of offsets ``first`` to ``end``. Where the epoch has restored the checkpoint, a
    Start from that says where it begins; while nobody has been started it begins at its first record, at the latest.
    """
    if not part.inherited:
        return part.snapshot.event_position
    earliest: int | None = None
    for found in records:
        record = found.record
        if not isinstance(record, EventsRecord) or record.epoch < part.epoch:
            continue
        earliest = found.offset if earliest is None else earliest
        if record.epoch > part.epoch:
            break
        if isinstance(record, Start) and record.checkpoint_id == part.checkpoint_id:
            return record.event_position
    if earliest is None:
        return end
    return earliest if earliest > first or first == 0 else first - 1
