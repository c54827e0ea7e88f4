"""A subtask's process: performs the core's effects in order as the runtime does, one scheduler step at a time."""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.schemas.acks import AcksRecord, OperatorEventFrame
from penstock.schemas.codec import decode, encode
from penstock.schemas.data import DataRecord
from penstock.schemas.errors import PositionUnavailable, SequenceGap, StateError, TopicMissing
from penstock.schemas.events import CheckpointAborted, EventsRecord
from penstock.schemas.graph import Partitioning
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.schemas.state import checksum_of
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.config import CoreConfig
from penstock.subtask_client.protocol.core import SubtaskCore
from penstock.subtask_client.protocol.effects import Departure
from penstock.subtask_client.protocol.invariants import check_invariants
from penstock.transport.memory import MemoryReader
from penstock.transport.ports import LogRecord

from .backlog import BURST_MAX, Stalls
from .configs import HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, START_TIMEOUT_S
from .faults import Fault
from .pen import Outcome, Pen
from .violations import Violation

if TYPE_CHECKING:
    from .world import Action, World

Call = do.UserCall | do.NotePosition
Lists = dict[str, list[int]]


@dataclass(slots=True)
class DataIn:
    """One input's data partition; without a reader it is not read."""

    reader: MemoryReader | None = None
    fetched: deque[LogRecord] = field(default_factory=deque)


