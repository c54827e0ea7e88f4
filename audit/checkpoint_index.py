"""What the checkpoint log says, as the other partitions are judged by it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..schemas.checkpoints import CheckpointCompleted, CheckpointPrepared, SubtaskSnapshot
from ..schemas.ids import NO_CHECKPOINT, SubtaskId
from ..schemas.state import StateHandle


@dataclass(slots=True)
class EpochFacts:
    """One epoch, from its claim."""

    number: int
    instance: str
    restored: int
    """The checkpoint it restored, or -1."""
    first_id: int
    """Checkpoint ids below it are not its own."""
    reserved_through: int
    """Nor are those above this one."""
    completed: set[int] = field(default_factory=set)
    """Checkpoints that were completed while it was the current one."""


@dataclass(frozen=True, slots=True)
class KnownCheckpoint:
    """A checkpoint that is completed, or prepared (section 10), with where its records stand."""

    header: CheckpointCompleted | CheckpointPrepared
    offset: int
    """Of the header in the checkpoint log."""
    subtasks: Mapping[SubtaskId, SubtaskSnapshot]
    """States are stripped to what tells them apart: see :func:`stripped`."""
    inbox: Mapping[SubtaskId, int] = field(default_factory=dict)
    """How many events that its coordinators had yet to be handed it holds itself, by sender."""
    copied: bool = False
    """It came with the history of another job: its acks and markers stand there."""

    @property
    def id(self) -> int:
        return self.header.checkpoint_id

    @property
    def by_query(self) -> bool:
        return isinstance(self.header, CheckpointPrepared) or bool(self.header.committer)

    @property
    def derived(self) -> bool:
        """Whether a rescaling has made it of another: then nobody took it, and nobody acknowledged it."""
        return isinstance(self.header, CheckpointCompleted) and self.header.rescaled_from != NO_CHECKPOINT

    @property
    def taken_here(self) -> bool:
        """Whether its acks and markers stand in the job's own logs."""
        return not self.copied and not self.derived

    @property
    def is_savepoint(self) -> bool:
        return isinstance(self.header, CheckpointCompleted) and self.header.savepoint

    @property
    def inbox_position(self) -> int:
        return min((operator.inbox_position for operator in self.header.operators), default=0)

    def parallelism(self, operator: str) -> int:
        return next((o.parallelism for o in self.header.operators if o.operator == operator), 0)


@dataclass(slots=True)
class LogFacts:
    """The checkpoint log, folded."""

    forked: bool = False
    """The history begins with a copy."""
    whole: bool = True
    """False where compaction, or a copy, has taken away what once stood there: what is missing then proves nothing."""
    epochs: dict[int, EpochFacts] = field(default_factory=dict)
    last_epoch: int = 0
    checkpoints: dict[int, KnownCheckpoint] = field(default_factory=dict)
    """Completed ones, also those that were discarded since, as far as they still stand in the log."""
    prepared: dict[int, KnownCheckpoint] = field(default_factory=dict)
    """Every one that ever was."""
    kept: set[int] = field(default_factory=set)
    """Completed and not discarded."""
    undecided: set[int] = field(default_factory=set)
    """Prepared, neither completed nor aborted."""
    lineage: list[int] = field(default_factory=list)
    """Ids of the lineage, ascending."""
    runs: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Offset of a RunStarted in the acks topic to its run, and to where that was claimed."""
    commands: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Likewise executed commands."""
    commands_position: int = 0
    """Every command below this offset of the acks topic has been executed, whichever line the job went on from."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    claim_offset: int = 0
    """Of the newest claim in the log."""

    @property
    def last(self) -> KnownCheckpoint | None:
        return self.checkpoints.get(self.lineage[-1]) if self.lineage else None

    @property
    def last_id(self) -> int:
        return self.lineage[-1] if self.lineage else NO_CHECKPOINT

    @property
    def by_query(self) -> bool:
        """Whether a Structured Streaming query drives the job."""
        return bool(self.prepared) or any(c.by_query for c in self.checkpoints.values())

    def named(self) -> list[KnownCheckpoint]:
        """Completed ones, and those a query has yet to decide about."""
        return [*self.checkpoints.values(), *(self.prepared[n] for n in self.undecided if n in self.prepared)]


def stripped(snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
    """The same with a digest in place of an inline state, so that memory does not grow with states."""
    return replace(snapshot, state=digest_of(snapshot.state))


def digest_of(state: StateHandle | None) -> StateHandle | None:
    if state is None or state.inline is None:
        return state
    return replace(state, inline=hashlib.blake2b(state.inline, digest_size=16).digest())
