"""Where reading begins: at a checkpoint, at an offset, at a time, or where the log does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ..checkpoint_log.history import Checkpoint
from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.errors import ConfigurationError, PositionUnavailable
from ..schemas.ids import NO_ATTEMPT, SubtaskId
from ..transport.ports import Partition
from .job import ASK_TIMEOUT_S, RecordedJob

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass
class Begins:
    """The first offset to be read of each partition, and what is to be told of it."""

    offsets: dict[Partition, int]
    notes: list[str] = field(default_factory=list)


def time_ms(text: str, now_ms: int) -> int:
    """ "10m" (so long ago: s, m, h, d) or an ISO time (local, where it names no zone) in milliseconds since 1970."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now_ms - int(float(ago[1]) * _UNITS_S[ago[2]] * 1000)
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{text!r} is no time: use how long ago it was (90s, 10m, 2h, 1d) or an ISO time such as 2026-01-31T14:05"
        ) from None


def from_the_beginning(job: RecordedJob, partitions: Iterable[Partition]) -> Begins:
    """Whatever is still there."""
    there = job.transport.offsets(partitions, ASK_TIMEOUT_S)
    return Begins({partition: found.begin for partition, found in there.items()})


def from_time(job: RecordedJob, partitions: Sequence[Partition], at_ms: int) -> Begins:
    begins = Begins(dict(job.transport.offsets_at(dict.fromkeys(partitions, at_ms), ASK_TIMEOUT_S)))
    for partition, there in job.transport.offsets(partitions, ASK_TIMEOUT_S).items():
        if begins.offsets[partition] <= there.begin and there.begin > 0:
            begins.notes.append(f"{partition} begins at offset {there.begin}: what was older has been truncated away")
    return begins


def from_offset(job: RecordedJob, partition: Partition, offset: int, acks: bool) -> Begins:
    """``offset`` of one partition of events; with ``acks`` these too, from the time of the record there."""
    there = job.transport.offsets([partition], ASK_TIMEOUT_S)[partition]
    if not there.begin <= offset <= there.end:
        raise PositionUnavailable(
            f"{partition} holds offsets {there.begin} to {there.end}, and {offset} is none of them: begin at"
            f" {there.begin}, or at a checkpoint (penstock checkpoints {job.name})",
            partition,
        )
    begins = Begins({partition: offset})
    if acks:
        begins.offsets |= from_time(job, [job.acks], _time_at(job, partition, offset, there.end)).offsets
    return begins


def _time_at(job: RecordedJob, partition: Partition, offset: int, end: int) -> int:
    """The time of the record at ``offset``; behind the last one: later than any."""
    if offset >= end:
        return 1 << 62
    reader = job.transport.reader({partition: offset})
    try:
        records = reader.poll(ASK_TIMEOUT_S, 1)
    finally:
        reader.close()
    return records[0].timestamp_ms if records else 0


def needed_from(snapshot: SubtaskSnapshot) -> int:
    """The first offset of a subtask's events that its part of a checkpoint names."""
    return min([snapshot.event_position, *(segment.begin for segment in snapshot.event_ranges)])


def from_checkpoint(job: RecordedJob, checkpoint: Checkpoint, subtasks: Iterable[SubtaskId], acks: bool) -> Begins:
    """What a checkpoint names: each subtask's ranges and position, its operator's inbox position.

    A subtask that it does not hold, or that there was not before it, begins at its time, and a note says so.
    PositionUnavailable where a range of it is gone. What only stood behind the open position of an older checkpoint may
    be gone rightly (nothing restores from there): then reading begins where the log does, and a note says so.
    """
    wanted: dict[Partition, int] = {}
    ranged: dict[Partition, int] = {}
    lacking: list[SubtaskId] = []
    for subtask in subtasks:
        snapshot = checkpoint.subtasks.get(subtask)
        if snapshot is None or snapshot.attempt == NO_ATTEMPT:
            lacking.append(subtask)
            continue
        wanted[job.events(subtask)] = needed_from(snapshot)
        if snapshot.event_ranges:
            ranged[job.events(subtask)] = needed_from(snapshot)
        operator = checkpoint.operator(subtask.operator)
        if acks and operator is not None:
            wanted[job.acks] = operator.inbox_position
    begins = _at_its_time(job, checkpoint, lacking, acks=acks and job.acks not in wanted)
    for partition, there in job.transport.offsets(wanted, ASK_TIMEOUT_S).items():
        offset = wanted[partition]
        if offset > there.end or ranged.get(partition, there.begin) < there.begin:
            raise PositionUnavailable(
                f"checkpoint {checkpoint.id} of job {job.name} names offset {offset} of {partition}, which holds"
                f" {there.begin} to {there.end}: what it needs is gone. Use a newer checkpoint (penstock checkpoints"
                f" {job.name}) or a savepoint; without --from-checkpoint everything that is left is read",
                partition,
            )
        if offset < there.begin:
            begins.notes.append(
                f"offsets {offset} to {there.begin - 1} of {partition}, behind checkpoint {checkpoint.id}, have been"
                " truncated away: a newer checkpoint lies behind them"
            )
        begins.offsets[partition] = max(offset, there.begin)
    return begins


def _at_its_time(job: RecordedJob, checkpoint: Checkpoint, subtasks: list[SubtaskId], acks: bool) -> Begins:
    if not subtasks:
        return Begins({})
    partitions = [job.events(subtask) for subtask in subtasks] + ([job.acks] if acks else [])
    begins = from_time(job, partitions, checkpoint.header.triggered_at_ms)
    held = ", ".join(f"{o.parallelism} of {o.operator}" for o in checkpoint.header.operators)
    named = ", ".join(map(str, subtasks[:8])) + (f" and {len(subtasks) - 8} more" if len(subtasks) > 8 else "")
    begins.notes.insert(0, f"checkpoint {checkpoint.id} holds {held}: {named} from the time when it was triggered on")
    return begins
