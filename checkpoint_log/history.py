"""What the checkpoint log says: a fold over its records.

The coordinator applies its own commits through the same fold that its successor reads them with, so recovery is the
same call as normal work. Keyed records and tombstones make the fold right for a compacted log too.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..schemas.checkpoints import (
    STOPPING_KEY,
    CheckpointCompleted,
    CheckpointLogRecord,
    CheckpointPart,
    CheckpointPrepared,
    CommandExecuted,
    EpochClaimed,
    Forked,
    JobFinished,
    JobStopping,
    OperatorSnapshot,
    RunClaimed,
    SchemaUsed,
    SubtaskSnapshot,
    checkpoint_key,
    key_of,
)
from ..schemas.errors import JobRefused
from ..schemas.ids import NO_CHECKPOINT, SubtaskId
from ..schemas.state import StateHandle

Keyed = tuple[str, CheckpointLogRecord | None]
"""A record of the checkpoint log under its key; None is a tombstone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A completed checkpoint, put together from its records."""

    header: CheckpointCompleted
    subtasks: Mapping[SubtaskId, SubtaskSnapshot]

    @property
    def id(self) -> int:
        return self.header.checkpoint_id

    def operator(self, name: str) -> OperatorSnapshot | None:
        return next((o for o in self.header.operators if o.operator == name), None)

    @property
    def inbox_position(self) -> int:
        """Offset in the acks topic of the first record that some coordinator had not been handed at the cut."""
        return min(o.inbox_position for o in self.header.operators)

    @property
    def acks_needed(self) -> int:
        """Offset in the acks topic from which on an instance that begins with this checkpoint reads."""
        return min(self.inbox_position, self.header.commands_position)

    def stored(self) -> Mapping[str, StateHandle]:
        """The stored states it needs, by location."""
        handles = [o.coordinator_state for o in self.header.operators] + [s.state for s in self.subtasks.values()]
        return {handle.location: handle for handle in handles if handle is not None and handle.location is not None}

    def locations(self) -> set[str]:
        """Names of the stored states it needs."""
        return set(self.stored())


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checkpoint whose completion a query's commit decides (protocol, section 10)."""

    header: CheckpointPrepared
    subtasks: Mapping[SubtaskId, SubtaskSnapshot]

    def locations(self) -> set[str]:
        """Names of the stored states it needs."""
        handles = [o.coordinator_state for o in self.header.operators]
        return {handle.location for handle in handles if handle is not None and handle.location is not None}


