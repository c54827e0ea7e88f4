"""What may be truncated, and what must be in the end (protocol, section 7.9).

Told by the records themselves: when they were appended, and what the committed checkpoints name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.checkpoint_log.history import Checkpoint, History
from penstock.schemas.graph import DataPartition
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.state import OPEN_END
from penstock.transport.ports import Partition

from .violations import Violation

if TYPE_CHECKING:
    from .world import World

SLACK_MS = 1_500
"""By how much the oldest record may be older than the window: checkpoints wait for one another, truncations lag."""


class RetentionChecks:
    def __init__(self, world: World) -> None:
        self.world = world
        self.newest_ms = 0
        """Of all completions: a window never goes back, though the job may."""

    def completed(self, checkpoint: Checkpoint) -> None:
        self.newest_ms = max(self.newest_ms, checkpoint.header.completed_at_ms)

    def truncating(self, who: object, history: History, positions: Mapping[Partition, int]) -> None:
        """Nothing that a kept checkpoint names, and nothing as young as the window."""
        for checkpoint in history.checkpoints.values():
            for partition, begin in self._needs(history, checkpoint):
                if positions.get(partition, 0) > begin:
                    raise Violation(
                        f"section 7.9: {who} truncates {partition} below {positions[partition]}, and checkpoint"
                        f" {checkpoint.id} needs {begin}"
                    )
        window = self.world.config.retention
        for partition, position in positions.items() if window else ():
            log = self.world.broker._log(partition)
            gone = log.records[: max(0, position - log.begin)]
            if gone and gone[-1].timestamp_ms > self.newest_ms - 1000 * (window or 0):
                raise Violation(
                    f"section 7.9: {who} truncates {partition} below {position}, within the {window} s that are kept"
                )

    def _needs(self, history: History, checkpoint: Checkpoint) -> Iterator[tuple[Partition, int]]:
        """Behind its open positions only where its epoch goes on: a restore begins a new one."""
        world, header = self.world, checkpoint.header
        last = checkpoint is history.last and header.epoch == history.epoch and header.rescaled_from == NO_CHECKPOINT
        if not checkpoint.header.savepoint:
            yield world.acks, checkpoint.inbox_position
        for subtask, snapshot in checkpoint.subtasks.items():
            at = world.event_partition(subtask)
            yield from ((at, segment.begin) for segment in snapshot.event_ranges)
            if last:
                yield at, snapshot.event_position
            for position in snapshot.data_positions:
                data = DataPartition(position.sender.operator, subtask)
                for segment in position.segments:
                    if segment.end != OPEN_END or last:
                        yield world.data_partition(*data), segment.begin

    def grown(self) -> str | None:
        """Which log holds what has long been needed by nobody; None where none does."""
        window = self.world.config.retention
        if window is None or self.world.config.driven_by_query:  # an idle query has no checkpoints for long
            return None
        since = self.newest_ms - 2000 * window - SLACK_MS
        events = [self.world.event_partition(subtask) for subtask in self.world.settings.subtasks()]
        for partition in [*events, self.world.acks]:
            records = self.world.broker._log(partition).records
            if records and records[0].timestamp_ms < since:
                too_old = since - records[0].timestamp_ms
                return f"{partition} holds {len(records)} records, the oldest {too_old:.0f} ms too old"
        return None
