"""One subtask's part of a checkpoint by itself: ranges in order, an inbox without a hole."""

from __future__ import annotations

import re

from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.ids import SubtaskId, is_name
from ..schemas.state import OPEN_END, ChannelPosition
from .report import Kind, Place, Report

_INDEX = re.compile("[0-9]{1,9}")


def check_ranges(
    report: Report, place: Place, offset: int, n: int, subtask: SubtaskId, snapshot: SubtaskSnapshot
) -> None:
    """Ranges ascend, do not overlap, and end where the open position begins. ``offset`` is that of the part."""
    report.checked["subtasks' parts"] += 1
    position = 0
    for segment in snapshot.event_ranges:
        if not position <= segment.begin <= segment.end <= snapshot.event_position:
            expected = f"ascending event ranges of {subtask} in checkpoint {n}, below {snapshot.event_position}"
            report.damage(Kind.RANGE, place, offset, expected, f"[{segment.begin}, {segment.end})")
        position = segment.end
    for channel in snapshot.data_positions:
        if sender_of(channel) is None:
            expected = f"a channel to {subtask} in checkpoint {n} that names its sender as operator/index"
            report.damage(Kind.RANGE, place, offset, expected, repr(channel.channel))
        position, opened = 0, False
        for segment in channel.segments:
            if opened or segment.begin < position or not (segment.end == OPEN_END or segment.begin <= segment.end):
                expected = (
                    f"ascending ranges of channel {channel.channel} to {subtask} in checkpoint {n}, an open one last"
                )
                report.damage(Kind.RANGE, place, offset, expected, f"[{segment.begin}, {segment.end})")
            opened = segment.end == OPEN_END
            position = max(position, segment.end)


def sender_of(position: ChannelPosition) -> SubtaskId | None:
    """Return the sending subtask of a channel; None if its name is none: an ack may name anything."""
    operator, _, index = position.channel.rpartition("/")
    return SubtaskId(operator, int(index)) if is_name(operator) and _INDEX.fullmatch(index) else None


def check_savepoint_inbox(
    report: Report, place: Place, offset: int, n: int, subtask: SubtaskId, snapshot: SubtaskSnapshot
) -> None:
    """A savepoint holds what its coordinators had yet to be handed: without a hole, up to what the subtask had sent."""
    due = snapshot.inbox[0].sequence if snapshot.inbox else snapshot.sent_sequence
    for events in snapshot.inbox:
        if events.sequence != due:
            expected = f"event {due} from {subtask} next in savepoint {n}"
            report.damage(Kind.SEQUENCE, place, offset, expected, f"event {events.sequence}")
        due = events.sequence + events.count
    if due != snapshot.sent_sequence:
        expected = f"the events from {subtask} in savepoint {n} up to {snapshot.sent_sequence}"
        report.damage(Kind.SEQUENCE, place, offset, expected, f"they end at {due}")
