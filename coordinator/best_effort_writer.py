"""Appends whose loss is harmless: heartbeats, status, replies."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..schemas.codec import Record, encode
from ..schemas.errors import TransportError
from ..transport.ports import Partition, Transport

_log = logging.getLogger(__name__)


class SideWriter:
    """A writer that has failed takes nothing more: here it is replaced, and the record tried once again."""

    def __init__(self, job: str, transport: Transport) -> None:
        self._job, self._transport = job, transport
        self._writer = transport.writer()

    def append(
        self,
        partition: Partition,
        record: Record | bytes,
        key: str = "",
        lost: Callable[[Exception], object] | None = None,
    ) -> None:
        """Append a record. If it may not be written, call ``lost`` with the cause, from any thread."""

        def taken(_: int | None, error: Exception | None) -> None:
            if error is not None:
                _log.warning("job=%s: %s not written: %s", self._job, type(record).__name__, error)
                if lost is not None:
                    lost(error)

        value, key_bytes = record if isinstance(record, bytes) else encode(record), key.encode() or None
        try:
            self._writer.append(partition, value, key_bytes, taken)
        except TransportError:
            self._writer.close(0.0)
            self._writer = self._transport.writer()
            try:
                self._writer.append(partition, value, key_bytes, taken)
            except TransportError as error:
                taken(None, error)

    def close(self, timeout_s: float) -> None:
        self._writer.close(timeout_s)
