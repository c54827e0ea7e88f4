"""Events on their way, and their futures, against one list per subtask (protocol, sections 6 and 7).

The core is played by the driver, under two policies at once. The model keeps for each event which cuts it waits for;
it says from scratch what stands in each partition and what has become of each future.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordinator.futures import EventFuture, Ledger
from penstock.coordinator.in_flight_bytes import Load
from penstock.coordinator.protocol.inputs import CoordinatorRaised, FutureCompleted, Sent
from penstock.coordinator.protocol.stream import EventStream
from penstock.schemas.acks import CheckpointAck, CheckpointDecline, RunStarted, SnapshotTaken
from penstock.schemas.events import EventFrame, FailoverPolicy, Start, TriggerCheckpoint
from penstock.schemas.frames import unpack
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import OperatorSettings, RestartStrategy
from tests.machines import explore
from tests.rounds import rounds

from .driver import Script, Task

HELD_MAX = 24
POLICIES = {"keeps": FailoverPolicy.REPLAY, "voids": FailoverPolicy.RESET}
OPERATORS = (
    OperatorSettings("keeps", 2, on_failover=FailoverPolicy.REPLAY, max_held_bytes=HELD_MAX),
    OperatorSettings("voids", 1, on_failover=FailoverPolicy.RESET, max_held_bytes=HELD_MAX),
)
SUBTASKS = (SubtaskId("keeps", 0), SubtaskId("keeps", 1), SubtaskId("voids", 0))
NEVER_S = 10.0**7
CONCURRENT = 3


@dataclass
class Numbered:
    """Events that share one numbering, and why none of them will be handled any more."""

    stream: EventStream
    ledger: Ledger
    events: list[Event] = field(default_factory=list)
    failure: str | None = None


@dataclass
class Event:
    payload: bytes
    future: EventFuture
    waits_for: set[int]
    """Checkpoints that were cut before it was sent, and that its subtask has not been opened for."""
    appended: bool = False
    outcome: str = "pending"


@dataclass
class Checkpoint:
    id: int
    cut_by: set[str] = field(default_factory=set)
    opened_for: set[SubtaskId] = field(default_factory=set)
    acked_by: set[SubtaskId] = field(default_factory=set)

    @property
    def has_markers(self) -> bool:
        return self.cut_by == set(POLICIES)


class SendingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        checkpoint = {"timeout": NEVER_S, "max_concurrent": CONCURRENT, "tolerable_failures": 10**6}
        restart = RestartStrategy(budget=10**6, backoff_first=0.0, backoff_next=0.0)
        self.script = Script.begun(
            *OPERATORS, checkpoint=checkpoint, restart=restart, heartbeat_timeout=NEVER_S, frame_events_max=3
        )
        self.script.auto_cut = False
        self.epoch = 1
        self.live: dict[SubtaskId, Task] = {}
        self.current: dict[SubtaskId, Numbered] = {}
        self.streams: dict[SubtaskId, list[Numbered]] = {subtask: [] for subtask in SUBTASKS}
        """Every one there ever was, by age: user code may keep them all."""
        self.pending: list[Checkpoint] = []
        self.on_its_way: dict[SubtaskId, list[Event]] = {subtask: [] for subtask in SUBTASKS}
        """Not appended, in the order sent."""
        self.log: dict[SubtaskId, list[bytes | int]] = {subtask: [] for subtask in SUBTASKS}
        """Events and the ids of markers."""
        self.sent = 0

    @initialize()
    def everybody_starts(self) -> None:
        self.script.read(RunStarted("run-1", "here"))
        self.who_is_missing_says_hello()

    # ---- the model's few words

    def _append(self, subtask: SubtaskId, events: list[Event]) -> None:
        for event in events:
            event.appended = True
            self.on_its_way[subtask].remove(event)
            self.log[subtask].append(event.payload)

    def _append_what_may_go(self, subtask: SubtaskId) -> None:
        while (waiting := self.on_its_way[subtask]) and not waiting[0].waits_for:
            self._append(subtask, waiting[:1])

    def _open(self, subtask: SubtaskId, checkpoint: Checkpoint) -> None:
        checkpoint.opened_for.add(subtask)
        for event in self.on_its_way[subtask]:
            event.waits_for.discard(checkpoint.id)
        self._append_what_may_go(subtask)

    def _over(self, checkpoint: Checkpoint) -> None:
        self.pending.remove(checkpoint)
        for subtask in SUBTASKS:
            self._open(subtask, checkpoint)

    def _fail(self, subtask: SubtaskId, why: str) -> None:
        stream = self.current.pop(subtask, None)
        self.on_its_way[subtask].clear()
        if stream is not None:
            stream.failure = why
            for event in stream.events:
                event.outcome = why if event.outcome == "pending" else event.outcome

    def _settle(self) -> None:
        """What is held above its bound aborts the oldest checkpoint, again and again."""
        while self.pending and any(self._held(operator) > HELD_MAX for operator in POLICIES):
            self._over(self.pending[0])

    def _held(self, operator: str) -> int:
        return sum(len(e.payload) for s in SUBTASKS if s.operator == operator for e in self.on_its_way[s])

    # ---- events

    @rule(data=st.data(), subtask=st.sampled_from(SUBTASKS), size=st.integers(3, 6), count=st.integers(1, 5))
    def send(self, data: st.DataObject, subtask: SubtaskId, size: int, count: int) -> None:
        """Through the current gateway, or one that user code has kept."""
        kept = self.streams[subtask]
        stream = data.draw(st.sampled_from(kept)) if data.draw(st.integers(0, 2)) == 0 else kept[-1]
        payloads = [f"{self.sent + i}".zfill(size).encode() for i in range(count)]
        self.sent += count
        self.script.handle(Sent(stream.stream, payloads))
        closed = {p.id for p in self.pending if subtask.operator in p.cut_by and subtask not in p.opened_for}
        for payload in payloads:
            event = Event(payload, EventFuture(stream.ledger, len(stream.events)), set(closed))
            stream.events.append(event)
            if stream.failure is not None:
                event.outcome = stream.failure
            else:
                self.on_its_way[subtask].append(event)
        self._append_what_may_go(subtask)
        self._settle()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def hear_handled_through(self, data: st.DataObject) -> None:
        """What it claims beyond what was appended is not believed."""
        task = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        events = self.current[task.subtask].events
        through = data.draw(st.integers(0, len(events) + 1))
        self.script.read(task.heartbeat(through))
        self._handled(task.subtask, through)

    def _handled(self, subtask: SubtaskId, through: int) -> None:
        events = self.current[subtask].events
        if through <= len(events) and all(event.appended for event in events[:through]):
            for event in events[:through]:
                event.outcome = "handled"

    # ---- checkpoints

    def _may_trigger(self) -> bool:
        all_live = len(self.live) == len(SUBTASKS)
        return all_live and len(self.pending) < CONCURRENT and all(p.has_markers for p in self.pending)

    @precondition(lambda self: self._may_trigger())
    @rule()
    def trigger(self) -> None:
        self.pending.append(Checkpoint(self.script.trigger()))

    @precondition(lambda self: any(not p.has_markers for p in self.pending))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        self._cut(data.draw(st.sampled_from(sorted(set(POLICIES) - self.pending[-1].cut_by))))

    @precondition(lambda self: self._may_trigger() or any(not p.has_markers for p in self.pending))
    @rule(operators=st.permutations(sorted(POLICIES)))
    def trigger_and_cut(self, operators: list[str]) -> None:
        if self._may_trigger():
            self.trigger()
        for operator in operators:
            if self.pending and operator not in self.pending[-1].cut_by:
                self._cut(operator)

    def _cut(self, operator: str) -> None:
        checkpoint = self.pending[-1]
        self.script.handle(FutureCompleted(operator, checkpoint.id, b"state"))
        checkpoint.cut_by.add(operator)
        if checkpoint.has_markers:
            for subtask in SUBTASKS:  # section 7.4: what was sent before the cut stands before the marker
                self._append(subtask, [e for e in self.on_its_way[subtask] if checkpoint.id not in e.waits_for])
                self.log[subtask].append(checkpoint.id)
        self._settle()

    @rule(data=st.data(), subtask=st.sampled_from(SUBTASKS), kind=st.sampled_from([SnapshotTaken, CheckpointAck]))
    def events_wait_for_a_snapshot(self, data: st.DataObject, subtask: SubtaskId, kind: type) -> None:
        """Sent behind one cut or two, and let go by one answer."""
        self.who_is_missing_says_hello()
        self.trigger_and_cut(sorted(POLICIES))
        self.send(data, subtask, 3, 2)
        if data.draw(st.booleans()) and self._may_trigger():
            self.trigger_and_cut(sorted(POLICIES))
            self.send(data, subtask, 3, 1)
        if any(p.has_markers for p in self.pending):
            self.subtask_answers(data, kind)

    @precondition(lambda self: self.live and any(p.has_markers for p in self.pending))
    @rule(data=st.data(), kind=st.sampled_from([SnapshotTaken, CheckpointAck, CheckpointAck]))
    def subtask_answers(self, data: st.DataObject, kind: type) -> None:
        checkpoint = data.draw(st.sampled_from([p for p in self.pending if p.has_markers]))
        task = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self._answer(checkpoint, task, kind)

    @precondition(lambda self: any(p.has_markers for p in self.pending))
    @rule(data=st.data(), order=st.permutations(SUBTASKS))
    def everybody_answers(self, data: st.DataObject, order: list[SubtaskId]) -> None:
        checkpoint = data.draw(st.sampled_from([p for p in self.pending if p.has_markers]))
        for subtask in order:
            self._answer(checkpoint, self.live[subtask], CheckpointAck)

    def _answer(self, checkpoint: Checkpoint, task: Task, kind: type) -> None:
        n, subtask = checkpoint.id, task.subtask
        if checkpoint not in self.pending:
            return
        if kind is SnapshotTaken:
            self.script.read(task.snapshot_taken(n))
        else:
            log = self.script.events_log[subtask]
            at, marker = next(
                (o, r) for o, r in enumerate(log) if isinstance(r, TriggerCheckpoint) and r.checkpoint_id == n
            )
            self.script.read(task.ack(n, handled_through=marker.sequence, event_position=at + 1))
            self._handled(subtask, marker.sequence)
            checkpoint.acked_by.add(subtask)
        self._open(subtask, checkpoint)
        if checkpoint.acked_by == set(SUBTASKS):
            for older in [p for p in self.pending if p.id < n]:
                self._over(older)
            self._over(checkpoint)
        self._settle()

    # ---- trouble

    @rule(data=st.data(), what=st.sampled_from(["decline", "subtask_fails", "hello", "coordinator_raises"]))
    def trouble(self, data: st.DataObject, what: str) -> None:
        if self.live:
            task = self.live[data.draw(st.sampled_from(sorted(self.live)))]
            getattr(self, f"_{what}")(data, task)
            self._settle()

    def _decline(self, data: st.DataObject, task: Task) -> None:
        if self.pending:
            checkpoint = data.draw(st.sampled_from(self.pending))
            self.script.read(CheckpointDecline(task.sender, checkpoint.id, "cannot"))
            self._over(checkpoint)

    def _subtask_fails(self, _: st.DataObject, task: Task) -> None:
        self.script.read(task.failed())
        self._fail_region(task.subtask)

    def _hello(self, _: st.DataObject, task: Task) -> None:
        self._start(task.subtask)

    def _coordinator_raises(self, _: st.DataObject, __: Task) -> None:
        self.script.handle(CoordinatorRaised("keeps", self.epoch, "call_later", "boom"))
        self.epoch += 1
        self.live.clear()
        self.pending.clear()
        for subtask in SUBTASKS:
            self._fail(subtask, "RolledBack")

    def _fail_region(self, subtask: SubtaskId) -> None:
        """Under replay its events belong to the successor; under reset they are void."""
        del self.live[subtask]
        if POLICIES[subtask.operator] is FailoverPolicy.RESET:
            self._fail(subtask, "TaskNotRunning")
        for checkpoint in list(self.pending):
            self._over(checkpoint)

    @precondition(lambda self: len(self.live) < len(SUBTASKS))
    @rule()
    def who_is_missing_says_hello(self) -> None:
        for subtask in SUBTASKS:
            if subtask not in self.live:
                self._start(subtask)

    def _start(self, subtask: SubtaskId) -> None:
        if subtask in self.live:
            task = self.script.hello(subtask)
            self._fail_region(subtask)
        else:
            task = self.script.hello(subtask)
        self.live[subtask] = task
        if subtask not in self.current:
            ledger = Ledger(task.stream, Load(), threading.Condition())
            self.current[subtask] = Numbered(task.stream, ledger)
            self.streams[subtask].append(self.current[subtask])
        assert task.stream is self.current[subtask].stream, "what a new gateway sends through"
        self._check_start(subtask, task.start)

    def _check_start(self, subtask: SubtaskId, start: Start) -> None:
        """Section 5.3: where the new attempt begins to read, the event that it expects comes next."""
        if POLICIES[subtask.operator] is FailoverPolicy.REPLAY:
            behind = self.script.events_log[subtask][start.event_position :]
            sequences = [r.sequence for r in behind if isinstance(r, EventFrame) and r.epoch == start.epoch]
            appended = sum(event.appended for event in self.current[subtask].events)
            assert (sequences or [appended])[0] == start.expected_sequence

    # ---- what must be so

    @invariant()
    def each_partition_holds_what_the_list_says(self) -> None:
        for subtask in SUBTASKS:
            found: list[bytes | int] = []
            for record in self.script.events_log[subtask]:
                if isinstance(record, EventFrame):
                    found += unpack(record.count, record.lengths, record.payload)
                elif isinstance(record, TriggerCheckpoint):
                    found.append(record.checkpoint_id)
            assert found == self.log[subtask]

    @invariant()
    def sequences_neither_skip_nor_repeat(self) -> None:
        for subtask in SUBTASKS:
            due: dict[tuple[int, int], int] = {}
            for record in self.script.events_log[subtask]:
                if isinstance(record, EventFrame):
                    by_attempt = POLICIES[subtask.operator] is FailoverPolicy.RESET
                    key = record.epoch, record.attempt if by_attempt else -1
                    assert record.sequence == due.get(key, 0)
                    due[key] = record.sequence + record.count

    @invariant()
    def each_future_is_where_the_list_says(self) -> None:
        for event in [e for streams in self.streams.values() for s in streams for e in s.events]:
            failure = event.future.exception()
            outcome = "handled" if failure is None else type(failure).__name__
            assert (outcome if event.future.done() else "pending") == event.outcome

    def teardown(self) -> None:
        """Nobody waits for ever: once what is pending is over, all has been appended or has failed."""
        for checkpoint in list(self.pending):
            for subtask in sorted(self.live)[:1]:
                self.script.read(self.live[subtask].decline(checkpoint.id))
                self._over(checkpoint)
        if self.live:
            assert all(slot.gateway.held_events == 0 for slot in self.script.epoch.slots.values())
            self.each_partition_holds_what_the_list_says()


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_events_and_their_futures_go_the_way_that_the_lists_say(round_: int) -> None:
    explore(SendingMachine, round_, examples=30, steps=30)
