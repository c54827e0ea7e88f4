"""A core driven without any clock, thread or IO: the test is the log, the user's code and the coordinator's pen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.schemas import acks, events
from penstock.schemas.data import Barrier, ChannelEnded, DataRecord, RecordFrame
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.frames import pack
from penstock.schemas.ids import NO_ATTEMPT, NO_CHECKPOINT, SubtaskId
from penstock.schemas.state import OPEN_END, ChannelPosition, Segment, Sender
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.config import CoreConfig
from penstock.subtask_client.protocol.core import SubtaskCore
from penstock.subtask_client.protocol.invariants import check_invariants
from penstock.subtask_client.protocol.phases import Phase

ATTEMPT = 50
"""Offset of the first Hello."""


class Wire:
    """Records of the events partition, with what a test does not care about filled in."""

    @staticmethod
    def start(attempt: int = ATTEMPT, nonce: str = "nonce-1", **changes: Any) -> events.Start:
        given: dict[str, Any] = {
            "epoch": 1, "generation": 0, "attempt": attempt, "nonce": nonce, "checkpoint_id": NO_CHECKPOINT,
            "state": None, "next_checkpoint_id": 1, "expected_epoch": 1, "expected_sequence": 0, "event_position": 0,
            "event_ranges": (), "data_positions": (), "policy": FailoverPolicy.REPLAY,
        }  # fmt: skip
        return events.Start(**{**given, **changes})

    @staticmethod
    def frame(sequence: int, *payloads: bytes, epoch: int = 1, attempt: int = ATTEMPT) -> events.EventFrame:
        return events.EventFrame(epoch, attempt, sequence, *pack(payloads))

    @staticmethod
    def marker(
        n: int, sequence: int, epoch: int = 1, stop: bool = False, savepoint: bool = False
    ) -> events.TriggerCheckpoint:
        return events.TriggerCheckpoint(epoch, n, sequence, savepoint=stop or savepoint, stop=stop)

    @staticmethod
    def completed(n: int, epoch: int = 1) -> events.CheckpointCompleted:
        return events.CheckpointCompleted(epoch, n)

    @staticmethod
    def aborted(n: int, epoch: int = 1) -> events.CheckpointAborted:
        return events.CheckpointAborted(epoch, n, "declined")

    @staticmethod
    def reset(epoch: int = 1, generation: int = 1) -> events.Reset:
        return events.Reset(epoch, generation)

    @staticmethod
    def stop(attempt: int = ATTEMPT, nonce: str = "nonce-1", epoch: int = 1) -> events.Stop:
        return events.Stop(epoch, attempt, nonce, "because")

    @staticmethod
    def at(channel: str, begin: int | None = 0, *ranges: Segment, sequence: int = 0) -> ChannelPosition:
        """A channel's position: ranges, then open from ``begin``; None: the sender has ended behind them."""
        opened = () if begin is None else (Segment(begin, OPEN_END, 1, 0, NO_ATTEMPT),)
        return ChannelPosition(channel, (*ranges, *opened), sequence)


class Upstream:
    """A sending attempt under one Start: numbers its records as a sender does."""

    def __init__(self, channel: str, *, attempt: int = 30, epoch: int = 1, generation: int = 0) -> None:
        operator, _, index = channel.partition("/")
        self.channel = channel
        self.sender = Sender(operator, int(index), attempt, epoch, generation)
        self.sequence = 0

    def frame(self, *payloads: bytes) -> RecordFrame:
        return RecordFrame(self.sender, self._next(), *pack(payloads))

    def barrier(self, n: int, savepoint: bool = False) -> Barrier:
        return Barrier(self.sender, self._next(), n, savepoint, triggered_at_ms=0)

    def end(self) -> ChannelEnded:
        return ChannelEnded(self.sender, self._next())

    def range(self, begin: int, end: int) -> Segment:
        """These offsets, to be read as this attempt wrote them."""
        return Segment(begin, end, self.sender.epoch, self.sender.generation, self.sender.attempt)

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence - 1


EVENTS = "events"
"""What :attr:`CoreDriver.slow` calls the events partition."""
OVERDUE_S = 5.0
"""An alignment that has waited for so long turns unaligned."""


def subtasks(names: str) -> tuple[SubtaskId, ...]:
    """``"up/0 up/1"`` as ids."""
    pairs = (name.rpartition("/") for name in names.split())
    return tuple(SubtaskId(operator, int(index)) for operator, _, index in pairs)


