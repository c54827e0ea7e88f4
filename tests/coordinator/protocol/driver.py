"""Plays everything around a coordinator core: its logs, its subtasks, its user code, its clock.

::

    script = Script.running()                # a job whose two subtasks of operator "op" have their Start
    task = script.task()
    script.send(task, b"a")
    n = script.trigger()
    script.acknowledge(n)
    assert script.events() == [b"a"]

Commits succeed, checkpoint futures complete at once (``auto_cut``), and the invariants are checked after each input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from penstock.checkpoint_log.history import Keyed
from penstock.checkpoint_log.restorability import Offsets
from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.coordinator.protocol.effects import Call, Effect
from penstock.coordinator.protocol.inputs import (
    AckRead,
    Begin,
    Committed,
    EndsSeen,
    FutureCompleted,
    Input,
    Redistributed,
    Reread,
    RereadEnd,
    Sent,
    Tick,
    WorkLeft,
)
from penstock.coordinator.protocol.invariants import check_invariants
from penstock.coordinator.protocol.pending import Pending
from penstock.coordinator.protocol.state import Dropped, Epoch, JobState, Slot
from penstock.coordinator.protocol.stream import EventStream
from penstock.schemas.acks import (
    AcksRecord,
    CheckpointAck,
    CheckpointDecline,
    Command,
    CommandKind,
    CoordinatorHeartbeat,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    OperatorEventFrame,
    RunStarted,
    SnapshotTaken,
)
from penstock.schemas.events import EventFrame, EventsRecord, Start
from penstock.schemas.frames import pack, unpack
from penstock.schemas.graph import DataPartition
from penstock.schemas.ids import NO_ATTEMPT, SubtaskId
from penstock.schemas.settings import CheckpointSettings, JobSettings, OperatorSettings
from penstock.schemas.state import OPEN_END, ChannelPosition, Segment, Sender, StateHandle, attempt_location
from penstock.schemas.status import CommandReply, End
from penstock.schemas.versions import CURRENT

T = TypeVar("T")

S0, S1 = SubtaskId("op", 0), SubtaskId("op", 1)
LAYOUT = {"op": 2}
LIFE = "id-2"
"""Id of the job's checkpoint topic."""
INTERVAL = 10.0
WALL_MS = 1_000_000


def job_settings(*operators: OperatorSettings, checkpoint: dict[str, Any] | None = None, **changes: Any) -> JobSettings:
    """Two subtasks of operator ``op``, and a checkpoint every 10 s, where nothing else is said."""
    given: dict[str, Any] = {"interval": INTERVAL, **(checkpoint or {})}
    return JobSettings(
        "job", operators or (OperatorSettings("op", 2),), checkpoint=CheckpointSettings(**given), **changes
    )


def channel(sender: SubtaskId, *segments: Segment, sequence: int = 0) -> ChannelPosition:
    return ChannelPosition(str(sender), segments, sequence)


def open_from(begin: int, generation: tuple[int, int]) -> Segment:
    """What an open position is: (epoch, number) of the generation it was written in; its writer is not known yet."""
    return Segment(begin, OPEN_END, *generation, NO_ATTEMPT)


def dealt(wanted: effects.StatesToDeal) -> tuple[StateHandle | None, ...]:
    """What the runtime makes of states, here: how many there were, and whose this one is."""
    states = [b"%d of %d" % (index, len(wanted.states)) for index in range(wanted.parallelism)]
    return tuple(StateHandle(len(state), inline=state) for state in states)


