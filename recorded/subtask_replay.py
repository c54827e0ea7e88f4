"""Recorded events, fed into a user's subtask in a test: what happened in a job happens again, at a desk."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from ..checkpoint_log.start_record import start_of
from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.errors import ConfigurationError, JobRefused, PositionUnavailable, SequenceGap
from ..schemas.events import EventFrame, FailoverPolicy
from ..schemas.ids import NO_ATTEMPT, NO_CHECKPOINT, Generation, SubtaskId
from ..schemas.state import Segment
from ..schemas.topics import TopicNames
from ..subtask_client.activity import Steps
from ..subtask_client.api import Subtask
from ..subtask_client.routing import Router
from ..subtask_client.user_object import Host
from ..transport.ports import Transport
from ..transport.state_storage import StateStorage
from .checkpoint_part import Part, begin_behind, part_of
from .dry_run import DryRun, Judged, Restore, Restored, Verdict
from .exported import Exported
from .job import RecordedJob
from .reading import Gone, LogReading, Recorded
from .start_position import needed_from

if TYPE_CHECKING:
    from ..job import Job, Operator

_logger = logging.getLogger("penstock.replay")


@dataclass(frozen=True)
class Emitted:
    """One record that the subtask emitted, as its receivers would decode it."""

    record: Any
    receivers: tuple[SubtaskId, ...]
    """Subtasks that it would go to."""


@dataclass
class Replayed:
    """A subtask that has been fed, and what it did meanwhile. It is open: go on calling it, and ``close`` it."""

    subtask: Subtask
    checkpoint_id: int
    """The checkpoint that it was restored from; -1: none."""
    events: int = 0
    """How many events it was handed."""
    sent: list[Any] = field(default_factory=list)
    """What it sent to its coordinator, as that would decode it."""
    emitted: list[Emitted] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Its own metrics after the last event."""

    def close(self) -> None:
        """Closes the user's object; what that raises goes through."""
        self.subtask.close()


def replay(
    job: Job,
    operator: str,
    subtask: int,
    source: Transport | str | PathLike[str],
    *,
    checkpoint: int | None = None,
    events_max: int | None = None,
    recorded_as: str | None = None,
) -> Replayed:
    """Feeds what a job's log holds for one subtask into a new object of the operator's ``subtask`` class.

    ``source`` is where the events were recorded: a transport (:class:`~penstock.transport.MemoryTransport`, or
    :class:`~penstock.transport.KafkaTransport`), or a file that ``penstock events JOB OPERATOR --json`` wrote.
    ``checkpoint`` is restored first, and the events behind it are those that its epoch sent since; a file has it where
    it was written with ``--from-checkpoint``. Without one the object begins empty, with the first event of the newest
    epoch. ``events_max`` ends the replay after so many events. ``recorded_as`` is the recorded job's name, where that
    is not the given job's.

    The object is made, opened, restored and handed its events in their order, through the operator's codecs, as an
    attempt is; ``poll``, snapshots and inputs are left to the test. Nothing reaches a log.

    Raises what the object raises (a note says at which event), :class:`ConfigurationError` for an operator, subtask,
    checkpoint or file that is not there, :class:`SequenceGap` where the recording lacks events,
    :class:`PositionUnavailable` where the log no longer reaches back so far.
    """
    if operator not in job.operators:
        known = ", ".join(job.operators) or "none"
        raise ConfigurationError(f"job {job.name!r} has no operator {operator!r}; it has: {known}")
    declared = job.operators[operator]
    if not 0 <= subtask < declared.parallelism:
        raise ConfigurationError(f"operator {operator!r} has no subtask {subtask}: it has {declared.parallelism}")
    who = SubtaskId(operator, subtask)
    recording: _Recording
    if isinstance(source, str | PathLike):
        recording = _InFile(Exported(fspath(source)), who)
    else:
        recording = _OnTransport(source, recorded_as or job.name, job.prefix, who)
    begun = _begun(recording, who, declared.settings.on_failover, checkpoint)
    feeding = _Feeding(job, declared, who, recorded_as or job.name, recording.schemas())
    return feeding.feed(begun, recording.records(begun.begin), events_max)


