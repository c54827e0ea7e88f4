"""When things happened, for people: checkpoints step by step, and failovers. Nothing is decided from it.

Everything is bounded: the last checkpoints and failovers are kept, and of each checkpoint those subtasks that it waited
for longest. All times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from ...schemas.ids import SubtaskId

CHECKPOINTS_KEPT = 20
CHECKPOINTS_TIMED = 6
"""Of so many, and of those under way, the subtasks' times are kept too."""
SUBTASKS_TIMED = 32
FAILOVERS_KEPT = 20


@dataclass(slots=True)
class Times:
    """One checkpoint from its trigger on."""

    cut_at: dict[str, float] = field(default_factory=dict)
    """By operator: its coordinator had completed its future."""
    marked_at: float | None = None
    """The markers were written, behind the last cut."""
    snapshot_at: dict[SubtaskId, float] = field(default_factory=dict)
    """Known where the subtask said so ahead of its ack."""
    acked_at: dict[SubtaskId, float] = field(default_factory=dict)

    def slowest(self, required: Iterable[SubtaskId]) -> tuple[SubtaskId, ...]:
        """Whom the checkpoint waits for, or waited for longest, of so many as are told."""
        never = float("inf")
        late = nsmallest(SUBTASKS_TIMED, required, lambda subtask: (-self.acked_at.get(subtask, never), subtask))
        return tuple(sorted(late))


@dataclass(slots=True)
class Over:
    """A checkpoint that is completed, or aborted for a ``reason``."""

    id: int
    savepoint: bool
    epoch: int
    triggered_at: float
    ended_at: float
    acked: int
    required: int
    size: int
    """Bytes of the coordinators' and the subtasks' states."""
    reason: str | None
    times: Times
    subtasks: tuple[SubtaskId, ...]
    """Whose times are told: those that it waited for longest, or still did."""


@dataclass(slots=True)
class Failover:
    """What undid attempts, until each of their subtasks has been started again."""

    at: float
    of_job: bool
    """Global: the coordinators were rolled back too."""
    cause: str
    subtasks: tuple[SubtaskId, ...]
    """Whom it undid; the first ones."""
    count: int
    missing: set[SubtaskId]
    """Those that have not been started again."""
    over_at: float | None = None


@dataclass(slots=True)
class Timeline:
    """Since the instance began."""

    checkpoints: deque[Over] = field(default_factory=lambda: deque(maxlen=CHECKPOINTS_KEPT))
    """Oldest first, by their ends."""
    failovers: deque[Failover] = field(default_factory=lambda: deque(maxlen=FAILOVERS_KEPT))
    """Oldest first."""

    def checkpoint_over(self, over: Over) -> None:
        over.times = _shortened(over.times, over.subtasks)
        self.checkpoints.append(over)
        if len(self.checkpoints) > CHECKPOINTS_TIMED:
            old = self.checkpoints[-1 - CHECKPOINTS_TIMED]
            old.times, old.subtasks = Times(), ()

    def failed_over(self, at: float, cause: str, subtasks: Collection[SubtaskId], *, of_job: bool) -> None:
        shown = tuple(islice(subtasks, SUBTASKS_TIMED))
        over_at = None if subtasks else at
        self.failovers.append(Failover(at, of_job, cause, shown, len(subtasks), set(subtasks), over_at))

    def started(self, subtask: SubtaskId, at: float) -> None:
        """The subtask has been started again."""
        for failover in self.failovers:
            if failover.missing:
                failover.missing.discard(subtask)
                if not failover.missing:
                    failover.over_at = at


def _shortened(times: Times, told: Iterable[SubtaskId]) -> Times:
    return Times(
        times.cut_at,
        times.marked_at,
        {s: times.snapshot_at[s] for s in told if s in times.snapshot_at},
        {s: times.acked_at[s] for s in told if s in times.acked_at},
    )
