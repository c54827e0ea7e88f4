"""What user code sends events through: encodes them, and refuses what is past a bound (protocol, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..schemas.errors import Backpressure, ConfigurationError, EventTooLarge
from ..schemas.sanitize import told
from ..schemas.settings import OperatorSettings
from ..schemas.user_codec import BytesCodec, Codec
from .futures import EventFuture, Ledger
from .mailbox import Mailbox
from .protocol import inputs


def _room(bound: int) -> int:
    """What is free of a bound, at least, when ``on_writable`` says to go on."""
    return bound - bound // 2


class UserGateway:
    """The :class:`.api.Gateway` that user code is given, of one attempt."""

    __slots__ = (
        "_as_it_is", "_attempt", "_batch_bytes_max", "_batch_events_max", "_encode", "_event_max", "_held_max",
        "_ledger", "_mailbox", "_send", "_stream", "_unhandled_max", "_unsent_max",
    )  # fmt: skip

    def __init__(
        self,
        settings: OperatorSettings,
        codec: Codec,
        mailbox: Mailbox,
        ledger: Ledger,
        event_bytes_max: int,
        attempt: int,
    ) -> None:
        self._ledger, self._stream, self._attempt = ledger, ledger.stream, attempt
        self._encode, self._as_it_is = codec.encode, type(codec) is BytesCodec
        self._mailbox, self._send = mailbox, mailbox.send
        self._event_max, self._unhandled_max = event_bytes_max, settings.max_unhandled
        self._unsent_max, self._held_max = settings.max_unsent_bytes, settings.max_held_bytes
        self._batch_events_max = _room(self._unhandled_max)
        self._batch_bytes_max = min(_room(self._unsent_max), _room(self._held_max))

    @property
    def subtask(self) -> int:
        return self._stream.subtask.index

    @property
    def attempt(self) -> int:
        return self._attempt

    def send_event(self, event: Any) -> EventFuture:
        data: bytes = event if self._as_it_is and type(event) is bytes else self._encode(event)
        ledger = self._ledger
        load = ledger.load
        if (
            len(data) > self._event_max
            or ledger.promised - self._stream.handled_through >= self._unhandled_max  # mutant: unhandled-without-bound
            or load.queued + load.appended > self._unsent_max
            or load.held > self._held_max
        ):
            self._refuse(data)
        return EventFuture(ledger, self._send(ledger, data))

    def send_events(self, events: Sequence[Any]) -> EventFuture:
        if not isinstance(events, list | tuple):
            raise ConfigurationError(f"send_events takes a list of events, not a {type(events).__name__}")
        if len(events) == 1:
            return self.send_event(events[0])
        as_they_are = self._as_it_is and set(map(type, events)) == {bytes}
        batch = events if as_they_are else list(map(self._encode, events))
        sizes = list(map(len, batch))
        size, ledger = sum(sizes), self._ledger
        load = ledger.load
        if (
            max(sizes, default=0) > self._event_max
            or len(sizes) > self._batch_events_max
            or size > self._batch_bytes_max
            or self._unhandled + len(sizes) > self._unhandled_max
            or load.unsent + size > self._unsent_max
            or load.held + size > self._held_max
        ):
            self._refuse_batch(max(batch, key=len, default=b""), len(sizes), size)
        return EventFuture(ledger, self._mailbox.send_all(ledger, batch, size) - 1)

    def _refuse_batch(self, largest: bytes, count: int, size: int) -> None:
        """Says which bound has been reached, or would be by this batch even when ``on_writable`` says to go on."""
        if len(largest) > self._event_max:
            self._refuse(largest)
        to, load = self._stream.subtask, self._ledger.load
        bounds = (
            ("max_unhandled", "events", count, self._unhandled_max, self._unhandled),
            ("max_unsent_bytes", "bytes", size, self._unsent_max, load.unsent),
            ("max_held_bytes", "bytes", size, self._held_max, load.held),
        )
        for name, unit, wanted, bound, taken in bounds:
            if wanted > (most := _room(bound)):
                raise EventTooLarge(
                    f"a batch of {wanted} {unit} to {to}: half of {name} is the most, {most} {unit}; send it in parts"
                )
            if taken + wanted > bound and (unit == "bytes" or self._stream.failure is None):
                raise Backpressure(
                    f"a batch of {wanted} {unit} to {to} finds {taken} of {bound} {unit} taken ({name});"
                    " context.on_writable(subtask, fn) says when to go on"
                )

    @property
    def _unhandled(self) -> int:
        return self._ledger.promised - self._stream.handled_through

    def _refuse(self, data: bytes) -> None:
        """Says which bound has been reached; a failed stream takes any number of events, and handles none."""
        to, load = self._stream.subtask, self._ledger.load
        go_on = "context.on_writable(subtask, fn) says when to go on"
        if len(data) > self._event_max:
            raise EventTooLarge(
                f"an event of {len(data)} bytes to {to}: the broker takes at most {self._event_max}; send a reference"
                " to the data instead"
            )
        if self._unhandled >= self._unhandled_max and self._stream.failure is None:
            raise Backpressure(f"{self._unhandled_max} events to {to} are not handled yet (max_unhandled); {go_on}")
        if load.unsent > self._unsent_max:
            raise Backpressure(
                f"operator {to.operator} has more than {self._unsent_max} bytes of events on their way to the broker"
                f" (max_unsent_bytes); {go_on}"
            )
        if load.held > self._held_max:
            raise Backpressure(
                f"the gateways of operator {to.operator} hold more than {self._held_max} bytes of events"
                f" (max_held_bytes) until Spark has committed its batch; {go_on}"
            )

    def fail_attempt(self, cause: BaseException | str) -> None:
        self._mailbox.post(inputs.AttemptRejected(self._stream.subtask, self._attempt, self._stream.epoch, told(cause)))

    def __repr__(self) -> str:
        return f"<gateway to {self._stream.subtask} attempt {self._attempt}>"