class History:
    """The fold of a job's checkpoint log: its epochs, checkpoints, commands and end so far."""

    def __init__(self) -> None:
        self.epoch = 0
        self.topic_ids: Mapping[str, str] = {}
        self.reserved_through = 0
        self.completed_through = NO_CHECKPOINT
        """Highest id that the log has named as completed, discarded or not."""
        self.run: RunClaimed | None = None
        self.checkpoints: dict[int, Checkpoint] = {}
        """Completed and not discarded, by id."""
        self.lineage: list[int] = []
        """Ids of the lineage, ascending: going back to an older checkpoint cuts off what came after it."""
        self.executed: dict[int, CommandExecuted] = {}
        """By offset; those below the commands position are forgotten."""
        self.commands_position = 0
        """Offset in the acks topic below which every command has been executed."""
        self.finished: JobFinished | None = None
        """Set while no epoch has begun since the job ended."""
        self.stopping: JobStopping | None = None
        """A stop with a savepoint that has to be finished: until then nothing starts again."""
        self.prepared: dict[int, Prepared] = {}
        """Checkpoints that are neither completed nor aborted yet, by id."""
        self.forked: Forked | None = None
        """Where the history was copied from; None where it is the job's own from its beginning."""
        self.schemas: dict[str, SchemaUsed] = {}
        """Avro schemas of the user's that something which can be restored was written under, by key."""
        self._parts: dict[int, dict[int, CheckpointPart]] = {}

    @classmethod
    def of(cls, records: Iterable[Keyed]) -> History:
        history = cls()
        history.apply(records)
        return history

    @property
    def last(self) -> Checkpoint | None:
        """The last completed checkpoint of the lineage."""
        return self.checkpoints[self.lineage[-1]] if self.lineage else None

    @property
    def last_id(self) -> int:
        return self.lineage[-1] if self.lineage else NO_CHECKPOINT

    def apply(self, records: Iterable[Keyed]) -> None:
        for key, record in records:
            match record:
                case None:
                    self._discard(key)
                case EpochClaimed():
                    self._claim(record)
                case RunClaimed():
                    self.run = record
                case CheckpointPart():
                    self._parts.setdefault(record.checkpoint_id, {})[record.part] = record
                case CheckpointCompleted():
                    self._complete(record)
                case CommandExecuted():
                    self.executed[record.offset] = record
                case JobStopping():
                    self.stopping = record
                case JobFinished():
                    self.finished = record
                case CheckpointPrepared():
                    self._prepare(record)
                case Forked():
                    self.forked = record
                case SchemaUsed():
                    self.schemas[key] = record

    def _claim(self, record: EpochClaimed) -> None:
        self.epoch = record.epoch
        self.topic_ids = record.topic_ids
        self.reserved_through = max(self.reserved_through, record.reserved_through)
        self.finished = None
        restored = record.restored_checkpoint_id
        self.completed_through = max(self.completed_through, restored)
        if restored == NO_CHECKPOINT:
            self.lineage = []
        elif restored in self.lineage:
            del self.lineage[self.lineage.index(restored) + 1 :]
        elif restored in self.checkpoints:  # a retained one of an abandoned lineage
            self.lineage = [restored]
        else:  # discarded since, and compacted away: others of its line may have been kept
            self.lineage = [n for n in self.lineage if n < restored]

    def _prepare(self, record: CheckpointPrepared) -> None:
        """Its completion writes its parts again: compaction may have taken these away before their header."""
        if len(self._parts.get(record.checkpoint_id, {})) == record.parts:
            self.prepared[record.checkpoint_id] = Prepared(record, self._subtasks(record))
        self.reserved_through = max(self.reserved_through, record.reserved_through)

    def _subtasks(self, record: CheckpointCompleted | CheckpointPrepared) -> Mapping[SubtaskId, SubtaskSnapshot]:
        found = self._parts.pop(record.checkpoint_id, {})
        parts = {part: found[part] for part in found if part < record.parts}  # as prepared it may have had more
        if sorted(parts) != list(range(record.parts)):
            raise JobRefused(
                f"checkpoint {record.checkpoint_id} names {record.parts} parts and the checkpoint log holds"
                f" {sorted(parts)}: the log is damaged; start from another checkpoint or with --fresh"
            )
        subtasks: dict[SubtaskId, SubtaskSnapshot] = {}
        for _, part in sorted(parts.items()):
            for snapshot in part.subtasks:
                subtask = SubtaskId(part.operator, snapshot.subtask)
                first = subtasks.get(subtask)  # what its inbox has above a record's size is in further pieces
                subtasks[subtask] = snapshot if first is None else replace(first, inbox=(*first.inbox, *snapshot.inbox))
        return subtasks

    def _complete(self, record: CheckpointCompleted) -> None:
        self.checkpoints[record.checkpoint_id] = Checkpoint(record, self._subtasks(record))
        self.completed_through = max(self.completed_through, record.checkpoint_id)
        insort(self.lineage, record.checkpoint_id)  # a savepoint may complete behind a newer checkpoint
        self.reserved_through = max(self.reserved_through, record.reserved_through)
        self.commands_position = max(self.commands_position, record.commands_position)
        for offset in [o for o in self.executed if o < self.commands_position]:
            del self.executed[offset]

    def _discard(self, key: str) -> None:
        kind, _, rest = key.partition("/")
        number = int(rest) if rest.isdecimal() else None  # of a part, or of what is nobody's, there is none
        if kind == "schema":
            self.schemas.pop(key, None)
        elif kind == STOPPING_KEY:
            self.stopping = None
        elif number is None:
            pass
        elif kind == "checkpoint":
            self.checkpoints.pop(number, None)
            if number in self.lineage:
                self.lineage.remove(number)
        elif kind == "prepared":
            self.prepared.pop(number, None)
        elif kind == "command":
            self.executed.pop(number, None)

    def subsumed_by(self, completing: int, retained: int, *, savepoint: bool) -> list[int]:
        """Return the ids of the checkpoints that ``completing`` subsumes when it completes.

        Not subsumed are savepoints, and the newest checkpoints of the lineage, ``retained`` with ``completing``.
        """
        line = [i for i in self.lineage if not self.checkpoints[i].header.savepoint]
        others = retained if savepoint else retained - 1
        keep = set(line[-others:] if others else [])
        return [i for i, c in self.checkpoints.items() if i not in keep and i != completing and not c.header.savepoint]

    def checkpoint_tombstones(self, checkpoint_ids: Iterable[int], commands_below: int) -> list[Keyed]:
        """Return tombstones that discard these checkpoints, and the executed commands below an offset.

        A checkpoint's header goes first: compaction may stop between two tombstones, and what it leaves must not be a
        header without its parts.
        """
        tombstones: list[Keyed] = []
        for checkpoint_id in checkpoint_ids:
            header = self.checkpoints[checkpoint_id].header
            tombstones.append((checkpoint_key(checkpoint_id), None))
            tombstones += [(f"{checkpoint_key(checkpoint_id)}/{part}", None) for part in range(header.parts)]
        tombstones += [(key_of(c), None) for offset, c in self.executed.items() if offset < commands_below]
        return tombstones

    def prepared_tombstones(self, completing: int = NO_CHECKPOINT, parts: int = 0) -> list[Keyed]:
        """Return tombstones that abort every prepared checkpoint but ``completing``, which keeps its ``parts``."""
        tombstones: list[Keyed] = []
        for checkpoint_id, prepared in self.prepared.items():
            tombstones.append((f"prepared/{checkpoint_id}", None))
            gone = range(parts if checkpoint_id == completing else 0, prepared.header.parts)
            tombstones += [(f"{checkpoint_key(checkpoint_id)}/{part}", None) for part in gone]
        return tombstones

    def stop_tombstone(self) -> list[Keyed]:
        """Return the tombstone of a stop that is finished, or given up; none where there is no stop."""
        return [] if self.stopping is None else [(STOPPING_KEY, None)]

    def locations(self) -> set[str]:
        """Names of every stored state that a checkpoint still names."""
        named: list[Checkpoint | Prepared] = [*self.checkpoints.values(), *self.prepared.values()]
        return set().union(*(checkpoint.locations() for checkpoint in named))


def keyed(*records: CheckpointLogRecord) -> list[Keyed]:
    return [(key_of(record), record) for record in records]
