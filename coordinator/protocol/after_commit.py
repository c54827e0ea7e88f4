"""What goes on once the records of a commit stand: plain values, so that a state can be printed and compared.

Each is made where the records are, and acted on in :mod:`.core`, which knows the module that each belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...checkpoint_log.history import Checkpoint, Keyed
from ...schemas.checkpoints import CommandExecuted
from ...schemas.status import BatchPlanned, Ending


@dataclass(frozen=True, slots=True)
class NoFollowUp:
    """Nothing follows but what is due anyway."""


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """The claim of the epoch stands."""

    first_checkpoint_id: int


@dataclass(frozen=True, slots=True)
class FinishCatchUp:
    """The run that was found while catching up is claimed: the epoch begins to run."""


@dataclass(frozen=True, slots=True)
class Complete:
    """A checkpoint of this epoch is complete. ``gone`` went with its commit."""

    checkpoint_id: int
    gone: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class CompleteBatch:
    """A checkpoint of this epoch that a query has decided is complete."""

    checkpoint_id: int
    gone: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class CompleteEarlierBatch:
    """A checkpoint that an earlier epoch prepared, and a query has decided, is complete."""

    checkpoint_id: int
    gone: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class AwaitDecision:
    """A checkpoint is prepared: the query decides about it."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AnswerQuery:
    """The query's run is claimed."""

    answer: BatchPlanned


@dataclass(frozen=True, slots=True)
class BeginQueryAnew:
    """Every prepared checkpoint is aborted. ``locations`` are those of their states."""

    locations: frozenset[str]


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """Outcome of a command: committed first, then answered."""

    executed: CommandExecuted
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class AnswerCommands:
    """Their outcomes stand."""

    outcomes: tuple[CommandOutcome, ...]


@dataclass(frozen=True, slots=True)
class ForgetDiscarded:
    """The checkpoint that the command at ``command`` (an offset) gave up is gone."""

    command: int
    gone: Checkpoint


@dataclass(frozen=True, slots=True)
class EndJob:
    """The end of the job stands. ``command``: offset of the command that asked for it, or None."""

    ending: Ending
    cause: str
    command: int | None = None


AfterCommit = (
    NoFollowUp
    | BeginEpoch
    | FinishCatchUp
    | Complete
    | CompleteBatch
    | CompleteEarlierBatch
    | AwaitDecision
    | AnswerQuery
    | BeginQueryAnew
    | AnswerCommands
    | ForgetDiscarded
    | EndJob
)


@dataclass(frozen=True, slots=True)
class Committing:
    """A commit under way."""

    records: tuple[Keyed, ...]
    then: AfterCommit
