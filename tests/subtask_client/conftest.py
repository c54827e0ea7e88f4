"""A core driven without any clock, thread or IO: the test is the log, the user's code and the coordinator's pen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.schemas import acks, events
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.frames import pack
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
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
    def marker(n: int, sequence: int, epoch: int = 1, stop: bool = False) -> events.TriggerCheckpoint:
        return events.TriggerCheckpoint(epoch, n, sequence, savepoint=stop, stop=stop)

    @staticmethod
    def completed(n: int, epoch: int = 1) -> events.CheckpointCompleted:
        return events.CheckpointCompleted(epoch, n)

    @staticmethod
    def aborted(n: int, epoch: int = 1) -> events.CheckpointAborted:
        return events.CheckpointAborted(epoch, n)

    @staticmethod
    def reset(epoch: int = 1, generation: int = 1) -> events.Reset:
        return events.Reset(epoch, generation)

    @staticmethod
    def stop(attempt: int = ATTEMPT, nonce: str = "nonce-1", epoch: int = 1) -> events.Stop:
        return events.Stop(epoch, attempt, nonce, "because")


class CoreDriver:
    """Feeds a core, checks its invariants after each input, and ends its user calls at once, as ``user`` says."""

    def __init__(self, **config: Any) -> None:
        self.core = SubtaskCore(CoreConfig(job="job", subtask=SubtaskId("reader", 0), run="run-1", **config))
        self.log: list[Any] = []
        """The events partition; an ``Exception`` in it is an unreadable record."""
        self.effects: list[do.Effect] = []
        """Everything asked for since the last :meth:`fresh`."""
        self.handled: list[bytes] = []
        """By the present object of the user's."""
        self.hello_known = True
        self.user: dict[type, Callable[[Any], on.Input]] = {}
        """How user calls end, where it is not well."""
        self.state: bytes | None = b"state"
        self.hellos = 0

    def feed(self, event: on.Input) -> list[do.Effect]:
        mark = len(self.effects)
        pending: on.Input | None = event
        while pending is not None:
            effects = self.core.handle(pending)
            check_invariants(self.core)
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
            case do.NotePosition():
                self.hellos += 1
                return on.PositionNoted(len(self.log), f"nonce-{self.hellos}")
            case do.WriteHello(record=hello):
                if self.hello_known:
                    return on.HelloTaken(hello.nonce, ATTEMPT + 10 * (self.hellos - 1))
            case do.OpenUser():
                self.handled = []
                return on.Opened()
            case do.HandleEvents(events=events):
                self.handled += events
                return on.EventsHandled()
            case do.TakeSnapshot(checkpoint_id=n):
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
        mark = len(self.effects)
        reads = (Phase.WAITING, Phase.RUNNING, Phase.FINISHED)
        while (self.core.phase in reads or self.core.looking) and self.core.position < len(self.log):
            offset = self.core.position
            record = self.log[offset]
            if isinstance(record, Exception):
                self.feed(on.RecordUnreadable(offset))
            else:
                self.feed(on.RecordRead(offset, record))
        return self.effects[mark:]

    def started(self, **changes: Any) -> CoreDriver:
        """Hello said, and answered by a Start whose event position is its own offset unless ``changes`` say else."""
        self.hello()
        self.append(Wire.start(**{"event_position": len(self.log), **changes}))
        return self

    def fresh(self) -> CoreDriver:
        self.effects.clear()
        return self

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
        return [
            type(e.record).__name__ if isinstance(e, do.Write | do.WriteHeartbeat | do.WriteHello) else type(e).__name__
            for e in given
        ]

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
