"""A Spark driver that runs one query: plans, stores the offset, runs the batch, commits; over and over."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.schemas.acks import BatchCommitted, BatchEventFrame, BatchEvents, BatchWriter
from penstock.schemas.codec import encode
from penstock.schemas.frames import pack
from penstock.schemas.status import BatchOutcome, BatchPlanned

from .faults import Fault
from .pen import Pen
from .planner_process import PlannerProcess

if TYPE_CHECKING:
    from .world import Action, World


class At(StrEnum):
    """What a query does next; it may be killed before each."""

    LOAD = "load"
    PLAN = "plan"
    STORE = "store"
    """The offset of the batch: from here on it is this batch, whoever runs it."""
    TASKS = "tasks"
    MANIFEST = "manifest"
    SINK = "sink"
    COMMIT = "commit"


@dataclass(slots=True)
class Task:
    """One attempt of a task that reads one subtask's range."""

    subtask: int
    writer: str
    pen: Pen
    left: int
    """How many events it will send."""
    rows: list[int] | None = None
    sent: list[int] = field(default_factory=list)
    done: bool = False


class QueryProcess:
    """Its folders outlive it, and so may its planner."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.name = world, f"Q{number}"
        self.alive = True
        self.frozen_until = 0.0
        self.at = At.LOAD
        self.batch = -1
        self.start = self.end = world.folders.initial
        self.planner = PlannerProcess(world, f"query-{number}", self._answered)
        self.tasks: list[Task] = []
        self._attempts = 0
        self._pen, self._listener = Pen(world.transport), Pen(world.transport)

    def __str__(self) -> str:
        return f"{self.name} ({self.at} {self.batch})"

    # ---- planning

    def _load(self) -> None:
        """Where Spark goes on: with the newest stored batch again, unless that is committed."""
        folders = self.world.folders
        committed = folders.newest == folders.newest_committed
        self.batch = folders.newest + committed
        self.start = folders.offset(self.batch - 1)
        self.world.trace(f"{self} begins behind {self.start}")
        if committed:
            self._plan()
        else:
            self.end = folders.offset(self.batch)
            self._run()

    def _plan(self) -> None:
        self.at = At.PLAN
        self.planner.plan(self.start.checkpoint)

    def _answered(self, answer: BatchPlanned) -> None:
        match answer.outcome:
            case BatchOutcome.REFUSED:
                self.world.checks.query.refused(self, answer)
                self.crash()
            case BatchOutcome.NOTHING:
                self._plan()
            case BatchOutcome.PLANNED:
                self.end, self.at = self.start.followed_by(answer), At.STORE

    def _store(self) -> None:
        world = self.world
        world.trace(f"{self} stores {self.end}")
        if not world.folders.store(self.batch, self.end):
            self.crash()  # another query has this checkpointLocation
            return
        world.checks.query.stored(self.start, self.end)
        self._run()

    # ---- the batch

    def _run(self) -> None:
        self.end.require_predecessor(self.start)
        self.at = At.TASKS
        self.tasks = [self._attempt(subtask) for subtask in range(len(self.end.partitions))]

    def _attempt(self, subtask: int) -> Task:
        world = self.world
        self._attempts += 1
        left = world.rng.choice((0, 0, 1, 2, 3)) if world.config.batch_events else 0
        return Task(subtask, f"{self.name}/{self._attempts}", Pen(world.transport), left)

    def _read(self, task: Task) -> None:
        rows = self.world.checks.query.read(self.batch, self.end, task.subtask)
        if rows is None:
            self.crash()  # an older batch, whose events are gone: its successor has taken over
            return
        self.world.trace(f"{self} {task.writer} reads {rows} of subtask {task.subtask}")
        task.rows = rows

    def _send(self, task: Task) -> None:
        world, operator = self.world, self.world.settings.operators[0].name
        count = world.rng.randint(1, task.left)
        uids = [world.new_uid() for _ in range(count)]
        world.trace(f"{self} {task.writer} sends {uids}")
        frame = BatchEventFrame(
            self.end.checkpoint, operator, task.subtask, task.writer, len(task.sent),
            *pack([json.dumps(uid).encode() for uid in uids]),
        )  # fmt: skip
        task.pen.append(world.acks, encode(frame), None, None)
        task.sent += uids
        task.left -= count

    def _fail(self, task: Task) -> None:
        """Spark tries it again; what the failed attempt has sent may still arrive."""
        self.world.trace(f"{self} {task.writer} fails")
        self.world.adrift.append(task.pen.abandon(self.world.rng))
        self.tasks[task.subtask] = self._attempt(task.subtask)

    def _succeed(self, task: Task) -> None:
        task.done = True
        if all(other.done for other in self.tasks):
            self.at = At.SINK
            if self.world.config.batch_events:
                self._name_writers()

    def _name_writers(self) -> None:
        """The Spark job has succeeded: these attempts are the ones that count."""
        world, self.at = self.world, At.MANIFEST
        writers = tuple(BatchWriter(task.subtask, task.writer, len(task.sent)) for task in self.tasks if task.sent)
        manifest = BatchEvents(self.end.checkpoint, world.settings.operators[0].name, writers, world.life)
        world.checks.query.named(self.end.checkpoint, {task.subtask: task.sent for task in self.tasks})
        world.trace(f"{self} names {writers}")
        for _ in range(1 + world.chance(0.02 * world.config.duplicates)):
            self._pen.append(world.acks, encode(manifest), None, self._named)

    def _named(self, offset: int | None, _: Exception | None) -> None:
        if offset is not None and self.at is At.MANIFEST:
            self.at = At.SINK

    def _write(self) -> None:
        rows = [task.rows for task in self.tasks]
        self.world.checks.query.written(self.batch, rows)
        self.at = At.COMMIT

    def _commit(self) -> None:
        world = self.world
        world.trace(f"{self} commits {self.end.checkpoint}")
        if not world.folders.commit(self.batch):
            self.crash()
            return
        world.checks.query.committed_by_spark(self.batch, self.end)
        if not world.chance(0.3):
            for _ in range(1 + world.chance(0.02 * world.config.duplicates)):
                self._listener.append(world.acks, encode(BatchCommitted(self.end.checkpoint, world.life)), None, None)
        self.batch, self.start, self.tasks = self.batch + 1, self.end, []
        self._plan()

    # ---- ends

    def crash(self) -> None:
        """With everything in it; only its planner, a process of its own, may not notice."""
        world = self.world
        world.trace(f"{self} is KILLED")
        self.alive = False
        for task in self.tasks:
            if not task.done and task.left and task.rows is not None:
                self._send(task)  # its worker lives on for a while
            world.adrift.append(task.pen.abandon(world.rng))
        for pen in (self._pen, self._listener):
            world.adrift.append(pen.abandon(world.rng))
        if world.rng.random() < 0.5:
            self.planner.bereave()
            world.planners.append(self.planner)
        else:
            self.planner.crash()

    # ---- what may happen next

    def deadline(self) -> float | None:
        return self.planner.deadline() if self.at is At.PLAN else None

    def waits(self) -> str:
        return f"{self} from {self.start.checkpoint} to {self.end.checkpoint}: {self.planner.waits()}"

    def actions(self) -> list[Action]:
        world, acts = self.world, self._steps()
        if not world.away:
            acts += [(0.4, self._listener.flush, at) for at in self._listener.waiting()]
            acts += [(3.0, self._pen.flush, at) for at in self._pen.waiting()]
            acts += world.repeats(self._pen)
        if world.faulty:
            config, rate = world.config, world.rate
            acts.append(Fault(0.05 * rate * config.query_faults, self.crash))
            for pen in (self._pen, self._listener):
                acts += [Fault(0.03 * rate * config.refusals, self._refuse, pen, at) for at in pen.waiting()]
        return acts

    def _refuse(self, pen: Pen, at: Any) -> None:
        """The driver cannot name what its batch has sent: the batch fails, and the query with it."""
        pen.refuse(at, stands=self.world.rng.random() < 0.5)
        if pen is self._pen:
            self.crash()
        else:
            self.world.adrift.append(pen.abandon(self.world.rng))
            self._listener = Pen(self.world.transport)

    def _steps(self) -> list[Any]:
        match self.at:
            case At.PLAN:
                return self.planner.actions()
            case At.TASKS:
                return [act for task in self.tasks if not task.done for act in self._task_steps(task)]
            case At.MANIFEST:
                return []
            case _:
                return [(2.0, _STEPS[self.at], self)]

    def _task_steps(self, task: Task) -> list[Any]:
        world, acts = self.world, list[Any]()
        if task.rows is None:
            acts += [] if world.away else [(2.0, self._read, task)]
        elif task.left:
            acts.append((2.0, self._send, task))
        elif not task.pen.waiting():
            acts.append((2.0, self._succeed, task))
        for at in () if world.away else task.pen.waiting():
            acts.append((3.0, task.pen.flush, at))
        acts += [] if world.away else world.repeats(task.pen)
        if world.faulty:
            acts.append(Fault(0.1 * world.rate * world.config.query_faults, self._fail, task))
        return acts


_STEPS: dict[At, Callable[[QueryProcess], None]] = {
    At.LOAD: QueryProcess._load,
    At.STORE: QueryProcess._store,
    At.SINK: QueryProcess._write,
    At.COMMIT: QueryProcess._commit,
}
