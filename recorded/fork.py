"""A sandbox job that begins as a copy of another one's checkpoint. The origin is read, and nothing of it is changed.

The copy's checkpoint log begins with ``Forked``, committed under the copy's own transactional id: from then on the name
is this fork's, and no coordinator starts from it. An epoch and the checkpoint follow in one transaction, when all that
they name has been copied.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..checkpoint_log.history import Checkpoint, History, Keyed, keyed
from ..checkpoint_log.restorability import Available, Offsets, missing, schemas_needed_by
from ..client.log_reader import read_log
from ..coordinator.state_owner import claim_states
from ..schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointPart,
    EpochClaimed,
    Forked,
    SchemaUsed,
    SubtaskSnapshot,
    key_of,
)
from ..schemas.codec import encode
from ..schemas.errors import Fenced, JobRefused, PenstockError, PositionUnavailable, TransportError
from ..schemas.graph import DataPartition
from ..schemas.ids import NO_CHECKPOINT, SubtaskId
from ..schemas.settings import JobSettings, OperatorSettings
from ..schemas.topics import TopicNames, TopicSpec
from ..transport.incarnation import incarnation
from ..transport.ports import FencedLog, Partition
from ..transport.state_storage import StateStorage, load_state
from .copying import Copied, Copying, offsets_to_read
from .job import ASK_TIMEOUT_S, RecordedJob

Telling = Callable[[str, int, int], None]
"""Told what is being copied, how much of it has been, and how much there is."""


@dataclass(frozen=True)
class ForkedJob:
    """What a fork has made."""

    job: str
    prefix: str
    origin: str
    checkpoint_id: int
    topics: tuple[str, ...]
    records: int
    """How many were written to them, the checkpoint log aside."""
    states: int
    """How many states were copied in state storage."""


def fork(
    origin: RecordedJob,
    name: str,
    checkpoint_id: int,
    *,
    prefix: str | None = None,
    savepoint: bool = False,
    state_storage: str | None = None,
    tell: Telling = lambda what, done, total: None,
) -> ForkedJob:
    """Makes the job ``name``, under ``prefix`` (the origin's unless told), on a copy of a checkpoint of ``origin``.

    ``state_storage`` is the URL that the job keeps its large states under; the copy gets files of its own in its own
    folder there. Whether the origin runs does not matter: it is not touched, not fenced, and never waits.

    Raises JobRefused where there is a job ``name``, where the checkpoint or a topic of the origin is not there,
    where a fork cannot be, or where somebody else begins a job of that name meanwhile; PositionUnavailable where the
    log lacks what the checkpoint reads. What fails behind that leaves nothing, or says what is left.
    """
    return _Fork(
        origin, TopicNames(prefix or origin.topics.prefix, name), checkpoint_id, savepoint, state_storage
    ).make(tell)


class _Fork:
    def __init__(
        self, origin: RecordedJob, copy: TopicNames, checkpoint_id: int, savepoint: bool, state_storage: str | None
    ) -> None:
        self._origin, self._copy, self._transport = origin, copy, origin.transport
        self._check_free()
        self._checkpoint = checkpoint = origin.checkpoint(checkpoint_id, savepoint=savepoint)
        self._states = dict(sorted(checkpoint.stored().items()))
        self._check_driver()
        self._state_storage = state_storage
        self._stored: list[str] = []
        """What stands, or may stand, in the copy's folder."""
        self._from_storage = StateStorage(state_storage, origin.topics.root)
        self._to_storage = StateStorage(state_storage, copy.root)
        if self._states and state_storage is None:
            raise JobRefused(
                f"checkpoint {checkpoint.id} of job {origin.name} has states in state storage"
                f" ({len(self._states)}, {min(self._states)} first), which the job file names:"
                " name it with --job FILE.py, or --state-storage URL"
            )
        self._made = ""
        """The incarnation of the copy that was made here."""
        """Of the copy's checkpoint log, once there is one."""
        self._parallelism, self._edges = layout(checkpoint)
        self._check_there()

    def make(self, tell: Telling) -> ForkedJob:
        specs = self._copy.specs(self._parallelism, self._edges)
        log = self._begin(next(spec for spec in specs if spec.name == self._copy.checkpoints))
        try:
            self._transport.create_topics(specs)
            copied = self._copy_records(tell)
            self._copy_states(tell)
            self._require_same_origin()
            self._commit(log, copied)
        except BaseException as error:
            if type(error) is Fenced or not self._is_ours():  # whose topics they are now is not known here
                raise self._taken("has been purged, or begun by another process, meanwhile") from error
            self._undo(error)
            raise
        finally:
            log.close()
        return ForkedJob(
            self._copy.job, self._copy.prefix, self._origin.name, self._checkpoint.id,
            tuple(spec.name for spec in specs), copied.records, len(self._states),
        )  # fmt: skip

    def _begin(self, checkpoints: TopicSpec) -> FencedLog:
        """Takes the name: whoever comes second, another fork or a start, finds ``Forked`` in the log.

        Two that look at once are told apart by the claim. What fails here deletes nothing: it might be another's.
        """
        origin, at = self._origin, Partition(checkpoints.name, 0)
        begins_here = "is being begun by another process"
        try:
            self._transport.create_topics([checkpoints])
            self._made = incarnation(self._transport, self._copy, ASK_TIMEOUT_S)
            if self._transport.read_all(at, ASK_TIMEOUT_S):
                raise self._taken(begins_here)
            log = self._transport.claim_log(checkpoints.name, self._copy.transactional_id)
            if self._transport.read_all(at, ASK_TIMEOUT_S):
                log.close()
                raise self._taken(begins_here)
            forked = Forked(origin.topics.prefix, origin.name, self._checkpoint.id, int(time.time() * 1000))
            log.commit([(key_of(forked), encode(forked))])
        except TransportError as error:
            if type(error) is Fenced:
                raise self._taken(begins_here) from error
            error.add_note(f"topic {checkpoints.name} may be left, empty: purge it (penstock purge {self._copy.job})")
            raise
        return log

    def _taken(self, how: str) -> JobRefused:
        return JobRefused(
            f"job {self._copy.job!r} under prefix {self._copy.prefix!r} {how}. Choose another name; or, where nobody is"
            f" at it, purge it (penstock purge {self._copy.job})"
        )

    def _require_ours(self) -> None:
        if not self._is_ours():
            raise Fenced(f"{self._copy.checkpoints} is not the topic that this fork has made")

    def _is_ours(self) -> bool:
        """Whether the copy's topics are those that were made here: a fork under way can be purged like any job."""
        try:
            return incarnation(self._transport, self._copy, ASK_TIMEOUT_S) == self._made
        except TransportError:  # taking back what was made will say so
            return True

    def _require_same_origin(self) -> None:
        """What has been read was the origin's; not that of a job which has taken its name since."""
        there = incarnation(self._transport, self._origin.topics, ASK_TIMEOUT_S)
        if there != self._origin.history.topic_ids.get(self._origin.topics.checkpoints, there):
            raise JobRefused(
                f"job {self._origin.name} was purged while it was copied: there is nothing left of it to fork"
            )

    # ---- before anything is made

    def _check_free(self) -> None:
        there = self._transport.list_topics(self._copy.root, ASK_TIMEOUT_S)
        if there:
            job = self._copy.job
            raise JobRefused(
                f"there is a job {job!r} under prefix {self._copy.prefix!r} already ({', '.join(there[:3])}): choose"
                f" another name, or purge it (penstock purge {job})"
            )

    def _check_driver(self) -> None:
        if self._checkpoint.header.committer:
            raise JobRefused(
                f"checkpoint {self._checkpoint.id} of job {self._origin.name} belongs to a Structured Streaming query,"
                " whose own checkpoint in Spark says what comes next: it cannot be copied from here"
            )

    def _check_there(self) -> None:
        topics = self._origin.topics
        needed = [spec.name for spec in topics.specs(self._parallelism, self._edges)]
        there = self._transport.describe_topics(needed, ASK_TIMEOUT_S)
        gone = [topic for topic in needed if topic not in there and topic != topics.status]
        if gone:
            raise JobRefused(
                f"job {self._origin.name} lacks {', '.join(gone)}, which checkpoint {self._checkpoint.id} reads"
                " (or this user may not see it): what it held cannot be copied"
            )
        lacks = missing(topics, self._checkpoint, self._available())
        if lacks is not None:
            raise PositionUnavailable(
                f"checkpoint {self._checkpoint.id} of job {self._origin.name} needs {lacks}. Fork a newer"
                f" checkpoint, or a savepoint (penstock checkpoints {self._origin.name})"
            )

    def _available(self) -> Available:
        topics = self._origin.topics
        events = {s: self._origin.events(s) for s in self._checkpoint.subtasks}
        data = {
            DataPartition(sender, SubtaskId(receiver, i)): Partition(topics.data(sender, receiver), i)
            for sender, receiver in self._edges
            for i in range(self._parallelism[receiver])
        }
        there = self._transport.offsets([*events.values(), *data.values(), self._origin.acks], ASK_TIMEOUT_S)
        return Available(
            Offsets(*there[self._origin.acks]),
            {subtask: Offsets(*there[partition]) for subtask, partition in events.items()},
            {which: Offsets(*there[partition]) for which, partition in data.items()},
        )

    # ---- the copy

    def _copy_records(self, tell: Telling) -> Copied:
        total, done = offsets_to_read(self._checkpoint), 0

        def progress(offsets: int) -> None:
            nonlocal done
            done += offsets
            tell("records", done, max(done, total))

        tell("records", 0, total)
        self._require_ours()
        return Copying(self._transport, self._origin.topics, self._copy, self._checkpoint, progress).run()

    def _copy_states(self, tell: Telling) -> None:
        """Into the copy's own folder: neither job's discards or purge then reach the other's files."""
        self._require_ours()
        if self._states:
            operators = tuple(OperatorSettings(name, count) for name, count in self._parallelism.items())
            settings = JobSettings(
                self._copy.job, operators, prefix=self._copy.prefix, state_storage=self._state_storage
            )
            claim_states(settings, self._transport, self._to_storage, ASK_TIMEOUT_S)
        for number, (location, handle) in enumerate(self._states.items(), 1):
            self._stored.append(location)
            self._to_storage.put(location, load_state(self._from_storage, handle))
            tell("states", number, len(self._states))

    def _commit(self, log: FencedLog, copied: Copied) -> None:
        origin, header = self._origin, self._checkpoint.header
        names = [spec.name for spec in self._copy.specs(self._parallelism, self._edges)]
        described = self._transport.describe_topics(names, ASK_TIMEOUT_S)
        claimed = EpochClaimed(
            header.epoch,
            header.rescaled_from,  # none, unless the checkpoint was derived in the very claim of its epoch
            header.checkpoint_id if header.rescaled_from == NO_CHECKPOINT else header.checkpoint_id + 1,
            header.reserved_through,
            {name: info.topic_id for name, info in described.items()},
            f"fork-{uuid.uuid4().hex}",
            f"forked from checkpoint {header.checkpoint_id} of job {origin.topics.root[:-1]}",
        )
        records = keyed(claimed, *self._schemas(), *self._parts(copied), self._header(copied))
        log.commit([(key, None if record is None else encode(record)) for key, record in records])

    def _parts(self, copied: Copied) -> list[CheckpointPart]:
        """The origin's own, subtask by subtask with the copy's offsets: so none grows above a record's size."""
        n = self._checkpoint.id
        log = Partition(self._origin.topics.checkpoints, 0)
        parts = _parts_in(read_log(self._origin.name, self._transport, log, 60.0), n)
        if sorted(parts) != list(range(self._checkpoint.header.parts)):
            raise JobRefused(
                f"checkpoint {n} of job {self._origin.name} was discarded while it was copied: take a savepoint"
                f" (penstock savepoint {self._origin.name}) and fork that"
            )
        moved = []
        for _, part in sorted(parts.items()):
            snapshots = tuple(_moved(s, copied.subtasks[SubtaskId(part.operator, s.subtask)]) for s in part.subtasks)
            moved.append(replace(part, subtasks=snapshots))
        return moved

    def _schemas(self) -> list[SchemaUsed]:
        """The user's Avro schemas under which what is copied was written; here none is in use behind its epoch."""
        log, epoch = Partition(self._origin.topics.checkpoints, 0), self._checkpoint.header.epoch
        history = History.of(read_log(self._origin.name, self._transport, log, 60.0))
        used_then = schemas_needed_by(history, self._checkpoint)
        return [replace(used, last_epoch=min(used.last_epoch, epoch), run="") for used in used_then]

    def _header(self, copied: Copied) -> CheckpointCompleted:
        header = self._checkpoint.header
        return replace(
            header,
            operators=tuple(replace(o, inbox_position=copied.inbox_position) for o in header.operators),
            commands_position=copied.inbox_position,
            acks_position=copied.acks_end,
            discarded=(),
        )

    # ---- where it fails

    def _undo(self, error: BaseException) -> None:
        """Takes back what was made. Where that fails too, the error says what is left."""
        try:
            if self._stored:
                self._to_storage.delete(self._stored)
            self._transport.delete_topics(self._transport.list_topics(self._copy.root, ASK_TIMEOUT_S))
        except PenstockError as again:
            error.add_note(
                f"job {self._copy.job} is left half made ({again}): purge it (penstock purge {self._copy.job})"
            )


def _moved(piece: SubtaskSnapshot, whole: SubtaskSnapshot) -> SubtaskSnapshot:
    """One piece of a subtask's snapshot, with the copy's offsets: the rest of a large inbox follows in pieces."""
    return replace(
        whole,
        state=piece.state,
        inbox=piece.inbox,
        event_ranges=whole.event_ranges if piece.event_ranges else (),
        data_positions=whole.data_positions if piece.data_positions else (),
    )


def layout(checkpoint: Checkpoint) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The partitions of each operator's events, and the edges (sender, receiver), as a checkpoint tells them."""
    parallelism = {operator.operator: operator.parallelism for operator in checkpoint.header.operators}
    edges: dict[tuple[str, str], None] = {}
    for operator in checkpoint.header.operators:
        edges |= {(given.upstream, operator.operator): None for given in operator.inputs}
    for subtask, snapshot in checkpoint.subtasks.items():  # a rescaling keeps what is owed to subtasks that are gone
        parallelism[subtask.operator] = max(parallelism.get(subtask.operator, 0), subtask.index + 1)
        edges |= {(p.sender.operator, subtask.operator): None for p in snapshot.data_positions}
    return parallelism, [edge for edge in edges if edge[0] in parallelism]


def _parts_in(log: list[Keyed], checkpoint_id: int) -> dict[int, CheckpointPart]:
    """The parts of a completed checkpoint; none where it has been discarded."""
    parts: dict[int, CheckpointPart] = {}
    header: CheckpointCompleted | None = None
    for key, record in log:
        if record is None and key == f"checkpoint/{checkpoint_id}":
            header = None
        elif isinstance(record, CheckpointPart) and record.checkpoint_id == checkpoint_id:
            parts[record.part] = record
        elif isinstance(record, CheckpointCompleted) and record.checkpoint_id == checkpoint_id:
            header = record
    return {} if header is None else {n: part for n, part in parts.items() if n < header.parts}
