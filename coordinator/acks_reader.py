"""The acks topic on its way to the coordinator: read ahead on a thread of its own, or re-read for a range."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from ..schemas.acks import AcksRecord
from ..schemas.codec import decode
from ..schemas.errors import PositionUnavailable, TransportError, UnreadableRecord
from ..transport.ports import LogRecord, Partition, Transport
from ..transport.warning_limit import WarningLimit
from .mailbox import Mailbox
from .protocol.inputs import AckRead

_warnings = WarningLimit(logging.getLogger(__name__), "records of acks topics that are kept out")

_PATIENCE_S = 0.2
"""How long ``close`` may have to wait for a read."""


class AcksReader:
    """Posts every record from ``position`` on to the mailbox, decoded."""

    def __init__(self, transport: Transport, partition: Partition, position: int, mailbox: Mailbox) -> None:
        self._transport = transport
        self._partition = partition
        self._position = position
        self._mailbox = mailbox
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{partition.topic}-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            reader = self._transport.reader({self._partition: self._position})
            try:
                while not self._closing.is_set():
                    records = reader.poll(_PATIENCE_S)
                    if records:
                        self._mailbox.post_reads([(_input_of(record), len(record.value or b"")) for record in records])
            finally:
                reader.close()
        except Exception as error:  # whatever it is, the coordinator's thread must learn of it
            self._mailbox.post_reads([(raiser(error), 0)])


def read_range(
    transport: Transport, partition: Partition, begin: int, end: int, deadline_s: float
) -> Iterator[tuple[int, AcksRecord]]:
    """Every readable record at offsets [begin, end), what has been truncated left out, also while it is read: by a
    coordinator that has been replaced, and whose request came late.

    Raises TransportError when nothing comes for ``deadline_s`` seconds.
    """
    position = max(begin, transport.offsets([partition], deadline_s)[partition].begin)
    if position >= end:
        return
    reader, deadline = transport.reader({partition: position}), time.monotonic() + deadline_s
    try:
        while position < end:
            try:
                records = reader.poll(1.0)
            except PositionUnavailable:
                first = transport.offsets([partition], deadline_s)[partition].begin
                if first <= position:
                    raise
                position = first
                reader.seek(partition, position)
                continue
            for record in records:
                position = record.offset + 1
                if record.offset < end and (decoded := _decoded(record)) is not None:
                    yield record.offset, decoded
            if records:
                deadline = time.monotonic() + deadline_s
            elif time.monotonic() > deadline:
                raise TransportError(f"{partition} could not be read up to offset {end}: nothing for {deadline_s:g} s")
    finally:
        _warnings.tell()
        reader.close()


def _decoded(record: LogRecord) -> AcksRecord | None:
    try:
        decoded = decode(record.value)
    except UnreadableRecord as error:
        _warnings.warn("record %s of %s kept out: %s", record.offset, record.partition, error)
        return None
    if not isinstance(decoded, AcksRecord):
        kind = type(decoded).__name__
        _warnings.warn(
            "record %s of %s kept out: a %s does not belong on this topic", record.offset, record.partition, kind
        )
        return None
    return decoded


def _input_of(record: LogRecord) -> AckRead:
    return AckRead(record.offset, record.timestamp_ms, _decoded(record))


def raiser(error: BaseException) -> Callable[[], None]:
    """An item for the mailbox that raises ``error`` on the coordinator's thread."""

    def reraise() -> None:
        raise error

    return reraise
