"""Whether the logs still hold what a checkpoint needs to be restored (protocol, sections 3 and 11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..schemas.checkpoints import SchemaUsed
from ..schemas.graph import DataPartition
from ..schemas.ids import NO_ATTEMPT, SubtaskId
from ..schemas.state import OPEN_END
from ..schemas.topics import TopicNames
from .history import Checkpoint, History, Prepared


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets [begin, end) that a partition holds."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Available:
    """What the partitions of a job hold."""

    acks: Offsets
    events: Mapping[SubtaskId, Offsets] = field(default_factory=dict)
    data: Mapping[DataPartition, Offsets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Need:
    where: str
    begin: int
    end: int
    there: Offsets

    @property
    def met(self) -> bool:
        return self.there.begin <= self.begin <= self.there.end and self.end <= self.there.end


def missing(topics: TopicNames, checkpoint: Checkpoint, there: Available) -> str | None:
    """What ``checkpoint`` needs and the logs do not hold, for people; None: nothing."""
    for need in _needs(topics, checkpoint, there):
        if not need.met:
            return f"{need.where} from offset {need.begin}, and it holds offsets {need.there.begin} to {need.there.end}"
    return None


def _needs(topics: TopicNames, checkpoint: Checkpoint, there: Available) -> Iterator[_Need]:
    if not checkpoint.header.savepoint:  # a savepoint holds its inbox range itself
        yield _Need(topics.acks, checkpoint.inbox_position, 0, there.acks)
    for subtask, events in there.events.items():
        snapshot = checkpoint.subtasks.get(subtask)
        for needed in snapshot.event_ranges if snapshot is not None else ():
            yield _Need(f"{topics.events(subtask.operator)}[{subtask.index}]", needed.begin, needed.end, events)
    for partition, data in there.data.items():
        receiver = partition.receiver
        snapshot = checkpoint.subtasks.get(receiver)
        where = f"{topics.data(partition.upstream, receiver.operator)}[{receiver.index}]"
        for position in snapshot.data_positions if snapshot is not None else ():
            for segment in position.segments if position.sender.operator == partition.upstream else ():
                if segment.end == OPEN_END:  # nothing behind it is needed, but that there is something
                    yield _Need(where, max(segment.begin, data.begin), 0, data)
                else:
                    yield _Need(where, segment.begin, segment.end, data)


def schemas_needed_by(history: History, checkpoint: Checkpoint | Prepared) -> list[SchemaUsed]:
    """Schemas under which something that a restore of this checkpoint reads may have been written."""
    first, last = _epochs(checkpoint)
    return [used for used in history.schemas.values() if used.first_epoch <= last and used.last_epoch >= first]


def _epochs(checkpoint: Checkpoint | Prepared) -> tuple[int, int]:
    """The first and the last in which something of it was written; between them states may have been dealt."""
    epochs = {checkpoint.header.epoch}
    for snapshot in checkpoint.subtasks.values():
        if snapshot.attempt == NO_ATTEMPT:
            continue  # it has come with a rescaling, and wrote nothing itself
        epochs.add(snapshot.epoch)
        epochs.update(segment.epoch for segment in snapshot.event_ranges)
        epochs.update(segment.epoch for position in snapshot.data_positions for segment in position.segments)
    return min(epochs), max(epochs)