class _Recording:
    """Where a subtask's events come from."""

    where: str
    first_offset: int
    end_offset: int

    def part(self, checkpoint_id: int) -> Part:
        """The subtask's part of a checkpoint; ConfigurationError where there is none."""
        raise NotImplementedError

    def schemas(self) -> Iterable[tuple[str, str]]:
        """Subject and text of each Avro schema that the operator's events and states were written under."""
        raise NotImplementedError

    def records(self, begin: int) -> Iterator[Recorded]:
        """From ``begin`` on; PositionUnavailable where that is gone."""
        raise NotImplementedError


class _OnTransport(_Recording):
    def __init__(self, transport: Transport, name: str, prefix: str, who: SubtaskId) -> None:
        try:
            self._job = RecordedJob(transport, name, prefix)
            self._job.subtasks(who.operator, who.index)
        except JobRefused as error:
            raise ConfigurationError(str(error)) from None
        self._who, self._partition = who, self._job.events(who)
        self.where = str(self._partition)
        self.first_offset, self.end_offset = transport.offsets([self._partition])[self._partition]

    def part(self, checkpoint_id: int) -> Part:
        try:
            return part_of(self._job.name, self._job.checkpoint(checkpoint_id), self._who)
        except JobRefused as error:
            raise ConfigurationError(str(error)) from None

    def schemas(self) -> Iterable[tuple[str, str]]:
        return [(used.subject, used.schema) for used in self._job.schemas(self._who.operator)]

    def records(self, begin: int) -> Iterator[Recorded]:
        for found in LogReading(self._job.transport, {self._partition: begin}, {self._partition: self.end_offset}):
            if isinstance(found, Gone):
                raise PositionUnavailable(f"{found}: begin with a newer checkpoint", self._partition)
            yield found


class _InFile(_Recording):
    def __init__(self, exported: Exported, who: SubtaskId) -> None:
        self._exported, self._who = exported, who
        self.where = str(exported.path)
        self.first_offset, self.end_offset = 0, 0
        for at, found in enumerate(exported.records(who)):
            self.first_offset = found.offset if at == 0 else self.first_offset
            self.end_offset = found.offset + 1

    def part(self, checkpoint_id: int) -> Part:
        found = self._exported.checkpoint(checkpoint_id, self._who.operator)
        if found is None or self._who not in found.subtasks:
            raise ConfigurationError(
                f"{self.where} holds no checkpoint {checkpoint_id} of {self._who}: write it with `penstock events JOB"
                f" {self._who.operator} --from-checkpoint {checkpoint_id} --json`"
            )
        return part_of(self.where, found, self._who)

    def schemas(self) -> Iterable[tuple[str, str]]:
        return self._exported.schemas(self._who.operator)

    def records(self, begin: int) -> Iterator[Recorded]:
        return (found for found in self._exported.records(self._who) if found.offset >= begin)


def _begun(recording: _Recording, who: SubtaskId, policy: FailoverPolicy, checkpoint: int | None) -> Restored:
    """The Start that has the subtask read on from the checkpoint, or from the beginning of the newest epoch."""
    taken = recording.part(checkpoint) if checkpoint is not None else _nothing_yet(recording, who)
    part = _followed(recording, taken)
    snapshot, behind = part.snapshot, part.snapshot.event_position
    begin, end = needed_from(snapshot), max(recording.end_offset, behind)
    if policy is FailoverPolicy.RESET:
        # Under this policy an attempt reads its predecessor's frames in ranges only: here these are one.
        attempt = _first_attempt(recording, part.epoch, behind) if taken.inherited else snapshot.attempt
        since = Segment(behind, end, part.epoch, snapshot.generation, attempt)
        snapshot = replace(snapshot, event_ranges=(*snapshot.event_ranges, since))
    start = start_of(
        Generation(part.epoch, snapshot.generation + 1),
        max(snapshot.attempt, 0) + 1,
        "replay",
        checkpoint_id=checkpoint,
        snapshot=snapshot,
        policy=policy,
        next_checkpoint_id=0 if checkpoint is None else checkpoint + 1,
        epoch_begin=behind,
        data_positions=(),
    )
    return Restored(who, Restore.FAILOVER, start, end, replace(snapshot, event_position=begin, event_ranges=()))


