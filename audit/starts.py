"""A Start against the checkpoint that it names (protocol, section 5)."""

from __future__ import annotations

from collections.abc import Iterator

from ..schemas.events import FailoverPolicy, Start
from ..schemas.ids import SubtaskId
from ..schemas.state import OPEN_END, ChannelPosition, Segment
from .checkpoint_index import KnownCheckpoint, digest_of

Difference = tuple[str, str]
"""What was expected, and what the Start says."""


def disagreements(
    start: Start, subtask: SubtaskId, known: KnownCheckpoint | None, begin: int | None
) -> Iterator[Difference]:
    """``known`` is None where the Start names no checkpoint, ``begin`` where it is not known where its epoch began."""
    snapshot = None if known is None else known.subtasks.get(subtask)
    if snapshot is None:
        name = "no checkpoint" if known is None else f"checkpoint {known.id}, which {subtask} is not in"
        if start.state is not None or start.event_ranges or start.inputs_ended:
            size = "no state" if start.state is None else f"a state of {start.state.size} bytes"
            yield f"neither state nor ranges from {name}", f"{size}, ranges {start.event_ranges}"
        if (start.expected_epoch, start.expected_sequence) != (start.epoch, 0):
            yield f"event 0 of epoch {start.epoch} next", f"{start.expected_sequence} of epoch {start.expected_epoch}"
        if begin is not None and start.event_position != begin:
            yield f"position {begin}, where the epoch began", str(start.event_position)
        return
    assert known is not None
    what = f"checkpoint {known.id}"
    if digest_of(start.state) != snapshot.state:
        yield f"the state of {subtask} in {what}", "another state"
    if start.event_ranges != snapshot.event_ranges:
        yield f"the event ranges of {what}, {snapshot.event_ranges}", str(start.event_ranges)
    if start.inputs_ended != snapshot.inputs_ended:
        yield f"inputs_ended {snapshot.inputs_ended} as in {what}", str(start.inputs_ended)
    given = {position.channel: position for position in start.data_positions}
    for named in snapshot.data_positions:
        position = given.get(named.channel)
        if position is not None and (_ranges(position), position.sequence) != (_ranges(named), named.sequence):
            yield f"the ranges of channel {named.channel} as in {what}, {_ranges(named)}", str(_ranges(position))
    same_epoch = snapshot.epoch == start.epoch
    due_at = snapshot.event_position if same_epoch else begin
    if due_at is not None and start.event_position != due_at:
        yield f"event position {due_at} of {what}", str(start.event_position)
    first = snapshot.handled_through if same_epoch and start.policy is not FailoverPolicy.RESET else 0
    due = (snapshot.epoch, snapshot.handled_through) if snapshot.event_ranges else (start.epoch, first)
    if (start.expected_epoch, start.expected_sequence) != due:
        yield f"event {due[1]} of epoch {due[0]} next", f"{start.expected_sequence} of epoch {start.expected_epoch}"


def _ranges(position: ChannelPosition) -> tuple[Segment, ...]:
    """What is left of older parts: the open one begins where the epoch did, at the lowest."""
    return tuple(segment for segment in position.segments if segment.end != OPEN_END)