class SubtaskProcess:
    """One instance, and the user's object in it: lists of the events handled and of the events sent."""

    def __init__(self, world: World, subtask: SubtaskId, run: str, number: int) -> None:
        self.world, self.subtask, self.run = world, subtask, run
        self.name = f"S{number}({subtask})"
        settings = world.settings
        self.core = SubtaskCore(
            CoreConfig(
                job=settings.name,
                subtask=subtask,
                run=run,
                task=self.name,
                inline_state_max=settings.checkpoint.inline_state_max,
                frame_events_max=settings.frame_events_max,
                senders=tuple(settings.graph.channels_into(subtask)),
                receivers=tuple(settings.graph.channels_out_of(subtask)),
                unaligned=settings.checkpoint.unaligned,
                aligned_timeout=math.inf if (timeout := world.config.aligned_timeout) is None else timeout,
                start_timeout=START_TIMEOUT_S,
                layout=settings.parallelism,
            )
        )
        self.alive = True
        self.frozen_until = self.cut_off_until = 0.0
        self.nonces: set[str] = set()
        """Of all its Hellos."""
        self.newest_attempt = -1
        """The newest that it knew itself to be."""
        self.given_up = False
        """Its runner believes it dead."""
        self.stuck = False
        """Its user code hangs; its heartbeats go on."""
        self.aborted: set[tuple[int, int]] = set()
        """Checkpoints whose abort it has read, by epoch and id."""
        self.handled: list[int] = []
        self.sent: list[int] = []
        self.past: list[int] = []
        """Its share of what subtasks of a former layout had sent."""
        self.taken: Lists = {}
        """Records handled, by sender."""
        self.emitted: Lists = {}
        """Records emitted, by receiver."""
        self.ended = 0
        """How often it was told that its inputs have ended."""
        self.works: dict[int, str] = {}
        """By checkpoint: what its snapshot says has been handled."""
        self.is_source = not self.core.config.senders
        self.data = {edge.sender: DataIn() for edge in settings.graph.inputs(subtask.operator)}
        self.stalls = Stalls(self)
        self.call: Call | None = None
        """The user call (or the look at the log's end) under way: nothing but heartbeats is fed."""
        self.done = 0
        """Events handled of the HandleEvents under way."""
        self.inbox: deque[on.Input] = deque()
        self.pen = Pen(world.transport)
        self.reader: MemoryReader | None = None
        self.fetched: deque[LogRecord] = deque()
        self.uploads: dict[str, do.StoreState] = {}
        self.unwanted: set[str] = set()
        self.beat_at = self.hello_at = world.now
        self.feed(on.InstanceStarted())

    def __str__(self) -> str:
        attempt = "-" if self.core.attempt is None else self.core.attempt
        return f"{self.name}:{attempt}"

    # ---- the core

    def feed(self, event: on.Input) -> None:
        self.world.trace(self, "<-", event)
        if self.core.attempt is not None:
            self.newest_attempt = self.core.attempt
        effects = self.core.handle(event, self.world.now)
        check_invariants(self.core)
        for effect in effects:
            self._perform(effect)
        self.world.checks.reads(self)

    def _perform(self, effect: do.Effect) -> None:
        world = self.world
        world.trace(self, "->", effect)
        assert self.call is None or isinstance(effect, do.WriteHeartbeat), f"{effect} during {self.call}"
        match effect:
            case do.AskBroker():
                self.inbox.append(on.BrokerAsked(not self.away))
            case do.Write(record=record):
                self._write(record)
            case do.WriteHeartbeat(record=record, periodic=periodic):
                self._write(record, self._beat_settled if periodic else None)
            case do.WriteHello(record=hello):
                if self.pen.failure is not None:
                    self._replace_pen()
                nonce, self.hello_at = hello.nonce, world.now
                if self.nonces and nonce not in self.nonces:
                    world.checks.says_hello(self, self.core.position)
                self.nonces.add(nonce)
                self._write(hello, lambda offset, _: self._hello_taken(nonce, offset))
            case do.Seek(offset=offset):
                self.fetched.clear()
                if self.reader is None:
                    self.reader = world.transport.reader({world.event_partition(self.subtask): offset})
                else:
                    self.reader.seek(world.event_partition(self.subtask), offset)
            case do.SeekData(upstream=upstream, offset=offset):
                partition = world.data_partition(upstream, self.subtask)
                self.data[upstream] = DataIn(world.transport.reader({partition: offset}))
            case do.PauseData(upstream=upstream):
                self.data[upstream] = DataIn()
            case do.WriteData(receiver=receiver, record=data):
                self.pen.append(world.data_partition(self.subtask.operator, receiver), encode(data), None, None)
            case do.CloseUser():
                self._forget()
            case do.StoreState(location=location):
                self.uploads[location] = effect
            case do.DropState(location=location):
                if location in self.uploads:
                    self.unwanted.add(location)
                else:
                    world.checks.deleting(self, [location])
                    world.stored.pop(location, None)
            case do.Report(error=error):
                if isinstance(error, SequenceGap) and not world.config.strays:
                    raise Violation(f"section 5.4: {error}")
            case do.Leave(departure=departure, reason=reason):
                self.leave(departure, reason)
            case do.TakeSnapshot(checkpoint_id=n):
                world.checks.snapshots(self, n)
                self.call, self.done = effect, 0
            case _:
                self.call, self.done = effect, 0

    def _write(self, record: AcksRecord, outcome: Outcome | None = None) -> None:
        self.pen.append(self.world.acks, encode(record), None, outcome)
        if not isinstance(record, OperatorEventFrame) and self.world.chance(0.01 * self.world.config.duplicates):
            self.pen.append(self.world.acks, encode(record), None, None)

    def _hello_taken(self, nonce: str, offset: int | None) -> None:
        if offset is not None:
            self.inbox.append(on.HelloTaken(nonce, offset))

    def _beat_settled(self, _: int | None, __: Exception | None) -> None:
        self.core.handle(on.HeartbeatSettled(), self.world.now)

    # ---- steps

    def end_call(self) -> None:
        """The user call under way goes on by a step: most end with it, handling goes event by event."""
        call, world = self.call, self.world
        ended: on.Input
        match call:
            case do.HandleEvents(events=events):
                uid = json.loads(events[self.done])
                self.handled.append(uid)
                self.done += 1
                world.trace(f"{self} handles {uid}")
                world.checks.handled(self, uid)
                if self.done < len(events):
                    return
                ended = on.EventsHandled()
            case do.HandleRecords(sender=sender, records=records):
                uid = json.loads(records[self.done])
                self.taken.setdefault(str(sender), []).append(uid)
                self.done += 1
                world.trace(f"{self} takes {uid} of {sender}")
                world.checks.taken(self, sender)
                self.emit()
                if self.done < len(records):
                    return
                ended = on.RecordsHandled()
            case do.EndInputs():
                self.ended += 1
                world.checks.inputs_ended(self)
                self.emit()
                ended = on.EndInputsReturned()
            case do.NotePosition():
                end = world.transport.offsets([world.event_partition(self.subtask)])
                ended = on.PositionNoted(end[world.event_partition(self.subtask)].end, world.new_nonce())
            case do.OpenUser():
                if not self._restore(call):
                    return
                ended = on.Opened()
            case do.TakeSnapshot(checkpoint_id=n):
                if world.chance(0.3) and self._may_send():
                    self.send()
                if world.chance(0.3) and not self.core.finished:
                    self.emit()
                self.works[n] = world.checks.work_in(self.state)
                ended = on.SnapshotReturned(n, json.dumps(self.state).encode())
            case do.NotifyCompleted(checkpoint_id=n) | do.NotifyAborted(checkpoint_id=n):
                if isinstance(call, do.NotifyCompleted):
                    world.checks.told(self.subtask, self.works[n])
                ended = on.Notified(n)
            case None:
                raise AssertionError("no call is under way")
        self.call = None
        self.feed(ended)

    def _restore(self, opening: do.OpenUser) -> bool:
        """Whether the state could be restored; where not, that has been dealt with."""
        start, world = opening.start, self.world
        self._forget()
        if start.checkpoint_id == NO_CHECKPOINT:
            return True
        assert start.state is not None
        try:
            state = world.storage.restored(self, start.state)
        except StateError as error:
            if world.checks.current(self) is not None and not world.storage.is_rotten(error):
                raise Violation(f"section 7.9: {self} is to restore {start.state.location}: {error}") from error
            self.fail_call()
            return False
        lists = json.loads(state)
        self.handled, self.sent, self.past = lists["handled"], lists["sent"], lists["past"]
        self.taken, self.emitted, self.ended = lists["taken"], lists["emitted"], lists["ended"]
        world.checks.told(self.subtask, world.checks.work_in(lists))
        return True

    @property
    def state(self) -> dict[str, object]:
        lists = {"handled": self.handled, "sent": self.sent, "taken": self.taken, "emitted": self.emitted}
        return {**lists, "ended": self.ended, "past": self.past}

    def _forget(self) -> None:
        self.handled, self.sent, self.past = [], [], []
        self.taken, self.emitted, self.ended = {}, {}, 0

    def fail_call(self) -> None:
        self.call = None
        self.feed(on.UserFailed("the user raised"))

    def read(self) -> None:
        if not self.fetched and self.reader is not None:
            try:
                self.fetched.extend(self.reader.poll(0.0, self.world.rng.randint(1, 3)))
            except TopicMissing:
                self.crash()
                return
            except PositionUnavailable as error:
                if self.world.checks.current(self) is not None and self.world.checks.successor is None:
                    raise Violation(f"section 7.9: {self}, which is current, cannot read on: {error}") from error
                partition = self.world.event_partition(self.subtask)
                there = self.world.transport.offsets([partition])[partition]
                self.feed(on.PositionLost(there.begin, there.end, str(error)))
                return
        if self.fetched:
            record = self.fetched.popleft()
            decoded = decode(record.value)
            assert isinstance(decoded, EventsRecord)
            if isinstance(decoded, CheckpointAborted) and decoded.epoch >= self.core.epoch_seen:  # else it is void
                self.aborted.add((decoded.epoch, decoded.checkpoint_id))
            self.feed(on.RecordRead(record.offset, decoded))

    def read_data(self, upstream: str) -> None:
        data = self.data[upstream]
        if not data.fetched:
            assert data.reader is not None
            try:
                data.fetched.extend(data.reader.poll(0.0, self.world.rng.randint(1, 3)))
            except TopicMissing:
                self.crash()
                return
            except PositionUnavailable as error:
                if self.world.checks.current(self) is not None and self.world.checks.successor is None:
                    raise Violation(f"section 7.9: {self}, which is current, cannot read on: {error}") from error
                self.data[upstream] = DataIn()
                partition = self.world.event_partition(self.subtask)
                self.feed(on.DataLost(upstream, self.world.transport.offsets([partition])[partition].end, str(error)))
                return
        if data.fetched:
            record = data.fetched.popleft()
            decoded = decode(record.value)
            assert isinstance(decoded, DataRecord)
            self.feed(on.DataRead(upstream, record.offset, decoded))

    def emit(self) -> None:
        """One record to somebody on every way out; on a broadcast the same to all."""
        graph = self.world.settings.graph
        for edge in graph.outputs(self.subtask.operator):
            receivers = graph.receivers(edge, self.subtask.index)
            if edge.partitioning is not Partitioning.BROADCAST:
                receivers = [self.world.rng.choice(receivers)]
            uid = self.world.new_uid()
            for receiver in receivers:
                self.emitted.setdefault(str(receiver), []).append(uid)
                self.world.trace(f"{self} emits {uid} to {receiver}")
                if (full := self.core.emit_record(receiver, json.dumps(uid).encode())) is not None:
                    self._perform_during_call(full)

    def _perform_during_call(self, effect: do.Effect) -> None:
        assert isinstance(effect, do.WriteData)
        partition = self.world.data_partition(self.subtask.operator, effect.receiver)
        self.pen.append(partition, encode(effect.record), None, None)

    def turn(self) -> None:
        self.feed(on.TurnEnded(dry=not self._something_to_read()))

    def poll(self) -> None:
        """The user's own work: sends, and ends when it has sent everything."""
        if self._may_emit() and self.world.rng.random() < 0.5:
            for _ in range(self.world.rng.randint(1, BURST_MAX) if self.world.config.backlog else 1):
                self.emit()
        elif self._may_send():
            self.send()
        elif self._work_is_done():
            self.feed(on.WorkEnded())

    def send(self) -> None:
        uid = self.world.new_uid()
        self.sent.append(uid)
        self.world.trace(f"{self} sends {uid} to its coordinator")
        for effect in self.core.send(json.dumps(uid).encode()):
            assert isinstance(effect, do.Write)
            self._write(effect.record)

    def beat(self, periodic: bool) -> None:
        if periodic:
            self.beat_at = self.world.now + HEARTBEAT_S
        for effect in self.core.handle(on.HeartbeatDue(periodic, "simulated", 0, self.done), self.world.now):
            assert isinstance(effect, do.WriteHeartbeat)
            self._perform(effect)

    def upload(self, location: str) -> None:
        upload = self.uploads.pop(location)
        n = upload.checkpoint_id
        if self.world.chance(0.05):
            self.unwanted.discard(location)
            self.inbox.append(on.StateRefused(n, location, "storage is full"))
            return
        self.world.store(location, upload.data)
        if location in self.unwanted:
            self.unwanted.discard(location)
            del self.world.stored[location]
        else:
            self.inbox.append(on.StateStored(n, location, checksum=checksum_of(upload.data)))

    def replace_pen(self) -> None:
        self._replace_pen()
        self.feed(on.WriterFailed("the broker refused a record"))

    def _replace_pen(self) -> None:
        self.world.adrift.append(self.pen.abandon(self.world.rng))
        self.pen = Pen(self.world.transport)

    # ---- ends

    def leave(self, departure: Departure, reason: str) -> None:
        self.world.trace(f"{self} leaves ({departure}): {reason}")
        answered = not self.world.config.damages and self.world.calm_for(2 * HEARTBEAT_TIMEOUT_S)
        if departure is Departure.NO_START and answered and self._was_heard():
            raise Violation(f"section 5.2: the Hello of {self} is never answered")
        self.alive = False
        self.world.adrift.append(self.pen.abandon(None))
        self.world.left(self, departure)

    def crash(self) -> None:
        self.world.trace(f"{self} CRASHES")
        self.alive = False
        self.world.adrift.append(self.pen.abandon(self.world.rng))
        self.world.died(self)

    def _was_heard(self) -> bool:
        """Whether a coordinator that still runs has long read what this instance said."""
        heard_by = self.hello_at + 2 * HEARTBEAT_TIMEOUT_S
        return any(c.alive and c.has_read_to > heard_by for c in self.world.coordinators)

    # ---- what may happen next

    def _may_send(self) -> bool:
        limit = self.world.events_wanted
        if self.world.config.pull:
            limit = min(limit, len(self.handled) + 1)
        return len(self.sent) < limit

    def _may_emit(self) -> bool:
        emitted = max(map(len, self.emitted.values()), default=0)
        return self.is_source and bool(self.core.config.receivers) and emitted < self.world.records_wanted

    def _work_is_done(self) -> bool:
        if not self.is_source or self._may_emit():
            return False
        wanted = self.world.events_wanted
        handled = self.world.config.eager_end or len(self.handled) >= wanted
        return self.world.config.finite and handled and len(self.sent) >= wanted

    def _something_to_read(self) -> bool:
        partition = self.world.event_partition(self.subtask)
        there = self.reader is not None and not self.away and self.world.more(self.reader, partition)
        return bool(self.fetched) or there

    def waits(self) -> str:
        return (
            f"{self} {self.core.phase} epoch seen {self.core.epoch_seen} position {self.core.position} call"
            f" {self.call} handled {len(self.handled)} sent {len(self.sent)} of {self.world.events_wanted}"
            f" run {self.run} uploads {list(self.uploads)} dropped {dict(self.core.dropped)}"
        )

    @property
    def away(self) -> bool:
        """The broker is not there, or not for this process."""
        return self.world.away or self.world.now < self.cut_off_until

    def deadline(self) -> float | None:
        return self.beat_at

    def actions(self) -> list[Action]:
        world, running = self.world, self.core.running
        acts: list[Any] = []
        if not self.away:
            acts += [(3.0, self.pen.flush, partition) for partition in self.pen.waiting()]
            acts += world.repeats(self.pen)
        acts += [(1.5, self.upload, location) for location in self.uploads]
        if (running is not None or self.core.former is not None) and world.now >= self.beat_at:
            acts.append((3.0, self.beat, True))
        if isinstance(self.call, do.HandleEvents):
            acts.append((0.3, self.beat, False))
        if self.call is not None:
            if not self._hangs and not (self.away and isinstance(self.call, do.NotePosition)):
                acts.append((4.0, self.end_call))
                if world.faulty and not isinstance(self.call, do.NotePosition):
                    acts.append(Fault(0.15 * world.rate * world.config.raises, self.fail_call))
        else:
            acts += self._between_calls()
        return acts + self._faults() + self.stalls.actions()

    def _between_calls(self) -> list[Action]:
        acts: list[Any] = []
        if self.pen.failure is not None:
            return [(5.0, self.replace_pen)]
        if self.inbox:
            acts.append((5.0, lambda: self.feed(self.inbox.popleft())))
        if self._something_to_read() and not self.stalls.on(None):
            acts.append((5.0, self.read))
        running = self.core.running
        for upstream, data in self.data.items():
            if self.stalls.on(upstream):
                continue
            there = data.reader is not None and not self.away
            partition = self.world.data_partition(upstream, self.subtask)
            if data.fetched or (there and self.world.more(data.reader, partition)):  # type: ignore[arg-type]
                acts.append((5.0, self.read_data, upstream))
        if (due := self.core.deadline()) is not None and self.world.now >= due:
            acts.append((1.0, self.feed, on.Tick()))
        elif self.core.aligning is not None and self.world.config.aligned_timeout is not None:
            acts.append((0.1, self.feed, on.Tick()))  # one that nobody asked for
        if self.core.hello_failed or (
            running is not None
            and (
                running.outbox.bytes_waiting
                or running.outputs.bytes_waiting
                or running.handled_through() > running.reported_through
            )
        ):
            acts.append((1.0, self.turn))
        if self.core.may_poll and (self._may_emit() or self._may_send() or self._work_is_done()):
            acts.append((1.0, self.poll))
        return acts

    @property
    def _hangs(self) -> bool:
        """For good only in user code: whatever else may be stuck has timeouts of its own."""
        return self.stuck and not (self.world.config.hangs and isinstance(self.call, do.NotePosition))

    def _faults(self) -> list[Action]:
        world = self.world
        if not world.faulty:
            return []
        rate = world.rate * world.config.subtask_faults
        acts: list[Any] = [Fault(0.05 * rate, self.crash), Fault(0.02 * rate, self._stick)]
        for partition in self.pen.waiting():
            weight = 0.03 * world.rate * world.config.refusals
            acts.append(Fault(weight, lambda at=partition: self.pen.refuse(at, stands=world.rng.random() < 0.5)))
        return acts

    def _stick(self) -> None:
        self.world.trace(f"{self} is stuck")
        self.stuck = True