def _followed(recording: _Recording, part: Part) -> Part:
    """The same with its position where its epoch's events begin; PositionUnavailable where that is gone."""
    if not part.inherited:
        return part
    first = recording.first_offset
    behind = begin_behind(part, recording.records(first), first, recording.end_offset)
    if behind < first:
        raise PositionUnavailable(
            f"{recording.where} begins at offset {first}, and what epoch {part.epoch} sent first was below: begin"
            " with a newer checkpoint"
        )
    follows = replace(part.snapshot, event_position=behind)
    if not follows.event_ranges:
        follows = replace(follows, epoch=part.epoch, handled_through=0)
    return replace(part, snapshot=follows)


def _first_attempt(recording: _Recording, epoch: int, begin: int) -> int:
    """The attempt that the epoch's events were sent to first."""
    for found in recording.records(begin):
        if isinstance(found.record, EventFrame) and found.record.epoch == epoch:
            return found.record.attempt
    return NO_ATTEMPT


def _nothing_yet(recording: _Recording, who: SubtaskId) -> Part:
    """What a checkpoint would say that had been taken before the first event of the newest epoch."""
    first: tuple[int, EventFrame] | None = None
    for found in recording.records(recording.first_offset):
        frame = found.record
        if isinstance(frame, EventFrame) and (first is None or frame.epoch > first[1].epoch):
            first = found.offset, frame
    offset, epoch, attempt = recording.first_offset, 1, NO_ATTEMPT
    if first is not None:
        offset, epoch, attempt = first[0], first[1].epoch, first[1].attempt
        if first[1].sequence != 0:
            raise SequenceGap(
                f"{recording.where} begins with event {first[1].sequence} of epoch {epoch}, so what {who} was sent"
                " before it is missing: name a checkpoint to begin with, checkpoint=N"
            )
    snapshot = SubtaskSnapshot(who.index, attempt, epoch, 0, 0, None, offset, (), 0, 0, (), False)
    return Part(NO_CHECKPOINT, snapshot, epoch)


class _Feeding:
    """One object of the user's, hosted as an attempt's is."""

    def __init__(
        self, job: Job, operator: Operator, who: SubtaskId, recorded_as: str, schemas: Iterable[tuple[str, str]]
    ) -> None:
        self._job, self._operator, self._who = job, operator, who
        self._made: list[Subtask] = []
        self._sent: list[Any] = []
        self._emitted: list[Emitted] = []
        settings = job.settings
        self._router = Router(settings.graph, who, operator.keys, settings.max_parallelism)
        names = TopicNames(job.prefix, recorded_as)
        self._host = Host(
            settings, who, self._make, codec=operator.codec, state_codec=operator.state_codec,
            input_codecs=operator.input_codecs, storage=StateStorage(settings.state_storage, names.root),
            send=lambda event: self._sent.append(operator.codec.decode(event)), emit=self._emit,
            log=logging.LoggerAdapter(_logger, {}),
        )  # fmt: skip
        for subject, schema in schemas:
            self._host.learn(who.operator, subject, schema)

    def _make(self) -> Subtask:
        made = self._operator.subtask()
        self._made.append(made)
        return made

    def _emit(self, record: Any, output: str | None) -> None:
        codec, receivers = self._operator.output_codec, tuple(self._router.route(record, output))
        self._emitted.append(Emitted(codec.decode(codec.encode(record)), receivers))

    def feed(self, begun: Restored, records: Iterable[Recorded], events_max: int | None) -> Replayed:
        dry_run = DryRun(self._job.name, begun)
        self._host.open(begun.start)
        replayed = Replayed(self._made[-1], begun.start.checkpoint_id, 0, self._sent, self._emitted)
        for judged in dry_run.judge_all(records):
            if judged.verdict is Verdict.FAILS:
                raise SequenceGap(judged.why)
            left = None if events_max is None else events_max - replayed.events
            events = judged.events[:left]
            if events:
                count = len(events)  # before user code has the list
                self._handle(judged, events)
                replayed.events += count
            if replayed.events == events_max:
                break
        replayed.metrics = dict(self._host.metrics.values())
        return replayed

    def _handle(self, judged: Judged, events: list[bytes]) -> None:
        steps = Steps()
        try:
            self._host.handle(events, steps)
        except Exception as error:
            frame, at = judged.found.record, judged.found
            first = frame.sequence if isinstance(frame, EventFrame) else 0
            error.add_note(
                f"while {self._who} handled event {first + steps.done} (offset {at.offset} of {at.partition})"
            )
            raise
