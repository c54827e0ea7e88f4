"""Records of a job's checkpoint log: written by the coordinator alone, in transactions (protocol, sections 3 and 4).

A checkpoint is one :class:`CheckpointCompleted` and, in the same transaction, the :class:`CheckpointPart` records that
it counts, so that no record grows with the parallelism. A tombstone under a checkpoint's key is its committed discard.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from .graph import Partitioning
from .ids import NO_CHECKPOINT
from .state import ChannelPosition, Segment, StateHandle
from .user_schemas import digest_of


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """A new epoch begins, from the checkpoint it restores. Written again within it when its block of ids is used up."""

    epoch: Annotated[int, "the epoch"]
    restored_checkpoint_id: Annotated[int, "checkpoint that it restores, or -1: it is the last completed one now"]
    first_checkpoint_id: Annotated[int, "ids of this epoch begin here"]
    reserved_through: Annotated[int, "ids up to and including this one may have been used; the next epoch begins above"]
    topic_ids: Annotated[dict[str, str], "id of each of the job's topics, by name: a recreated topic has another"]
    instance: Annotated[str, "unique to the coordinator instance"]
    cause: Annotated[str, "why the epoch began, for people"]


@dataclass(frozen=True, slots=True)
class RunClaimed:
    """From now on only this run's instances are answered."""

    run: Annotated[str, "id of the run"]
    offset: Annotated[int, "offset of its RunStarted in the acks topic"]


@dataclass(frozen=True, slots=True)
class InboxEvents:
    """Events of an inbox range, copied into a savepoint so that it pins no log."""

    belongs_to: Annotated[int, "lowest checkpoint id that can contain them"]
    sequence: Annotated[int, "sequence of the first event"]
    count: Annotated[int, "how many events"]
    lengths: Annotated[bytes, "each event's length, unsigned 32-bit little-endian"]
    payload: Annotated[bytes, "the events end to end"]


@dataclass(frozen=True, slots=True)
class SubtaskSnapshot:
    """One subtask's part of a checkpoint."""

    subtask: Annotated[int, "index of the subtask"]
    attempt: Annotated[int, "attempt that acknowledged"]
    epoch: Annotated[int, "epoch it ran under"]
    generation: Annotated[int, "number of the generation it ran under"]
    ack_offset: Annotated[int, "offset of its CheckpointAck in the acks topic"]
    state: Annotated[StateHandle | None, "its state, null where it has none"]
    event_position: Annotated[int, "offset in the events partition behind what the state contains"]
    event_ranges: Annotated[tuple[Segment, ...], "ranges of the events partition that belong to the checkpoint"]
    handled_through: Annotated[int, "sequence of the first event not in the state"]
    sent_sequence: Annotated[int, "sequence of the first event to the coordinator that the state does not contain"]
    data_positions: Annotated[tuple[ChannelPosition, ...], "positions in the data partitions"]
    finished: Annotated[bool, "the subtask's work has ended before this snapshot"]
    inbox: Annotated[tuple[InboxEvents, ...], "the inbox range itself (savepoints only)"] = ()
    task: Annotated[str, "the task that hosted the attempt, as its Hello names it"] = ""
    inputs_ended: Annotated[bool, "the user had been told, before it, that every input has ended"] = False
    received_sequence: Annotated[int, "sequence of the first event to the coordinator not received at the cut"] = 0


@dataclass(frozen=True, slots=True)
class InputSnapshot:
    """How one input of an operator was spread over its subtasks."""

    upstream: Annotated[str, "the operator whose records it takes"]
    partitioning: Annotated[Partitioning, "to which subtasks a record goes"]


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """How far the batches of a query have had their effect on an operator's coordinator."""

    query: Annotated[str, "Spark's id of the query"]
    batch: Annotated[int, "the highest id of a batch that had its effect before the cut"]


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """What belongs to an operator as a whole."""

    operator: Annotated[str, "the operator"]
    parallelism: Annotated[int, "number of subtasks"]
    coordinator_state: Annotated[StateHandle | None, "the coordinator's state, null where it has none"]
    inbox_position: Annotated[int, "offset in the acks topic of the first record not handed over at the cut"]
    max_parallelism: Annotated[int, "how many key groups there were"]
    inputs: Annotated[tuple[InputSnapshot, ...], "how its inputs were spread"]
    feeds: Annotated[tuple[FeedPosition, ...], "positions of the queries that feed its coordinator"] = ()


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """Some subtasks' parts of a checkpoint."""

    checkpoint_id: Annotated[int, "the checkpoint"]
    part: Annotated[int, "number of this part, from 0"]
    operator: Annotated[str, "the operator"]
    subtasks: Annotated[tuple[SubtaskSnapshot, ...], "the parts"]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The checkpoint is complete: the only moment at which that becomes true is the commit of this record."""

    epoch: Annotated[int, "epoch that completed it"]
    checkpoint_id: Annotated[int, "the checkpoint"]
    savepoint: Annotated[bool, "kept until it is disposed of"]
    triggered_at_ms: Annotated[int, "wall clock of the trigger, milliseconds since 1970"]
    completed_at_ms: Annotated[int, "wall clock of the completion, milliseconds since 1970"]
    parts: Annotated[int, "how many CheckpointPart records of this transaction belong to it"]
    operators: Annotated[tuple[OperatorSnapshot, ...], "coordinator states and inbox positions"]
    commands_position: Annotated[int, "offset in the acks topic below which every command has been executed"]
    discarded: Annotated[tuple[int, ...], "checkpoints that this transaction discards"]
    reserved_through: Annotated[int, "ids up to and including this one may have been used"]
    committer: Annotated[str, "whose commit decided, empty where it was the coordinator's own"] = ""
    acks_position: Annotated[int, "offset in the acks topic behind the record that decided"] = 0
    rescaled_from: Annotated[int, "checkpoint whose states it redistributes, or -1: none"] = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class CheckpointPrepared:
    """Everything of a checkpoint whose completion is decided by somebody else's commit (Structured Streaming)."""

    epoch: Annotated[int, "epoch that prepared it"]
    checkpoint_id: Annotated[int, "the checkpoint"]
    triggered_at_ms: Annotated[int, "wall clock of the trigger, milliseconds since 1970"]
    parts: Annotated[int, "how many CheckpointPart records of this transaction belong to it"]
    operators: Annotated[tuple[OperatorSnapshot, ...], "coordinator states and inbox positions"]
    committer: Annotated[str, "whose commit decides, and by which name it knows the checkpoint"]
    reserved_through: Annotated[int, "ids up to and including this one may have been used"]