class Task:
    """One instance of a subtask, from its Hello on."""

    def __init__(self, script: Script, subtask: SubtaskId, run: str, attempt: int, nonce: str) -> None:
        self.script, self.subtask, self.run, self.attempt, self.nonce = script, subtask, run, attempt, nonce
        self.sent = 0

    @property
    def start(self) -> Start:
        """Its newest Start."""
        return [r for r in self.script.records(self.subtask, Start) if r.attempt == self.attempt][-1]

    @property
    def started(self) -> bool:
        return any(r.attempt == self.attempt for r in self.script.records(self.subtask, Start))

    @property
    def sender(self) -> Sender:
        start = self.start
        return Sender(self.subtask.operator, self.subtask.index, self.attempt, start.epoch, start.generation)

    @property
    def stream(self) -> EventStream:
        """What its gateway sends through."""
        ready = [c for c in self.script.all_calls if isinstance(c, effects.CallReady) and c.attempt == self.attempt]
        return ready[-1].stream

    def heartbeat(self, handled_through: int = 0, **changes: Any) -> Heartbeat:
        return replace(Heartbeat(self.sender, handled_through, "polling", 0, False, {}), **changes)

    def stored(self, n: int) -> StateHandle:
        """The handle of a state that it has stored for checkpoint ``n``."""
        return StateHandle(9, location=attempt_location(n, self.sender))

    def ack(self, n: int, *, stores: bool = False, **changes: Any) -> CheckpointAck:
        log = self.script.events_log[self.subtask]
        stream = self.script.slot(self.subtask).stream
        handled = 0 if stream is None else stream.appended_through
        given = CheckpointAck(
            self.sender, n, self.stored(n) if stores else StateHandle(5, inline=b"state"), len(log), (), handled,
            self.sent, self.data_positions(), False, 1,
        )  # fmt: skip
        return replace(given, **changes)

    def data_positions(self) -> tuple[ChannelPosition, ...]:
        """What it names in its acks: what a test says, else that it has read each of its data partitions to the end."""
        script, generation = self.script, self.sender.full_generation
        if self.subtask in script.positions:
            return script.positions[self.subtask]
        return tuple(
            channel(sender, open_from(script.data_end(sender.operator, self.subtask), generation))
            for sender in script.settings.graph.channels_into(self.subtask)
        )

    def snapshot_taken(self, n: int) -> SnapshotTaken:
        return SnapshotTaken(self.sender, n)

    def decline(self, n: int, *, not_stored: bool = False) -> CheckpointDecline:
        return CheckpointDecline(self.sender, n, "cannot", not_stored)

    def failed(self, cause: str = "boom") -> Failed:
        return Failed(self.sender, cause)

    def finished(self) -> Finished:
        return Finished(self.sender)

    def frame(self, *events: bytes, belongs_to: int = 1) -> OperatorEventFrame:
        """Its next events to the coordinator."""
        frame = OperatorEventFrame(self.sender, belongs_to, self.sent, *pack(events))
        self.sent += len(events)
        return frame


