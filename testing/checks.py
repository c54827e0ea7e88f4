"""What a job's logs say by themselves about order, loss and cuts (protocol, sections 5.4 and 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..checkpoint_log.history import Checkpoint
from ..client.job_client import JobClient
from ..schemas.codec import decode
from ..schemas.errors import PenstockError, PositionUnavailable, UnreadableRecord
from ..schemas.events import EventFrame, FailoverPolicy, TriggerCheckpoint
from ..schemas.ids import NO_ATTEMPT, SubtaskId
from ..schemas.settings import JobSettings
from ..transport.ports import LogRecord, Partition, Transport

_TRUNCATIONS_MAX = 10


class LogsContradict(PenstockError, AssertionError):
    """A job's logs say something that the protocol rules out; the message says what and where."""


class _Marker(NamedTuple):
    offset: int
    sequence: int


@dataclass
class _Events:
    """What stands in one events partition."""

    markers: dict[tuple[int, int], _Marker] = field(default_factory=dict)
    """By epoch and checkpoint."""
    frames: list[tuple[int, EventFrame]] = field(default_factory=list)
    """With their offsets."""
    problems: list[str] = field(default_factory=list)


def check_logs(transport: Transport, settings: JobSettings) -> None:
    """Raises :class:`LogsContradict` with everything that is wrong in the logs of a job.

    * In each subtask's partition the frames of an epoch (under policy ``reset``: of an attempt) follow one another
      without a gap or a repeat, and so does the sequence that each marker names.
    * Each retained checkpoint has a part of every subtask; the part contains exactly the events before the marker,
      which stands below its position, and the next event behind that position is the first that it does not contain.

    It needs no help from user code, and holds at any time, under any failure that is no loss of log. What user code
    made of the events is for the test to compare.
    """
    logs = {s: Partition(settings.topics.events(s.operator), s.index) for s in settings.subtasks()}
    completed = JobClient(transport, settings.name, settings.prefix).history().checkpoints  # before the events
    found = {
        subtask: _events(
            subtask,
            *_whole(transport, partition),
            by_attempt=settings.operator(subtask.operator).on_failover is FailoverPolicy.RESET,
        )
        for subtask, partition in logs.items()
    }
    problems = [problem for events in found.values() for problem in events.problems]
    for checkpoint in completed.values():
        problems += _uncut(checkpoint, settings, found)
    if problems:
        raise LogsContradict(f"the logs of job {settings.name} contradict the protocol:\n  " + "\n  ".join(problems))


def _whole(transport: Transport, partition: Partition) -> tuple[list[LogRecord], int]:
    """What a partition holds, and the offset it begins at (or has been truncated to meanwhile)."""
    for _ in range(_TRUNCATIONS_MAX):
        try:
            records = transport.read_all(partition)
        except PositionUnavailable:
            continue  # truncated while it was read
        return records, transport.offsets([partition])[partition].begin
    raise PositionUnavailable(f"{partition} is truncated again and again while it is read: check a job that rests")


def _events(subtask: SubtaskId, records: Iterable[LogRecord], begin: int, *, by_attempt: bool) -> _Events:
    events = _Events()
    expected: dict[tuple[int, int], int] = {}
    unknown = None if begin > 0 else 0  # what began in a truncated head may go on with any event
    for record in records:
        try:
            decoded = decode(record.value)
        except UnreadableRecord:
            continue  # garbage on a shared topic is no event; that none is missing, the sequences say
        if isinstance(decoded, EventFrame):
            key = decoded.epoch, decoded.attempt if by_attempt else NO_ATTEMPT
            due = expected.get(key, unknown)
            if due not in (None, decoded.sequence):
                events.problems.append(
                    f"{subtask}: the frame at offset {record.offset} of {record.partition} begins with event"
                    f" {decoded.sequence} of epoch {decoded.epoch}, and event {due} is due"
                )
            expected[key] = decoded.sequence + decoded.count
            events.frames.append((record.offset, decoded))
        elif isinstance(decoded, TriggerCheckpoint):
            events.markers[decoded.epoch, decoded.checkpoint_id] = _Marker(record.offset, decoded.sequence)
            due = expected.get((decoded.epoch, NO_ATTEMPT), unknown)
            if not by_attempt and due not in (None, decoded.sequence):
                events.problems.append(
                    f"{subtask}: the marker of checkpoint {decoded.checkpoint_id} at offset {record.offset} of"
                    f" {record.partition} stands before event {decoded.sequence}, and event {due} is due"
                )
    return events


def _uncut(checkpoint: Checkpoint, settings: JobSettings, found: dict[SubtaskId, _Events]) -> list[str]:
    """Why this checkpoint is no cut."""
    problems = []
    header = checkpoint.header
    for subtask in settings.subtasks():
        was = checkpoint.operator(subtask.operator)
        if was is not None and was.parallelism != settings.parallelism[subtask.operator]:
            continue  # taken in another layout
        part = checkpoint.subtasks.get(subtask)
        if part is None:
            problems.append(f"checkpoint {checkpoint.id} has no part of {subtask}")
            continue
        if part.finished or part.event_ranges:
            continue  # nothing is handled by who has finished; behind ranges the numbering is another epoch's
        by_attempt = settings.operator(subtask.operator).on_failover is FailoverPolicy.RESET
        marker = found[subtask].markers.get((header.epoch, checkpoint.id))  # None: truncated, when n had completed
        if marker is not None and part.event_position <= marker.offset:
            problems.append(
                f"checkpoint {checkpoint.id}: the position of {subtask} is {part.event_position}, and its marker lies"
                f" at {marker.offset}"
            )
        if marker is not None and part.handled_through != marker.sequence:
            problems.append(
                f"checkpoint {checkpoint.id}: the state of {subtask} has the events below {part.handled_through}, and"
                f" those sent before the cut are the ones below {marker.sequence}"
            )
        behind = (
            frame.sequence
            for offset, frame in found[subtask].frames
            if offset >= part.event_position
            and frame.epoch == part.epoch
            and (not by_attempt or frame.attempt == part.attempt)
        )
        first = next(behind, part.handled_through)
        if first != part.handled_through:
            problems.append(
                f"checkpoint {checkpoint.id}: the state of {subtask} has the events below {part.handled_through}, and"
                f" the first one behind its position {part.event_position} is {first}"
            )
    return problems
