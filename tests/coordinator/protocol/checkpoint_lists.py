"""Plain lists of who has done what for which checkpoint, and what must follow (protocol, section 7).

The model of ``test_checkpoint_machine``: it looks at the core for nothing but the id of a new checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.schemas.settings import OperatorSettings, RestartStrategy
from penstock.schemas.state import Sender

from .driver import Script, Task

OPERATORS = (OperatorSettings("one", 2), OperatorSettings("two", 1))
NAMES = ("one", "two")
SUBTASKS = (SubtaskId("one", 0), SubtaskId("one", 1), SubtaskId("two", 0))
INTERVAL, MIN_PAUSE, TIMEOUT, CONCURRENT, TOLERABLE, RETAINED = 2.0, 3.0, 20.0, 3, 2, 2
LARGE = b"above inline_state_max"
NEVER_S = 10.0**6
SILENCE_S = 10.0
"""Longer than a few missed heartbeats: whatever was pending in such a silence may have failed for it."""


@dataclass
class Checkpoint:
    """One pending checkpoint: who has done their part."""

    id: int
    command: int | None
    began_at: float
    inbox_position: int
    log_was_away: bool = False
    cut_by: list[str] = field(default_factory=list)
    storing: list[str] = field(default_factory=list)
    acked_by: dict[SubtaskId, tuple[Sender, int]] = field(default_factory=dict)

    @property
    def savepoint(self) -> bool:
        return self.command is not None

    @property
    def has_markers(self) -> bool:
        return sorted(self.cut_by) == sorted(NAMES)

    @property
    def done(self) -> bool:
        return self.has_markers and not self.storing and sorted(self.acked_by) == sorted(SUBTASKS)


class CheckpointLists:
    """Written down as it happens; ``_settle`` says what has become due by it."""

    def __init__(self) -> None:
        checkpoint = {
            "interval": INTERVAL, "min_pause": MIN_PAUSE, "timeout": TIMEOUT, "max_concurrent": CONCURRENT,
            "tolerable_failures": TOLERABLE, "retained": RETAINED, "inline_state_max": len(LARGE) - 1,
        }  # fmt: skip
        self.script = Script.begun(
            *OPERATORS,
            checkpoint=checkpoint,
            restart=RestartStrategy(budget=10**6, backoff_first=0.0, backoff_next=0.0),
            heartbeat_timeout=NEVER_S,
        )
        self.script.auto_cut = False
        self.restarts = 0
        self.epoch = 1
        self.live: dict[SubtaskId, Task] = {}
        self.newest: dict[SubtaskId, Task] = {}
        """Who said Hello last, living or not."""
        self.reread_from = 0
        """Where a successor begins to read the acks topic."""
        self.past_senders: list[Sender] = []
        self.pending: list[Checkpoint] = []
        self.completed: list[int] = []
        self.kept: list[tuple[int, bool]] = []
        """(id, savepoint)."""
        self.used_ids: list[int] = []
        self.asked: list[int] = []
        """Savepoint commands without effect or refusal yet, oldest first."""
        self.refused: list[int] = []
        self.granted: list[tuple[int, int]] = []
        """(savepoint command, the checkpoint it led to)."""
        self.acked: dict[tuple[int, SubtaskId], tuple[int, ...]] = {}
        """Of completed checkpoints: whose ack counted."""
        self.failures_in_a_row = 0
        self.next_at = INTERVAL
        self.completed_at: float | None = None
        self.uploads: list[tuple[str, int, str]] = []
        self.told: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """By operator: what its coordinator was told of checkpoints."""
        self.withheld: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.noticed: dict[SubtaskId, list[tuple[str, int]]] = defaultdict(list)
        """By subtask: markers and notices in its partition."""
        self.heard: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.read: dict[SubtaskId, list[tuple[str, int]]] = defaultdict(list)
        self.committed: dict[tuple[int, SubtaskId], tuple[int, ...]] = {}
        """What the core has made of the three."""
        self.looked_through: dict[object, int] = {}

    # ---- the model's few words

    def _find(self, n: int) -> Checkpoint | None:
        return next((p for p in self.pending if p.id == n), None)

    def _owes(self, operator: str) -> bool:
        return any(operator not in p.cut_by for p in self.pending)

    def _tell(self, operator: str, what: str, n: int) -> None:
        if what == "complete" and self._owes(operator):
            self.withheld[operator].append((what, n))
        else:
            self.told[operator].append((what, n))

    def _hand_over(self) -> None:
        for operator in NAMES:
            if not self._owes(operator):
                self.told[operator] += self.withheld.pop(operator, [])

    def _notice(self, what: str, n: int) -> None:
        for subtask in self.live:
            self.noticed[subtask].append((what, n))

    def _abort(self, gone: Iterable[Checkpoint], *, countable: bool = False) -> None:
        gone = list(gone)
        for checkpoint in gone:
            self.pending.remove(checkpoint)
        self._hand_over()
        for checkpoint in gone:
            for operator in NAMES:
                self._tell(operator, "aborted", checkpoint.id)
            if checkpoint.has_markers:
                self._notice("aborted", checkpoint.id)
            if checkpoint.command is not None:
                self._refuse(checkpoint.command)
            elif countable:
                self.failures_in_a_row += 1

    def _refuse(self, command: int) -> None:
        self.asked.remove(command)
        self.refused.append(command)

    def _complete(self, checkpoint: Checkpoint) -> None:
        n = checkpoint.id
        self.completed.append(n)
        line = sorted(i for i, savepoint in self.kept if not savepoint)
        newest = line[-RETAINED:] if checkpoint.savepoint else line[-(RETAINED - 1) :]
        self.kept = [(i, savepoint) for i, savepoint in self.kept if savepoint or i in newest]
        self.kept.append((n, checkpoint.savepoint))
        self.failures_in_a_row = 0
        self.completed_at = self.script.now
        if checkpoint.command is not None:
            self.asked.remove(checkpoint.command)
            self.granted.append((checkpoint.command, n))
        for subtask, by in checkpoint.acked_by.items():
            self.acked[n, subtask] = identity(*by)
        if n == max(self.completed):
            self.reread_from = min([checkpoint.inbox_position, len(self.script.acks), *self.asked])
        for older in [p for p in self.pending if p.id < n and not p.savepoint]:
            self._abort([older])
        self.pending.remove(checkpoint)
        for operator in NAMES:
            self._tell(operator, "complete", n)
        self._notice("complete", n)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.live = {}
        self.pending.clear()
        self.withheld.clear()
        self.failures_in_a_row = 0
        self.completed_at = None
        self.next_at = self.script.now + INTERVAL

    def _fail_over_globally(self) -> None:
        for checkpoint in self.pending:
            for operator in NAMES:
                self.told[operator].append(("aborted", checkpoint.id))
            if checkpoint.command is not None:
                self._refuse(checkpoint.command)
        self._begin_epoch()
        self._reset_told()

    def _reset_told(self) -> None:
        """Nothing is on its way to a coordinator here: what belongs to the checkpoint has been handed over."""
        n = max(self.completed, default=NO_CHECKPOINT)
        for operator in NAMES:
            self.told[operator] += [("reset", n)] if n == NO_CHECKPOINT else [("reset", n), ("complete", n)]

    def _settle(self) -> None:
        """What has become due by the step before."""
        while True:
            overdue = [p for p in self.pending if self.script.now >= p.began_at + TIMEOUT]
            for checkpoint in overdue:
                self._abort([checkpoint], countable=not checkpoint.log_was_away)
            done = [p for p in self.pending if p.done]
            if self.failures_in_a_row > TOLERABLE:
                self._fail_over_globally()
            elif done:
                self._complete(done[0])
            elif self._may_trigger():
                self._trigger()
            else:
                return

    def _may_trigger(self) -> bool:
        if len(self.live) < len(SUBTASKS) or len(self.pending) >= CONCURRENT:
            return False
        if not all(p.has_markers for p in self.pending):
            return False
        pause = 0.0 if self.completed_at is None else self.completed_at + MIN_PAUSE
        return bool(self._queued()) or self.script.now >= max(self.next_at, pause)

    def _queued(self) -> list[int]:
        return [command for command in self.asked if command not in [p.command for p in self.pending]]

    def _trigger(self) -> None:
        (n,) = set(self.script.pending) - {p.id for p in self.pending}
        assert n > max(self.used_ids, default=-1), "an id is never used twice"
        self.used_ids.append(n)
        self.pending.append(Checkpoint(n, next(iter(self._queued()), None), self.script.now, len(self.script.acks)))
        self.next_at = self.script.now + INTERVAL
        for operator in NAMES:
            self.told[operator].append(("checkpoint", n))


def identity(sender: Sender, ack_offset: int) -> tuple[int, ...]:
    return sender.attempt, sender.epoch, sender.generation, ack_offset