class Script:
    """A core and the logs around it, which outlive it: :meth:`restart` puts a new core in its place."""

    def __init__(self, *operators: OperatorSettings, instance: str = "first", **changes: Any) -> None:
        self.settings = job_settings(*operators, **changes)
        self.core = CoordinatorCore(self.settings, instance)
        self.now = 0.0
        self.log: list[Keyed] = []
        """The checkpoint log."""
        self.acks: list[tuple[int, AcksRecord | None]] = []
        """The acks topic: append times and records."""
        self.acks_begin = 0
        self.events_log: dict[SubtaskId, list[EventsRecord]] = {s: [] for s in self.settings.subtasks()}
        self.data: dict[DataPartition, Offsets] = {}
        """What the data partitions hold; nothing where nothing is said."""
        self.positions: dict[SubtaskId, tuple[ChannelPosition, ...]] = {}
        """What a subtask names in its acks, where it is not the ends of its data partitions."""
        self.topic_ids = {"penstock.job.acks": "id-1", "penstock.job.checkpoints": LIFE}
        self.calls: list[Call] = []
        """Since the last :meth:`forget`."""
        self.all_calls: list[Call] = []
        self.effects: list[Effect] = []
        """Since the last :meth:`forget`, calls included."""
        self.heartbeats: list[CoordinatorHeartbeat] = []
        """The coordinator's own, in flight."""
        self.tasks: dict[SubtaskId, Task] = {}
        self.auto_cut = True
        self.state: Callable[[str, int], bytes | None] = lambda operator, n: f"{operator}@{n}".encode()
        self.auto_ends = True
        self.auto_drain = True
        """User code has begun nothing."""
        self.deal: Callable[[effects.StatesToDeal], tuple[StateHandle | None, ...]] = dealt
        self._looks: list[int] = []
        self._drains = 0
        self._nonces = 0
        self._owed: list[effects.CallCheckpoint] = []

    @classmethod
    def begun(cls, *operators: OperatorSettings, **changes: Any) -> Script:
        """Its epoch is claimed, and nobody has said Hello."""
        script = cls(*operators, **changes)
        script.begin()
        return script

    @classmethod
    def running(cls, *operators: OperatorSettings, **changes: Any) -> Script:
        """Every subtask has been heard under its Start, and what led there is forgotten."""
        script = cls.begun(*operators, **changes)
        script.read(RunStarted("run-1", "here"))
        script.hello_all()
        script.read(*(task.heartbeat() for task in script.tasks.values()))
        script.forget()
        return script

    # ---- what is seen

    @property
    def job(self) -> JobState:
        return self.core.job

    @property
    def epoch(self) -> Epoch:
        return self.core.job.current

    @property
    def pending(self) -> dict[int, Pending]:
        return self.epoch.pending

    @property
    def last_id(self) -> int:
        return self.job.history.last_id

    def slot(self, subtask: SubtaskId = S0) -> Slot:
        return self.epoch.slots[subtask]

    def task(self, subtask: SubtaskId = S0) -> Task:
        """The newest instance of the subtask."""
        return self.tasks[subtask]

    def records(self, subtask: SubtaskId, kind: type[T]) -> list[T]:
        return [record for record in self.events_log[subtask] if isinstance(record, kind)]

    def events(self, subtask: SubtaskId = S0, epoch: int | None = None) -> list[bytes]:
        """Every event in the partition, or those of one epoch."""
        frames = [f for f in self.records(subtask, EventFrame) if epoch in (None, f.epoch)]
        return [event for f in frames for event in unpack(f.count, f.lengths, f.payload)]

    def made(self, kind: type[T]) -> list[T]:
        """Effects of one kind since the last :meth:`forget`."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def appended(self, subtask: SubtaskId = S0) -> list[EventsRecord]:
        """Appended to the partition since the last :meth:`forget`."""
        return [effect.record for effect in self.made(effects.Append) if effect.subtask == subtask]

    def committed(self, kind: type[T]) -> list[T]:
        """Records of one kind in the checkpoint log."""
        return [record for _, record in self.log if isinstance(record, kind)]

    def received(self, operator: str = "op") -> list[bytes]:
        """Events handed to the operator's coordinator since the last :meth:`forget`."""
        handed = [c for c in self.calls if isinstance(c, effects.CallEvents) and c.operator == operator]
        return [event for call in handed for event in call.events]

    def data_end(self, upstream: str, receiver: SubtaskId) -> int:
        return self.data.get(DataPartition(upstream, receiver), Offsets(0, 0)).end

    def replies(self) -> list[CommandReply]:
        return [effect.reply for effect in self.made(effects.Reply) if isinstance(effect.reply, CommandReply)]

    def dropped(self, reason: str) -> int:
        return self.job.statistics.dropped[Dropped(reason)]

    @property
    def ended(self) -> End | None:
        return next(iter(self.made(End)), None)

    def forget(self) -> None:
        self.calls.clear()
        self.effects.clear()

    # ---- what happens

    def handle(self, event: Input) -> list[Effect]:
        """One input, everything that it leads to, and the invariants."""
        before = len(self.effects)
        self._perform(self.core.handle(event, self.now))
        while self._owed and self.auto_cut:
            owed = self._owed.pop(0)
            self._perform(self.core.handle(self.completed(owed.operator, owed.checkpoint_id), self.now))
        while self._looks and self.auto_ends:
            self._perform(self.core.handle(self.ends_seen(self._looks.pop(0)), self.now))
        while self._drains and self.auto_drain:
            self._drains -= 1
            self._perform(self.core.handle(WorkLeft(self.job.history.epoch, {}), self.now))
        check_invariants(self.job)
        return self.effects[before:]

    def ends_seen(self, n: int) -> EndsSeen:
        """Where the event partitions end now."""
        return EndsSeen(n, {subtask: len(log) for subtask, log in self.events_log.items()})

    def _perform(self, decided: Sequence[Effect]) -> None:
        for position, effect in enumerate(decided):
            self.effects.append(effect)
            match effect:
                case effects.Append():
                    self.events_log[effect.subtask].append(effect.record)
                case effects.AppendHeartbeat():
                    self.heartbeats.append(effect.record)
                case effects.Commit():
                    assert position == len(decided) - 1, "Commit is the last effect of a decision"
                    self.log += effect.records
                    self._perform(self.core.handle(self.outcome(), self.now))
                case effects.ReadAcks():
                    for offset in range(max(effect.begin, self.acks_begin), effect.end):
                        record = self.acks[offset][1]
                        if record is not None:
                            self._perform(self.core.handle(Reread(offset, record), self.now))
                    self._perform(self.core.handle(RereadEnd(), self.now))
                case effects.Redistribute():
                    dealt = {o.operator: self.deal(o) for o in effect.operators}
                    self._perform(self.core.handle(Redistributed(dealt), self.now))
                case effects.Drain():
                    self._drains += 1
                case effects.LookAtEnds():
                    self._looks.append(effect.checkpoint_id)
                case effects.CallCheckpoint():
                    self._owed.append(effect)
                    self._called(effect)
                case _ if isinstance(effect, Call):
                    self._called(effect)

    def _called(self, call: Call) -> None:
        self.calls.append(call)
        self.all_calls.append(call)

    def outcome(self) -> Committed:
        ends = {partition: there.end for partition, there in self._data().items()}
        return Committed({s: len(log) for s, log in self.events_log.items()}, len(self.acks), ends)

    def _data(self) -> dict[DataPartition, Offsets]:
        return {p: self.data.get(p, Offsets(0, 0)) for p in self.settings.graph.data_partitions()}

    def completed(self, operator: str, n: int) -> FutureCompleted:
        return FutureCompleted(operator, n, self.state(operator, n))

    def beginning(self, **changes: Any) -> Begin:
        """What a core that starts now finds."""
        offsets = {s: Offsets(0, len(log)) for s, log in self.events_log.items()}
        acks = Offsets(self.acks_begin, len(self.acks))
        wall_ms = WALL_MS + int(1000 * self.now)
        partitions = {o.name: sum(s.operator == o.name for s in self.events_log) for o in self.settings.operators}
        data = self._data()
        given = Begin(tuple(self.log), dict(self.topic_ids), offsets, acks, wall_ms, data=data, partitions=partitions)
        return replace(given, **changes)

    def begin(self, **changes: Any) -> list[Effect]:
        return self.handle(self.beginning(**changes))

    def restart(self, settings: JobSettings | None = None, instance: str = "second", **changes: Any) -> list[Effect]:
        """The coordinator's process is replaced. Nothing of what happened before is forgotten but by the core."""
        self.settings = settings or self.settings
        self.core = CoordinatorCore(self.settings, instance)
        self._owed.clear()
        self._looks.clear()
        self._drains = 0
        self.heartbeats.clear()
        for subtask in self.settings.subtasks():
            self.events_log.setdefault(subtask, [])
        self.forget()
        return self.begin(**changes)

    def write(self, record: AcksRecord | None) -> int:
        """Appends to the acks topic; nobody reads it yet."""
        self.acks.append((WALL_MS + int(1000 * self.now), record))
        return len(self.acks) - 1

    def read(self, *records: AcksRecord | None) -> list[Effect]:
        """Appends to the acks topic; the core reads up to the end."""
        before = len(self.effects)
        for record in records:
            self.write(record)
        while self.job.position < len(self.acks) and self.ended is None:
            offset = self.job.position
            self.handle(AckRead(offset, *self.acks[offset]))
        return self.effects[before:]

    def hello(self, subtask: SubtaskId = S0, run: str = "run-1", *, read: bool = True, **said: Any) -> Task:
        """An instance says Hello; ``said`` is what else it says of itself."""
        self._nonces += 1
        nonce = f"nonce-{self._nonces}"
        said = {"layout": dict(self.settings.parallelism), "protocol": CURRENT.protocol} | said
        record = Hello(*subtask, run, nonce, f"task-{self._nonces}", "host", **said)
        task = self.tasks[subtask] = Task(self, subtask, run, len(self.acks), nonce)
        if read:
            self.read(record)
        else:
            self.write(record)
        return task

    def hello_all(self, run: str = "run-1") -> None:
        for subtask in self.settings.subtasks():
            self.hello(subtask, run)

    def emit_data(self, upstream: str, receiver: SubtaskId, count: int) -> int:
        """That many records are appended to a data partition; returns its end."""
        partition = DataPartition(upstream, receiver)
        there = self.data.get(partition, Offsets(0, 0))
        self.data[partition] = Offsets(there.begin, there.end + count)
        return there.end + count

    def command(self, kind: CommandKind, operator: str = "", payload: bytes = b"") -> int:
        """Somebody asks for something; returns the command's offset."""
        offset = len(self.acks)
        self.read(Command(f"command-{offset}", kind, operator, payload, "me"))
        return offset

    def send(self, to: Task | EventStream, *events: bytes) -> EventStream:
        """User code sends events, through a task's gateway or a stream kept from before."""
        stream = to.stream if isinstance(to, Task) else to
        self.handle(Sent(stream, list(events)))
        return stream

    # ---- time

    def advance(self, seconds: float) -> list[Effect]:
        """Time passes at once: the log is silent meanwhile."""
        self.now += seconds
        return self.handle(Tick())

    def beat(self) -> None:
        """The coordinator's own heartbeats in flight arrive."""
        while self.heartbeats:
            self.read(self.heartbeats.pop(0))

    def live(self, seconds: float, *silent: SubtaskId, handled: dict[SubtaskId, int] | None = None) -> None:
        """Time passes second by second; everybody's heartbeats arrive, but those of the silent."""
        for _ in range(round(seconds)):
            self.advance(1.0)
            self.beat()
            for subtask, task in self.tasks.items():
                if subtask not in silent and self.job.epoch is not None and task.started:
                    self.read(task.heartbeat((handled or {}).get(subtask, 0)))

    # ---- checkpoints

    def trigger(self) -> int:
        """Time passes until the periodic checkpoint is triggered; returns its id."""
        due = self.job.schedule.trigger_at
        assert due is not None
        self.now = max(self.now, due, (self.job.schedule.completed_at or 0.0) + self.settings.checkpoint.min_pause)
        known = set(self.pending)
        self.handle(Tick())
        (n,) = set(self.pending) - known
        return n

    def acknowledge(self, n: int, *but: SubtaskId, **changes: Any) -> None:
        """Every live subtask acknowledges, but these."""
        for slot in self.job.live():
            if slot.subtask not in but:
                self.read(self.tasks[slot.subtask].ack(n, **changes))

    def checkpoint(self, **changes: Any) -> int:
        """A whole checkpoint; returns its id."""
        n = self.trigger()
        self.acknowledge(n, **changes)
        assert n in self.job.history.checkpoints, f"checkpoint {n} did not complete"
        return n

    def savepoint(self, kind: CommandKind = CommandKind.SAVEPOINT) -> int:
        """Asks for one; returns the id of the pending savepoint."""
        self.command(kind)
        return next(p.id for p in self.pending.values() if p.savepoint)


def names(calls: Sequence[Call]) -> list[str]:
    """Calls as short words: ``reset``, ``start``, ``events``, ..."""
    return [type(call).__name__.removeprefix("Call").lower() for call in calls]
