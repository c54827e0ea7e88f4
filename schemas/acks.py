"""Records of a job's acks topic: to the coordinator, in one order for the whole job (protocol, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from .ids import NO_ATTEMPT, NO_CHECKPOINT, SubtaskId
from .state import ChannelPosition, Segment, Sender, StateHandle


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Written by a runner before its tasks start; the newest run owns the job."""

    run: Annotated[str, "id of the run, unique"]
    host: Annotated[str, "where the runner runs, for people"]


@dataclass(frozen=True, slots=True)
class SchemaDigest:
    """Under which Avro schema an instance writes."""

    subject: Annotated[str, "events, state or output"]
    digest: Annotated[str, "name of the schema, as in the checkpoint log"]


@dataclass(frozen=True, slots=True)
class Hello:
    """An instance asks for its Start; the offset of this record is its attempt id."""

    operator: Annotated[str, "operator of the subtask"]
    subtask: Annotated[int, "index of the subtask"]
    run: Annotated[str, "run that the instance belongs to"]
    nonce: Annotated[str, "unique to this Hello; Start and Stop echo it"]
    task: Annotated[str, "what the runner calls the task that hosts the instance; a failure hint names it"]
    host: Annotated[str, "where the instance runs, for people"]
    layout: Annotated[dict[str, int], "parallelism of each of the job's operators, as the instance was told"]
    protocol: Annotated[int, "version of the protocol that it speaks"]
    previous: Annotated[int, "newest attempt that this instance has been; -1: none"] = NO_ATTEMPT
    release: Annotated[str, "its release of Penstock, for people"] = ""
    schemas: Annotated[tuple[SchemaDigest, ...], "Avro schemas under which it writes"] = ()
    completed: Annotated[int, "newest checkpoint that it was told is complete; -1: none"] = NO_CHECKPOINT

    @property
    def subtask_id(self) -> SubtaskId:
        return SubtaskId(self.operator, self.subtask)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life, with what has been handled so far."""

    sender: Annotated[Sender, "the attempt"]
    handled_through: Annotated[int, "sequence of the first event not yet handled"]
    step: Annotated[str, "what the instance is doing, for people"]
    step_age_ms: Annotated[int, "for how long it has been doing that"]
    aligning: Annotated[bool, "true while an alignment, a restore or a stop holds back its events"]
    metrics: Annotated[dict[str, float], "the subtask's own metrics; sent with the periodic heartbeats only"]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The snapshot stands, its upload goes on: events held for it may go."""

    sender: Annotated[Sender, "the attempt"]
    checkpoint_id: Annotated[int, "the checkpoint"]


@dataclass(frozen=True, slots=True)
class CheckpointAck:
    """One subtask's part of a checkpoint is safe."""

    sender: Annotated[Sender, "the attempt"]
    checkpoint_id: Annotated[int, "the checkpoint"]
    state: Annotated[StateHandle | None, "the subtask's state, null where it has none"]
    event_position: Annotated[int, "offset in the events partition behind what the state contains"]
    event_ranges: Annotated[tuple[Segment, ...], "ranges of the events partition that belong to the checkpoint"]
    handled_through: Annotated[int, "sequence of the first event not in the state"]
    sent_sequence: Annotated[int, "sequence of the first event to the coordinator that the state does not contain"]
    data_positions: Annotated[tuple[ChannelPosition, ...], "positions in the data partitions"]
    finished: Annotated[bool, "the subtask's work has ended before this snapshot"]
    duration_ms: Annotated[int, "from the marker to this record"]
    inputs_ended: Annotated[bool, "the user has been told, before this snapshot, that every input has ended"] = False


@dataclass(frozen=True, slots=True)
class CheckpointDecline:
    """This subtask cannot take part in the checkpoint; the checkpoint is aborted."""

    sender: Annotated[Sender, "the attempt"]
    checkpoint_id: Annotated[int, "the checkpoint"]
    reason: Annotated[str, "why, for people"]
    not_stored: Annotated[bool, "whether state storage did not take its state"] = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt's user code raised, or the attempt found its input broken."""

    sender: Annotated[Sender, "the attempt"]
    cause: Annotated[str, "the error, for people"]
    missing: Annotated[int, "sequence of the event of this epoch that it missed in its events partition; -1: none"] = -1


@dataclass(frozen=True, slots=True)
class Refused:
    """The attempt cannot work with this coordinator, whoever tries again: the job fails with this cause."""

    sender: Annotated[Sender, "the attempt"]
    cause: Annotated[str, "what does not fit, and what to upgrade, for people"]


@dataclass(frozen=True, slots=True)
class Finished:
    """The subtask has nothing left to do; it waits for a checkpoint that contains its end."""

    sender: Annotated[Sender, "the attempt"]


@dataclass(frozen=True, slots=True)
class OperatorEventFrame:
    """Many events from one subtask to its coordinator, in the order they were sent."""

    sender: Annotated[Sender, "the attempt"]
    belongs_to: Annotated[int, "lowest checkpoint id whose snapshot by this subtask can contain these events"]
    sequence: Annotated[int, "sequence of the first event, per attempt and generation, from 0"]
    count: Annotated[int, "how many events"]
    lengths: Annotated[bytes, "each event's length, unsigned 32-bit little-endian"]
    payload: Annotated[bytes, "the events end to end"]


