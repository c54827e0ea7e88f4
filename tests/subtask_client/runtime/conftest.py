"""A runtime over logs in memory; the test plays the coordinator. Everything is waited for with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from penstock.schemas import acks, events
from penstock.schemas.codec import decode, encode
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.frames import pack, unpack
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.schemas.settings import CheckpointSettings, JobSettings, OperatorSettings
from penstock.subtask_client.api import Subtask
from penstock.subtask_client.protocol.effects import Leave
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

T = TypeVar("T")
DEADLINE_S = 10.0


class MemoryStorage:
    """State storage whose puts wait while ``gate`` is closed, and fail with ``error``."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.putting = threading.Event()
        self.deleted: list[str] = []
        self.error: Exception | None = None

    def put(self, location: str, data: bytes) -> None:
        self.putting.set()
        assert self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        self.states[location] = data

    def get(self, location: str, size: int = 0) -> bytes:
        return self.states[location]

    def delete(self, locations: Any) -> None:
        for location in locations:
            self.states.pop(location, None)
            self.deleted.append(location)


class Recorder(Subtask):
    """Keeps what it is called with in ``calls``; raises where ``fail`` says so."""

    def __init__(self, calls: list[Any], fail: dict[str, BaseException]) -> None:
        self.calls, self.fail = calls, fail
        self.state: list[Any] = []

    def _called(self, name: str, *args: Any) -> None:
        self.calls.append((name, *args))
        if (error := self.fail.pop(name, None)) is not None:
            raise error

    def open(self, context: Any) -> None:
        self.context = context
        self._called("open", context.attempt)

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self._called("restore_state", checkpoint_id, state)

    def handle_operator_event(self, event: Any) -> None:
        self._called("handle_operator_event", event)
        self.state.append(event)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self._called("snapshot_state", checkpoint_id)
        return b",".join(self.state)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._called("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self._called("notify_checkpoint_aborted", checkpoint_id, reason)

    def close(self) -> None:
        self._called("close")


class Rig:
    """The subtask ``reader/0`` in a thread, and the pen and the eyes of its coordinator."""

    def __init__(self, transport: Any = None) -> None:
        self.transport: Any = transport or MemoryTransport(MemoryBroker())
        self.settings = self.settings_with()
        self.storage = MemoryStorage()
        self.calls: list[Any] = []
        self.fail: dict[str, BaseException] = {}
        self.objects: list[Any] = []
        self.make: Callable[[], Subtask] = lambda: Recorder(self.calls, self.fail)
        self.stop_requested = threading.Event()
        self.options: dict[str, Any] = {}
        self.runtime: SubtaskRuntime | None = None
        self.outcome: Leave | BaseException | None = None
        self._thread: threading.Thread | None = None
        topics = self.settings.topics
        self.transport.create_topics(topics.specs(self.settings.parallelism))
        self.events_partition = Partition(topics.events("reader"), 0)
        self.acks_partition = Partition(topics.acks, 0)
        self.read: list[Any] = []
        """Records from the acks partition, in order."""
        self._looked_at = 0
        self._writer = self.transport.writer()

    @staticmethod
    def settings_with(**changes: Any) -> JobSettings:
        given: dict[str, Any] = {"operators": (OperatorSettings("reader", 1),), "heartbeat_interval": 0.1}
        inline_state_max = changes.pop("inline_state_max", 1000)
        checkpoint = CheckpointSettings(inline_state_max=inline_state_max)
        return JobSettings("job", checkpoint=checkpoint, **{**given, **changes})

    # ---- the subtask

    def _factory(self) -> Subtask:
        made = self.make()
        self.objects.append(made)
        return made

    def run(self) -> Rig:
        self.runtime = SubtaskRuntime(
            self.settings, SubtaskId("reader", 0), self._factory, self.transport, run="run-1",
            stop_requested=self.stop_requested, storage=self.storage, **self.options,
        )  # fmt: skip

        def body() -> None:
            assert self.runtime is not None
            try:
                self.outcome = self.runtime.run()
            except BaseException as error:
                self.outcome = error

        self._thread = threading.Thread(target=body)
        self._thread.start()
        return self

    def ended(self) -> Any:
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the runtime did not end"
        return self.outcome

    def close(self) -> None:
        self.stop_requested.set()
        self.storage.gate.set()
        if self._thread is not None:
            self.ended()

    # ---- the coordinator

    def append(self, *records: Any) -> int:
        """Offset of the last."""
        offsets: list[int] = []
        for record in records:
            value = record if isinstance(record, bytes) else encode(record)
            self._writer.append(self.events_partition, value, None, lambda o, e: offsets.append(o if o else 0))
        assert self._writer.flush(DEADLINE_S)
        return offsets[-1]

    def expect(self, kind: type[T], where: Callable[[Any], bool] = lambda record: True) -> T:
        """The next record of that kind; those passed over stay in ``read``."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self._catch_up()
            while self._looked_at < len(self.read):
                record = self.read[self._looked_at]
                self._looked_at += 1
                if isinstance(record, kind) and where(record):
                    return record
            self._wait_for_acks(deadline)
        raise AssertionError(f"no {kind.__name__} within {DEADLINE_S} s; there are {self.read}")

    def _catch_up(self) -> None:
        self.read = [decode(record.value) for record in self.transport.read_all(self.acks_partition)]

    def _wait_for_acks(self, deadline: float) -> None:
        reader = self.transport.reader({self.acks_partition: len(self.read)})
        reader.poll(max(0.0, deadline - time.monotonic()), 1)
        reader.close()

    def hello(self) -> tuple[acks.Hello, int]:
        hello = self.expect(acks.Hello)
        return hello, self._looked_at - 1

    def start(self, **changes: Any) -> events.Start:
        """Answers the next Hello."""
        hello, attempt = self.hello()
        given: dict[str, Any] = {
            "epoch": 1, "generation": 0, "attempt": attempt, "nonce": hello.nonce, "checkpoint_id": NO_CHECKPOINT,
            "state": None, "next_checkpoint_id": 1, "expected_epoch": 1, "expected_sequence": 0, "event_position": 0,
            "event_ranges": (), "data_positions": (), "policy": FailoverPolicy.REPLAY,
        }  # fmt: skip
        start = events.Start(**{**given, **changes})
        self.append(start)
        return start

    @staticmethod
    def frame(sequence: int, *payloads: bytes, epoch: int = 1, attempt: int = 0) -> events.EventFrame:
        return events.EventFrame(epoch, attempt, sequence, *pack(payloads))

    @staticmethod
    def marker(n: int, sequence: int, stop: bool = False) -> events.TriggerCheckpoint:
        return events.TriggerCheckpoint(1, n, sequence, savepoint=stop, stop=stop)

    def stop(self, start: events.Start) -> None:
        self.append(events.Stop(start.epoch, start.attempt, start.nonce, "the job stops"))

    def handled(self, n: int) -> acks.Heartbeat:
        """Waits until everything below sequence ``n`` is reported handled."""
        return self.expect(acks.Heartbeat, lambda beat: beat.handled_through >= n)

    def events_up(self) -> list[bytes]:
        """Payloads of all event frames to the coordinator so far."""
        self._catch_up()
        frames = [r for r in self.read if isinstance(r, acks.OperatorEventFrame)]
        return [event for f in frames for event in unpack(f.count, f.lengths, f.payload)]

    def called(self, name: str) -> list[Any]:
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def rig_over() -> Iterator[Callable[[Any], Rig]]:
    """Makes the same over another transport."""
    rigs: list[Rig] = []

    def make(transport: Any) -> Rig:
        rigs.append(Rig(transport))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder
