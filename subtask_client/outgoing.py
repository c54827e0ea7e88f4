"""What a subtask writes: one writer after the other, with a bound on what the broker has not taken yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from ..schemas.acks import AcksRecord, Heartbeat
from ..schemas.codec import encode
from ..schemas.data import DataRecord
from ..schemas.errors import AppendFailed
from ..transport.ports import Partition, Transport, Writer

UNSETTLED_BYTES_MAX = 64 * 1024 * 1024
RECORD_COST_BYTES = 512
"""What a record on its way takes in memory beside its value, about; small records are bounded by this."""
ROOM_TIMEOUT_S = 180.0
"""How long an event to the coordinator waits for room; longer than a broker may be away without failing anybody."""
_WAIT_SLICE_S = 0.2

Then = Callable[[int | None], None]
"""Called with the record's offset, or None where its outcome is unknown or bad; from any thread."""


class Outgoing:
    """Appends to the acks partition, and to data partitions, all with one writer: nothing stands that was written
    behind something that does not. After a failed append ``failure`` is set and nothing more is taken until
    :meth:`replace`: nothing may follow a hole. No method raises for a broker that refuses or is away."""

    def __init__(
        self,
        transport: Transport,
        partition: Partition,
        subtask: str,
        *,
        gives_up: Callable[[], bool],
        unsettled_bytes_max: int = UNSETTLED_BYTES_MAX,
        room_timeout_s: float = ROOM_TIMEOUT_S,
    ) -> None:
        self._transport, self._partition, self._subtask = transport, partition, subtask
        self._gives_up = gives_up
        self._bytes_max, self._room_timeout_s = unsettled_bytes_max, room_timeout_s
        self._opening = threading.Lock()
        """Held while a writer is made, and not ``_state``, which outcomes need: a transport may wait for the outcomes
        of a writer that has failed before it gives another one."""
        self._state = threading.Condition()
        self._writer: Writer | None = None
        self._life = 0
        """Which writer this is; outcomes of earlier ones are nobody's concern."""
        self._unsettled_bytes = 0
        self.failure: str | None = None
        self._beats = threading.Lock()
        """Held while a heartbeat is written."""
        self._last_heartbeat: Heartbeat | None = None

    def open(self) -> None:
        """Has the writer connect; the first record finds it connected."""
        self._writer_of(self._life)

    def _writer_of(self, life: int) -> Writer | None:
        """The writer of that life, made if it is the first to need it; None where that life is over."""
        with self._opening:
            with self._state:
                if life != self._life or self._writer is not None:
                    return self._writer if life == self._life else None
            made = self._transport.writer()
            with self._state:
                if life == self._life:
                    self._writer = made
                    return made
        made.close(0.0)
        return None

    def write(self, record: AcksRecord, then: Then | None = None) -> None:
        """To the coordinator."""
        self._write(self._partition, record, then)

    def write_heartbeat(self, record: Heartbeat, then: Then | None = None) -> None:
        """From any thread. One that was made before the last one written says no less than that one: under one Start
        handled-through never goes back."""
        with self._beats:
            last = self._last_heartbeat
            if last is not None and last.sender == record.sender and record.handled_through < last.handled_through:
                record = replace(record, handled_through=last.handled_through)
            self._last_heartbeat = record
            self._write(self._partition, record, then)

    def write_data(self, partition: Partition, record: DataRecord) -> None:
        """To a subtask of another operator."""
        self._write(partition, record, None)

    def _write(self, partition: Partition, record: AcksRecord | DataRecord, then: Then | None) -> None:
        value = encode(record)
        size = len(value) + RECORD_COST_BYTES
        with self._state:
            takes, life, writer = self.failure is None, self._life, self._writer
            if takes:
                self._unsettled_bytes += size
        if takes and writer is None:
            writer = self._writer_of(life)
        if not takes or writer is None:
            if then is not None:
                then(None)
            return

        def on_outcome(offset: int | None, error: Exception | None) -> None:
            self._settle(life, size, error)
            if then is not None:
                then(offset)

        try:
            writer.append(partition, value, self._key(record), on_outcome)
        except AppendFailed as error:
            on_outcome(None, error)

    def _key(self, record: AcksRecord | DataRecord) -> bytes:
        """For people and tools that look into the topic; nothing depends on it (section 3)."""
        sender = getattr(record, "sender", None)
        return f"{self._subtask}:{'' if sender is None else sender.attempt}".encode()

    def wait_for_room(self) -> None:
        """Returns when the bound on unsettled bytes is kept; past the deadline that is a failed append."""
        if self._unsettled_bytes < self._bytes_max:
            return
        deadline = time.monotonic() + self._room_timeout_s
        with self._state:
            while self._unsettled_bytes >= self._bytes_max and self.failure is None:
                if time.monotonic() >= deadline or self._gives_up():
                    self.failure = (
                        f"the broker has not taken {self._unsettled_bytes} bytes sent to {self._partition}, and for"
                        f" {self._room_timeout_s:g} s made no room for more"
                    )
                    return
                self._state.wait(_WAIT_SLICE_S)

    def replace(self) -> None:
        """Goes on with a new writer; what the old one had not delivered is given up."""
        with self._state:
            old, self._writer = self._writer, None
            self._life += 1
            self._unsettled_bytes = 0
            self.failure = None
            self._state.notify_all()
        if old is not None:
            old.close(0.0)

    def close(self, timeout_s: float) -> None:
        with self._state:
            writer, self._writer = self._writer, None
            self._life += 1
            if self.failure is None:
                self.failure = "closed"
        if writer is not None:
            writer.close(timeout_s)

    def _settle(self, life: int, size: int, error: Exception | None) -> None:
        with self._state:
            if life != self._life:
                return
            self._unsettled_bytes -= size
            if error is not None and self.failure is None:
                self.failure = str(error)
            self._state.notify_all()
