"""What is made to fail: a subtask that is sent one event at a time, of which some end whoever handles them first."""

from __future__ import annotations

import os
import queue
import signal
import struct
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from penstock import Context, Gateway, OperatorCoordinator, Subtask
from penstock.schemas.errors import SubtaskError

DEADLINE_S = 60.0
_EVENT = struct.Struct("<qb")
_REPORT = struct.Struct("<qqd")
_STATE = struct.Struct("<q")


class Ends(IntEnum):
    """What an event does to the attempt that gets it first."""

    NOT = 0
    RAISE = 1
    KILL = 2
    """The whole process, by SIGKILL."""


class Handled(NamedTuple):
    """What a subtask says of an event that it has handled."""

    number: int
    restored: int
    """The checkpoint that its attempt began from; -1 for none."""
    at: float
    """Monotonic second, which is the same for all processes of a machine."""


class Feeder(OperatorCoordinator):
    """Sends events from the benchmark's own thread, one at a time."""

    def __init__(self) -> None:
        self._gateways: queue.SimpleQueue[Gateway] = queue.SimpleQueue()
        self._handled: queue.SimpleQueue[Handled] = queue.SimpleQueue()
        self._completed: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._gateway: Gateway | None = None
        self._sent = 0

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self._gateways.put(gateway)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: bytes, context: object) -> None:
        self._handled.put(Handled(*_REPORT.unpack(event)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._completed.put(checkpoint_id)

    def wait_until_ready(self) -> None:
        self._gateway = self._gateways.get(timeout=DEADLINE_S)

    def send(self, ends: Ends) -> Handled:
        """Sends the next event, and returns when it has been handled; by whichever attempt that was."""
        assert self._gateway is not None
        self._gateway.send_event(_EVENT.pack(self._sent, ends))
        self._sent += 1
        while (handled := self._handled.get(timeout=DEADLINE_S)).number < self._sent - 1:
            pass  # what a failover has undone is told once more
        return handled

    def wait_for_a_checkpoint(self) -> None:
        """One that was begun behind all that has been handled."""
        while not self._completed.empty():
            self._completed.get()
        for _ in range(2):
            self._completed.get(timeout=DEADLINE_S)


class Fragile(Subtask):
    """State: how many events it has handled. Each event comes in its turn, or the attempt fails."""

    def __init__(self, ends: Path) -> None:
        self.ends = ends
        self.handled = 0
        self.restored = -1

    def open(self, context: Context) -> None:
        self.context = context

    def restore_state(self, checkpoint_id: int, state: bytes) -> None:
        (self.handled,) = _STATE.unpack(state)
        self.restored = checkpoint_id

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return _STATE.pack(self.handled)

    def handle_operator_event(self, event: bytes) -> None:
        number, ends = _EVENT.unpack(event)
        if number != self.handled:
            raise SubtaskError(f"event {number} instead of {self.handled}")
        if ends != Ends.NOT and not _note(self.ends, number).exists():
            end(Ends(ends), _note(self.ends, number))
        self.handled += 1
        self.context.send_event_to_coordinator(_REPORT.pack(number, self.restored, time.monotonic()))


def end(how: Ends, note: Path) -> None:
    """Notes the monotonic second, and ends this attempt."""
    note.write_text(repr(time.monotonic()))
    if how is Ends.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("as the benchmark asked")


def moment(ends: Path, number: int) -> float:
    """When event ``number`` ended the attempt that got it first."""
    return float(_note(ends, number).read_text())


def _note(ends: Path, number: int) -> Path:
    return ends / f"ended-{number}"