class CommandKind(StrEnum):
    """What a person or program may ask of a running job."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    STOP_WITH_SAVEPOINT = "stop_with_savepoint"
    REQUEST = "request"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class Command:
    """Asks the coordinator for something; the reply goes to the status topic."""

    command: Annotated[str, "id of this command, unique; the reply names it"]
    kind: Annotated[CommandKind, "what is asked"]
    operator: Annotated[str, "operator that a request is for, else empty"]
    payload: Annotated[bytes, "the request; of a discard the checkpoint's id, in decimal digits; else empty"]
    issuer: Annotated[str, "who asks, for people"]


@dataclass(frozen=True, slots=True)
class FailureHint:
    """A runner saw an attempt's task die: the failure detector need not wait."""

    operator: Annotated[str, "operator of the subtask"]
    subtask: Annotated[int, "index of the subtask"]
    run: Annotated[str, "run that the task belonged to"]
    task: Annotated[str, "what the runner calls the task that died, as in Hello"]
    cause: Annotated[str, "what the runner knows, for people"]

    def names(self, hello: Hello) -> bool:
        """Whether the task that died is the one that said this."""
        return (self.run, self.task) == (hello.run, hello.task)


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeat:
    """The coordinator's own heartbeat: silence is measured against those that did arrive."""

    epoch: Annotated[int, "epoch of the coordinator"]
    instance: Annotated[str, "unique to the coordinator instance"]


@dataclass(frozen=True, slots=True)
class BatchWanted:
    """A query asks for its next micro-batch. Its first request in an epoch is the Hello of every subtask at once."""

    run: Annotated[str, "run of the query, unique; the newest run owns the job"]
    run_offset: Annotated[int, "offset of its RunStarted in the acks topic: what makes a run the newer one"]
    request: Annotated[int, "number of the request within the run, from 0; repeated under the same number"]
    checkpoint_id: Annotated[int, "checkpoint of the last batch that Spark has committed, or -1"]
    fresh: Annotated[bool, "with -1: begin anew, whatever checkpoints the job has"]
    wait_ms: Annotated[int, "how long the answer may be put off while there is nothing new"]
    always: Annotated[bool, "plan a batch though there is nothing new"]
    query: Annotated[str, "what asks, for people"]
    history: Annotated[str, "id of the job's checkpoint topic: another one in another life of the job"]


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """Spark has durably committed the batch of a checkpoint, and nobody has asked for the next one yet."""

    checkpoint_id: Annotated[int, "checkpoint of that batch"]
    history: Annotated[str, "id of the job's checkpoint topic: another one in another life of the job"]


@dataclass(frozen=True, slots=True)
class BatchEventFrame:
    """Events from one task of a batch to a coordinator; they count where a :class:`BatchEvents` names their writer."""

    checkpoint_id: Annotated[int, "checkpoint of the batch"]
    operator: Annotated[str, "operator whose coordinator they are for"]
    subtask: Annotated[int, "subtask that they come from"]
    writer: Annotated[str, "unique to one attempt of a task and one subtask"]
    sequence: Annotated[int, "sequence of the first event of this writer, from 0"]
    count: Annotated[int, "how many events"]
    lengths: Annotated[bytes, "each event's length, unsigned 32-bit little-endian"]
    payload: Annotated[bytes, "the events end to end"]


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """One writer of a batch, and how much it wrote."""

    subtask: Annotated[int, "subtask that the events come from"]
    writer: Annotated[str, "as in its frames"]
    count: Annotated[int, "how many events"]


@dataclass(frozen=True, slots=True)
class BatchEvents:
    """What a batch sent to a coordinator: replaces an earlier one of the same batch and operator."""

    checkpoint_id: Annotated[int, "checkpoint of the batch"]
    operator: Annotated[str, "operator whose coordinator they are for"]
    writers: Annotated[tuple[BatchWriter, ...], "in the order in which their events are handed over"]
    history: Annotated[str, "id of the job's checkpoint topic: another one in another life of the job"]


FEED_NAME_CHARS_MAX = 64
"""Characters of each name in a :class:`FeedPart`: so a checkpoint's record holds all positions. Spark's ids have 36."""


@dataclass(frozen=True, slots=True)
class FeedPart:
    """A part of a batch that a query sends to a coordinator of a job which it does not drive (section 10.9)."""

    operator: Annotated[str, "operator whose coordinator it is for"]
    query: Annotated[str, "Spark's id of the query, the same after a restart from its checkpointLocation"]
    batch: Annotated[int, "Spark's id of the batch, ascending within the query"]
    sender: Annotated[str, "unique to one writing of the batch; the reply names it"]
    part: Annotated[int, "number of this part, from 0"]
    parts: Annotated[int, "how many parts the batch has"]
    size: Annotated[int, "bytes of lengths and payload of all parts"]
    history: Annotated[str, "id of the job's checkpoint topic: another one in another incarnation of the job"]
    count: Annotated[int, "how many events"]
    lengths: Annotated[bytes, "each event's length, unsigned 32-bit little-endian"]
    payload: Annotated[bytes, "the events end to end"]


FromAttempt = (
    Heartbeat | SnapshotTaken | CheckpointAck | CheckpointDecline | Failed | Refused | Finished | OperatorEventFrame
)
"""Records that count only while their sender is the current attempt in its current generation."""

FromQuery = BatchWanted | BatchCommitted | BatchEventFrame | BatchEvents
"""Records of a Structured Streaming query that drives the job (section 10)."""

AcksRecord = FromAttempt | FromQuery | FeedPart | RunStarted | Hello | Command | FailureHint | CoordinatorHeartbeat
"""Whatever may stand in the acks partition."""
