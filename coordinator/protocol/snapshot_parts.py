"""A checkpoint's snapshots in records of bounded size, for the checkpoint log (protocol, section 7.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...schemas.checkpoints import CheckpointPart, SubtaskSnapshot
from ...schemas.ids import SubtaskId
from .pending import Pending
from .state import JobState

_EMPTY_BYTES, _SEGMENT_BYTES, _CHANNEL_BYTES, _INBOX_BYTES = 200, 32, 16, 32
"""What a snapshot, a range, a channel's position and a frame of an inbox take beside their texts, generously."""


def parts_of(job: JobState, pending: Pending) -> Iterable[CheckpointPart]:
    """Every subtask's snapshot in records of bounded size; one that had ended keeps the snapshot of its end."""
    last = job.history.last
    snapshots: dict[str, list[SubtaskSnapshot]] = {}
    for operator in job.settings.operators:
        snapshots[operator.name] = []
        for index in range(operator.parallelism):
            subtask = SubtaskId(operator.name, index)
            snapshot = pending.acks.get(subtask)
            if snapshot is None:
                assert last is not None, f"{subtask} neither acknowledged nor finished"
                # Its inbox range has been handed over since.
                snapshot = last.subtasks[subtask]
                snapshot = replace(snapshot, inbox=(), received_sequence=snapshot.sent_sequence)
            snapshots[operator.name].append(snapshot)
    return in_parts(pending.id, snapshots, job.limits.part_bytes)


def in_parts(
    checkpoint_id: int, snapshots: Mapping[str, Iterable[SubtaskSnapshot]], bytes_max: int
) -> Iterable[CheckpointPart]:
    """Snapshots, by operator, in records of about so many bytes; each operator has one record at least."""
    number = 0
    for operator, those in snapshots.items():
        batch: list[SubtaskSnapshot] = []
        size = 0
        for snapshot in those:
            for weight, piece in _pieces(snapshot, bytes_max):
                if batch and size + weight > bytes_max:
                    yield CheckpointPart(checkpoint_id, number, operator, tuple(batch))
                    number, batch, size = number + 1, [], 0
                batch.append(piece)
                size += weight
        yield CheckpointPart(checkpoint_id, number, operator, tuple(batch))
        number += 1


def _pieces(snapshot: SubtaskSnapshot, bytes_max: int) -> Iterable[tuple[int, SubtaskSnapshot]]:
    """A snapshot with its weight. What of a savepoint's inbox does not fit beside it follows in further pieces."""
    handle, inbox = snapshot.state, snapshot.inbox
    size = _EMPTY_BYTES + (len(handle.inline) if handle is not None and handle.inline is not None else 0)
    size += len(snapshot.task) + _SEGMENT_BYTES * len(snapshot.event_ranges)
    size += sum(_CHANNEL_BYTES + len(p.channel) + _SEGMENT_BYTES * len(p.segments) for p in snapshot.data_positions)
    begin = 0
    for at, events in enumerate(inbox):
        weight = _INBOX_BYTES + len(events.payload) + len(events.lengths)
        if size > _EMPTY_BYTES and size + weight > bytes_max:
            yield size, replace(snapshot, inbox=inbox[begin:at])
            snapshot, begin, size = replace(snapshot, state=None, event_ranges=(), data_positions=()), at, _EMPTY_BYTES
        size += weight
    yield size, replace(snapshot, inbox=inbox[begin:])