class CoreDriver:
    """Feeds a core, checks its invariants after each input, and ends its user calls at once, as ``user`` says."""

    def __init__(self, senders: str = "", receivers: str = "", **config: Any) -> None:
        config["senders"], config["receivers"] = subtasks(senders), subtasks(receivers)
        config.setdefault("aligned_timeout", OVERDUE_S)
        self.core = SubtaskCore(CoreConfig(job="job", subtask=SubtaskId("reader", 0), run="run-1", **config))
        self.log: list[Any] = []
        """The events partition; an ``Exception`` in it is an unreadable record."""
        self.data: dict[str, list[Any]] = {sender.operator: [] for sender in config["senders"]}
        """Data partitions by upstream operator; an ``Exception`` as above."""
        self.data_at: dict[str, int | None] = dict.fromkeys(self.data)
        """Where the next record of each is read; None: it is not read, for now."""
        self.slow: set[str] = set()
        """Data partitions (or ``EVENTS``) that nothing arrives from, until :meth:`catch_up`."""
        self.effects: list[do.Effect] = []
        """Everything asked for since the last :meth:`fresh`."""
        self.handled: list[bytes] = []
        """By the present object of the user's."""
        self.taken: list[tuple[str, bytes]] = []
        """Records of other operators that it has handled, with their sender."""
        self.hello_known = True
        self.user: dict[type, Callable[[Any], on.Input]] = {}
        """How user calls end, where it is not well."""
        self.state: bytes | None = b"state"
        self.in_state: dict[int, set[bytes]] = {}
        """By checkpoint: the events and records that its snapshot contains."""
        self.check: Callable[[SubtaskCore], None] = check_invariants
        self.hellos = 0
        self.now = 100.0
        """Monotonic second; moved by :meth:`pass_time`."""
        self.reachable = True
        """Whether the broker is."""

    def pass_time(self, seconds: float) -> list[do.Effect]:
        self.now += seconds
        return self.feed(on.Tick())

    def feed(self, event: on.Input) -> list[do.Effect]:
        mark = len(self.effects)
        pending: on.Input | None = event
        while pending is not None:
            effects = self.core.handle(pending, self.now)
            self.check(self.core)
            self.effects += effects
            pending = None
            for effect in effects:
                assert pending is None, f"{effect} follows a user call"
                pending = self._perform(effect)
        return self.effects[mark:]

    def _perform(self, effect: do.Effect) -> on.Input | None:
        if type(effect) in self.user:
            return self.user[type(effect)](effect)
        match effect:
            case do.AskBroker():
                return on.BrokerAsked(self.reachable)
            case do.NotePosition():
                self.hellos += 1
                return on.PositionNoted(len(self.log), f"nonce-{self.hellos}")
            case do.WriteHello(record=hello):
                if self.hello_known:
                    return on.HelloTaken(hello.nonce, ATTEMPT + 10 * (self.hellos - 1))
            case do.SeekData(upstream=upstream, offset=offset):
                self.data_at[upstream] = offset
            case do.PauseData(upstream=upstream):
                self.data_at[upstream] = None
            case do.OpenUser():
                self.handled, self.taken = [], []
                return on.Opened()
            case do.HandleRecords(sender=sender, records=records):
                self.taken += [(str(sender), record) for record in records]
                return on.RecordsHandled()
            case do.EndInputs():
                return on.EndInputsReturned()
            case do.HandleEvents(events=events):
                self.handled += events
                return on.EventsHandled()
            case do.TakeSnapshot(checkpoint_id=n):
                self.in_state[n] = {*self.handled, *self.records}
                return on.SnapshotReturned(n, self.state)
            case do.NotifyCompleted(checkpoint_id=n) | do.NotifyAborted(checkpoint_id=n):
                return on.Notified(n)
        return None

    def hello(self) -> CoreDriver:
        self.feed(on.InstanceStarted())
        return self

    def append(self, *records: Any) -> list[do.Effect]:
        """Appends and reads on, as far as there is something to read."""
        self.log += records
        return self._read_on()

    def receive(self, upstream: str, *records: DataRecord | Exception) -> list[do.Effect]:
        """The same of a data partition."""
        self.data[upstream] += records
        return self._read_on()

    def catch_up(self, *partitions: str) -> list[do.Effect]:
        """Nothing holds these back any more (all, if none is named)."""
        self.slow = self.slow - set(partitions) if partitions else set()
        return self._read_on()

    def _read_on(self) -> list[do.Effect]:
        mark = len(self.effects)
        while self._read_event() or any(self._read_data(upstream) for upstream in self.data):
            pass
        return self.effects[mark:]

    def _read_event(self) -> bool:
        reads = (Phase.WAITING, Phase.RUNNING, Phase.FINISHED)
        offset = self.core.position
        if EVENTS in self.slow or offset >= len(self.log) or not (self.core.phase in reads or self.core.looking):
            return False
        record = self.log[offset]
        self.feed(on.RecordUnreadable(offset) if isinstance(record, Exception) else on.RecordRead(offset, record))
        return True

    def _read_data(self, upstream: str) -> bool:
        offset = self.data_at[upstream]
        if upstream in self.slow or offset is None or offset >= len(self.data[upstream]):
            return False
        self.data_at[upstream] = offset + 1
        record = self.data[upstream][offset]
        if isinstance(record, Exception):
            self.feed(on.DataUnreadable(upstream, offset))
        else:
            self.feed(on.DataRead(upstream, offset, record))
        return True

    def started(self, **changes: Any) -> CoreDriver:
        """Hello said, and answered by a Start whose event position is its own offset unless ``changes`` say else.

        Channels begin with their partitions' first record.
        """
        self.hello()
        positions = tuple(Wire.at(str(sender)) for sender in self.core.config.senders)
        self.append(Wire.start(**{"event_position": len(self.log), "data_positions": positions, **changes}))
        return self

    def restarted(self, **changes: Any) -> CoreDriver:
        """A Reset, and the Start of the next generation, which restores the last ack unless ``changes`` say else."""
        assert self.core.running is not None
        epoch, number = self.core.running.start.full_generation
        given: dict[str, Any] = {"epoch": epoch, "generation": number + 1, "expected_epoch": epoch}
        if acked := self.written(acks.CheckpointAck):
            ack = acked[-1]
            given |= {
                "checkpoint_id": ack.checkpoint_id, "state": ack.state, "next_checkpoint_id": ack.checkpoint_id + 1,
                "expected_sequence": ack.handled_through, "event_position": ack.event_position,
                "event_ranges": ack.event_ranges, "data_positions": ack.data_positions,
                "inputs_ended": ack.inputs_ended,
            }  # fmt: skip
        self.append(Wire.reset(epoch, number + 1))
        attempt, nonce = ATTEMPT + 10 * (self.hellos - 1), f"nonce-{self.hellos}"
        self.append(Wire.start(**{"attempt": attempt, "nonce": nonce, **given, **changes}))
        return self

    def emit(self, receiver: str, record: bytes) -> None:
        """The user's object emits, outside its calls or inside."""
        if (frame := self.core.emit_record(*subtasks(receiver), record)) is not None:
            self.effects.append(frame)

    def out(self, receiver: str) -> list[DataRecord]:
        """Records written to this receiver, in order."""
        return [effect.record for effect in self.of(do.WriteData) if str(effect.receiver) == receiver]

    def fresh(self) -> CoreDriver:
        self.effects.clear()
        return self

    @property
    def records(self) -> list[bytes]:
        """Records of other operators, handled by the present object of the user's."""
        return [record for _, record in self.taken]

    @property
    def snapshots(self) -> list[int]:
        """Checkpoints that the user's object was asked for."""
        return [call.checkpoint_id for call in self.of(do.TakeSnapshot)]

    @property
    def declined(self) -> list[int]:
        return [decline.checkpoint_id for decline in self.written(acks.CheckpointDecline)]

    @property
    def failed(self) -> list[str]:
        return [failed.cause for failed in self.written(acks.Failed)]

    def segments(self, channel: str) -> list[tuple[int, int, int]]:
        """(begin, end, attempt) of a channel in the last ack; where it is open, the last two are -1."""
        ack = self.written(acks.CheckpointAck)[-1]
        (position,) = (p for p in ack.data_positions if p.channel == channel)
        return [(s.begin, s.end, s.attempt) for s in position.segments]

    def written(self, *kinds: type) -> list[Any]:
        """Records asked to be written, in order, of these kinds if any are named."""
        writes = (do.Write, do.WriteHeartbeat, do.WriteHello)
        records = [effect.record for effect in self.effects if isinstance(effect, writes)]
        return [record for record in records if not kinds or isinstance(record, kinds)]

    def of(self, kind: type) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def names(self, effects: Sequence[do.Effect] | None = None) -> list[str]:
        """Effects as names; of a written record, its name."""
        given = self.effects if effects is None else effects
        writes = (do.Write, do.WriteHeartbeat, do.WriteHello, do.WriteData)
        return [type(e.record if isinstance(e, writes) else e).__name__ for e in given]

    def ack(self) -> acks.CheckpointAck:
        (ack,) = self.written(acks.CheckpointAck)
        assert isinstance(ack, acks.CheckpointAck)
        return ack

    def turn(self, dry: bool = True) -> list[do.Effect]:
        return self.feed(on.TurnEnded(dry))


@pytest.fixture
def wire() -> type[Wire]:
    return Wire


@pytest.fixture
def d() -> CoreDriver:
    return CoreDriver()


@pytest.fixture
def driver() -> type[CoreDriver]:
    return CoreDriver


@pytest.fixture
def upstream() -> type[Upstream]:
    return Upstream


@pytest.fixture
def a() -> Upstream:
    return Upstream("up/0", attempt=30)


@pytest.fixture
def b() -> Upstream:
    return Upstream("up/1", attempt=31)


@pytest.fixture
def side() -> Upstream:
    return Upstream("side/0", attempt=32)


@pytest.fixture
def two() -> CoreDriver:
    """Two channels in one partition; aligned. As it has a receiver, its end waits for nothing."""
    return CoreDriver("up/0 up/1", "down/0").started()


@pytest.fixture
def three() -> CoreDriver:
    """Two channels in one partition, one in another; aligned."""
    return CoreDriver("up/0 up/1 side/0", "down/0").started()


@pytest.fixture
def eager() -> CoreDriver:
    """Two channels in one partition; unaligned."""
    return CoreDriver("up/0 up/1", "down/0", unaligned=True).started()