@dataclass(frozen=True, slots=True)
class CommandExecuted:
    """A command has had its effect, or its refusal; it is not executed again."""

    offset: Annotated[int, "offset of the command in the acks topic"]
    command: Annotated[str, "its id"]
    accepted: Annotated[bool, "false where it was refused"]
    outcome: Annotated[str, "what came of it, for people"]
    checkpoint_id: Annotated[int, "checkpoint that it led to, or -1"] = NO_CHECKPOINT


class JobOutcome(StrEnum):
    """How a job ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobStopping:
    """A stopping savepoint is complete: no subtask starts again, and the coordinators finish what they have begun."""

    epoch: Annotated[int, "epoch in which it completed"]
    checkpoint_id: Annotated[int, "the savepoint"]

    @property
    def cause(self) -> str:
        """Why subtasks leave and how the job ends, for people."""
        return f"stopped with savepoint {self.checkpoint_id}"


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The job has ended; a later run of the same name resumes from its last completed checkpoint."""

    epoch: Annotated[int, "epoch in which it ended"]
    outcome: Annotated[JobOutcome, "how"]
    cause: Annotated[str, "why, for people"]
    run: Annotated[str, "run that it ended in"]


@dataclass(frozen=True, slots=True)
class Forked:
    """The history begins here with a copy: of one checkpoint of another job, and of what a restore from it reads."""

    prefix: Annotated[str, "prefix of the job it was copied from"]
    job: Annotated[str, "that job"]
    checkpoint_id: Annotated[int, "the checkpoint, which has the same id here"]
    forked_at_ms: Annotated[int, "wall clock of the copy, milliseconds since 1970"]


@dataclass(frozen=True, slots=True)
class SchemaUsed:
    """An Avro schema under which payloads of a user's may have been written, and when."""

    operator: Annotated[str, "operator that writes them"]
    subject: Annotated[str, "events, state or output"]
    schema: Annotated[str, "the schema in JSON, keys sorted"]
    first_epoch: Annotated[int, "epoch in which it was first in use"]
    last_epoch: Annotated[int, "newest epoch in which it was seen in use"]
    run: Annotated[str, "run in that epoch: its tasks may go on to use it; empty where there was none"]


CheckpointLogRecord = (
    EpochClaimed
    | RunClaimed
    | CheckpointPart
    | CheckpointCompleted
    | CheckpointPrepared
    | CommandExecuted
    | JobStopping
    | JobFinished
    | Forked
    | SchemaUsed
)
"""Whatever may stand in the checkpoint log."""


def key_of(record: CheckpointLogRecord) -> str:
    """The compaction key: what a later record of the same key replaces (protocol, section 3)."""
    match record:
        case EpochClaimed():
            return "epoch"
        case RunClaimed():
            return "run"
        case CheckpointPart():
            return f"{checkpoint_key(record.checkpoint_id)}/{record.part}"
        case CheckpointCompleted():
            return checkpoint_key(record.checkpoint_id)
        case CheckpointPrepared():
            return f"prepared/{record.checkpoint_id}"
        case CommandExecuted():
            return f"command/{record.offset}"
        case JobStopping():
            return STOPPING_KEY
        case JobFinished():
            return "finished"
        case Forked():
            return "forked"
        case SchemaUsed():
            return schema_key(record.operator, record.subject, digest_of(record.schema))


STOPPING_KEY = "stopping"
"""A tombstone under it: the stop has been finished, or given up for a start from elsewhere."""


def schema_key(operator: str, subject: str, digest: str) -> str:
    """The key of a schema that is or was in use."""
    return f"schema/{operator}/{subject}/{digest}"


def checkpoint_key(checkpoint_id: int) -> str:
    """The key of a checkpoint's header; a tombstone under it is the checkpoint's committed discard."""
    return f"checkpoint/{checkpoint_id}"
