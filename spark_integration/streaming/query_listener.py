"""Tells a job's coordinator, from the driver, that Spark has committed a batch.

The planning of the next batch says the same, but later, and never for the last one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ...schemas.acks import BatchCommitted
from ...schemas.codec import encode
from ...schemas.errors import JobRefused, TransportError
from ...schemas.ids import NO_CHECKPOINT
from ...transport.ports import Partition, Transport, Writer
from .offsets import StreamOffset

if TYPE_CHECKING:
    from uuid import UUID

_log = logging.getLogger(__name__)


class CommitTeller:
    """Writes BatchCommitted to a job's acks topic, once per checkpoint. Never blocks; thread-safe.

    What does not arrive is said by the next planning, so a failure is logged and no more.
    """

    def __init__(self, transport: Transport, acks_topic: str) -> None:
        self._transport = transport
        self._acks = Partition(acks_topic, 0)
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._failed = False
        self._told: StreamOffset | None = None
        self._closed = False

    def tell(self, offset: StreamOffset) -> None:
        """Of the offset at the batch's end."""
        with self._lock:
            if self._closed or offset == self._told or offset.checkpoint == NO_CHECKPOINT:
                return
            if self._failed and self._writer is not None:  # it takes nothing any more
                writer, self._writer = self._writer, None
                writer.close(0.0)
            if self._writer is None:
                self._writer, self._failed = self._transport.writer(), False
            self._told = offset
            committed = BatchCommitted(offset.checkpoint, offset.history)
            try:
                self._writer.append(self._acks, encode(committed), None, self._settled)
            except TransportError as error:
                self._settled(None, error)

    def _settled(self, offset: int | None, error: Exception | None) -> None:
        if error is not None:
            self._failed = True
            _log.warning("that a batch has been committed will be said by the next planning: %s", error)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(1.0)


class BatchListener(StreamingQueryListener):
    """Hears of every query of a session, and tells of those that read ``operator`` of ``job`` (``<prefix>.<job>``)."""

    def __init__(
        self,
        job: str,
        operator: str,
        told: Callable[[StreamOffset], None],
        started: Callable[[UUID], None] | None = None,
    ) -> None:
        self._job = job
        self._operator = operator
        self._told = told
        self._started = started

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self._started is not None:
            self._guarded(self._started, event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._guarded(self._progress, event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def _progress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            offset = own_offset(source.endOffset, self._job, self._operator)
            if offset is not None:
                self._told(offset)

    def _guarded(self, heard: Callable[[Any], None], what: Any) -> None:
        try:
            heard(what)
        except Exception:  # what is raised here would be Spark's to log, without saying whose it is
            _log.exception("an event of a streaming query was not understood")


def own_offset(text: str | None, job: str, operator: str) -> StreamOffset | None:
    """The offset that a progress event shows, where it is one of this operator."""
    try:
        stored = json.loads(text or "null")
        offset = StreamOffset.parse(stored) if isinstance(stored, dict) else None
    except (ValueError, JobRefused):
        return None
    return offset if offset is not None and (offset.job, offset.operator) == (job, operator) else None
