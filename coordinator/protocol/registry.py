"""What is known of runs, and of the instances of subtasks beside those that run as a slot's attempt.

The way of one instance, as far as it goes without a slot::

    Hello read ──> waiting ──Start──> unconfirmed ──its first record──> (the slot's attempt alone)
                      ^                    │                                    │ failover
                      │<──global failover──┘                                    v
                      │<──────────────── it says Hello again ──────────────── undone
                      │
                      └──> told to stop: its run has been replaced; the Stop is owed until it stands
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ...schemas.acks import FailureHint, Hello
from ...schemas.checkpoints import RunClaimed
from ...schemas.events import Stop
from ...schemas.ids import SubtaskId

DISPLACED_MAX = 4
"""Hellos of other tasks that one which displaced them remembers: so many tasks of one subtask may die at once."""
STOPS_MAX = 1_000


@dataclass(slots=True)
class WaitingHello:
    """The newest Hello of a subtask, without its Start."""

    offset: int
    hello: Hello
    at_takeover: bool = False
    astray_since: float | None = None
    """Log time at which it was first heard in a generation that is over, where nothing was heard under its Start."""
    displaced: WaitingHello | None = None
    """The one that waited when this one came: it is the newest again should this one's task be reported dead."""

    def shorten(self) -> None:
        """Forget the Hellos of its own task that it displaced, and those of others beyond ``DISPLACED_MAX``."""
        link, kept = self, 0
        while link.displaced is not None:
            if link.displaced.hello.task == self.hello.task:
                link.displaced = link.displaced.displaced
            elif kept == DISPLACED_MAX:
                link.displaced = None
            else:
                link, kept = link.displaced, kept + 1

    def forget_displaced(self, hint: FailureHint) -> None:
        """Forget the Hello of a task that has died, where it is one that this one displaced."""
        link = self
        while link.displaced is not None:
            if hint.names(link.displaced.hello):
                link.displaced = link.displaced.displaced
            else:
                link = link.displaced


@dataclass(slots=True)
class UndoneAttempt:
    """An attempt that a failover has undone: its instance is to drop its state and say Hello again.

    It cannot while user code has not returned, and one that is frozen never will. Times are log time.
    """

    attempt: int
    task: str
    host: str
    since: float
    """When it was undone, and told so."""
    seen_at: float
    """Time of its newest record, in whatever generation."""
    step: str = ""
    """Activity that its newest record names."""
    killed_at: float | None = None
    """When its task was to be ended; None: not yet."""

    @property
    def doing(self) -> str:
        return self.step or "it has not said at what"


@dataclass(frozen=True, slots=True)
class OwedStop:
    """A Stop that may not stand yet."""

    subtask: SubtaskId
    stop: Stop
    until: int
    """The first checkpoint whose marker in that partition stands behind it, and so shows that it stands."""


@dataclass(slots=True)
class Registry:
    """It outlives epochs, as instances do."""

    run: RunClaimed | None = None
    """The newest run that was read: the claimed one, or one about to be claimed."""
    older_runs: set[str] = field(default_factory=set)
    """Ids of the runs before it that were read: none of them comes back."""
    registered: set[SubtaskId] = field(default_factory=set)
    """Subtasks of the run of which a Hello was read."""
    incomplete_since: float | None = None
    """Monotonic seconds since which the run lacks subtasks that have never registered; None once all have."""
    waiting: dict[SubtaskId, WaitingHello] = field(default_factory=dict)
    unconfirmed: dict[SubtaskId, WaitingHello] = field(default_factory=dict)
    """Hellos answered, until something is read of that attempt or a newer Hello: their Start may never have stood."""
    undone: dict[SubtaskId, UndoneAttempt] = field(default_factory=dict)
    """Until their subtask is started again or their task dies. Ignored while a Hello of the subtask waits."""
    other_runs: list[WaitingHello] = field(default_factory=list)
    """Hellos of older runs and other layouts, found while catching up; answered by Stop when that is done."""
    superseded: list[tuple[WaitingHello, int]] = field(default_factory=list)
    """Likewise those of instances in whose place another attempt is, with that."""
    owed_stops: deque[OwedStop] = field(default_factory=lambda: deque(maxlen=STOPS_MAX))
    """Appended, until a checkpoint is complete whose markers stand behind them."""

    @property
    def run_id(self) -> str:
        """Of the newest run; empty before the first."""
        return "" if self.run is None else self.run.run

    @property
    def run_offset(self) -> int:
        """Offset in the acks topic at which the newest run began; -1 before the first."""
        return -1 if self.run is None else self.run.offset

    def is_of_run(self, hello: Hello) -> bool:
        """Whether it is of the newest run."""
        return self.run is not None and hello.run == self.run.run

    def take_run(self, run: str, offset: int) -> bool:
        """Whether this run, read at ``offset``, is newer than any before; it owns the job from now on."""
        if run != self.run_id and offset < self.run_offset:
            self.older_runs.add(run)
        if run in self.older_runs or (self.run is not None and self.run.run == run):
            return False
        if self.run is not None:
            self.older_runs.add(self.run.run)
        self.run = RunClaimed(run, offset)
        return True

    def wait(self, waiting: WaitingHello) -> None:
        """The newest Hello of its subtask waits for its Start."""
        subtask = waiting.hello.subtask_id
        before = self.waiting.get(subtask)
        if before is not None:
            again = before.hello.task == waiting.hello.task
            waiting.displaced = before.displaced if again else before  # mutant: displaced-hello-forgotten
            waiting.shorten()
        self.waiting[subtask] = waiting

    def forget_hello_of(self, hint: FailureHint, log_time: float) -> bool:
        """A task has died: forget its Hellos. True if one of them waited and no other Hello waits in its place."""
        subtask = SubtaskId(hint.operator, hint.subtask)
        undone = self.undone.get(subtask)
        if undone is not None and self.run is not None and (hint.run, hint.task) == (self.run.run, undone.task):
            del self.undone[subtask]
        if subtask in self.unconfirmed and hint.names(self.unconfirmed[subtask].hello):
            del self.unconfirmed[subtask]
        waiting = self.waiting.get(subtask)
        if waiting is None:
            return False
        if not hint.names(waiting.hello):
            waiting.forget_displaced(hint)
            return False
        del self.waiting[subtask]
        if waiting.displaced is not None:
            self.waiting[subtask] = waiting.displaced
        elif undone is not None:
            undone.since = log_time  # the Reset that tells it to start over follows only now
        return waiting.displaced is None
