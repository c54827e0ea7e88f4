"""Send a batch of a query to the coordinator of a job that the query does not drive (protocol, section 10.9)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..schemas.acks import FEED_NAME_CHARS_MAX, FeedPart
from ..schemas.codec import encode
from ..schemas.errors import AppendFailed, ConfigurationError, EventTooLarge, JobError
from ..schemas.frames import Packed, pack, split, unpack
from ..schemas.status import ENDED, CommandReply, JobStatus
from ..transport.ports import Partition, Transport, Writer
from .job_client import JobClient
from .status_log import StatusLog

ANSWER_S = 10.0
"""Seconds without an answer before a batch is written again; twice as many after each time."""
_POLL_S = 0.5
_RECORD_HEADROOM_BYTES = 4 * 1024
"""For what a part holds besides its events."""


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Events of one micro-batch for one operator's coordinator. ConfigurationError for what no coordinator reads."""

    operator: str
    query: str
    """Spark's id of the query: the same after a restart from its ``checkpointLocation``."""
    batch_id: int
    frames: Sequence[Packed]
    """Its events in their order, at least one frame."""

    def __post_init__(self) -> None:
        if not self.frames:
            raise ConfigurationError(f"{self} has no events, and so no effect: do not send it")
        if self.batch_id < 0 or not 0 < len(self.query) <= FEED_NAME_CHARS_MAX:
            raise ConfigurationError(
                f"{self}: ids of batches are 0 and more, and a query's id has 1 to {FEED_NAME_CHARS_MAX} characters"
            )

    @property
    def size(self) -> int:
        """Bytes of its events and their lengths."""
        return sum(frame.size for frame in self.frames)

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query}"


def send_batch(client: JobClient, transport: Transport, batch: QueryBatch, timeout_s: float) -> CommandReply:
    """Write a batch and return when a completed checkpoint has its effect, the first time or an earlier one.

    A batch without events has no effect: do not send it. Raises JobRefused if there is no such job; JobError if the job
    has ended, if the coordinator refuses the batch, or if no answer comes within ``timeout_s``. Then send the same
    batch again: it never has its effect twice.
    """
    frames = [fitting for frame in batch.frames for fitting in _fitting(batch, frame, transport)]
    batch = replace(batch, frames=frames)
    history = client.require()
    if (ended := client.ended()) is not None:
        raise _ended(batch, client, ended)
    writer = transport.writer()
    try:
        with StatusLog(transport, client.topics) as log:
            return _Sender(client, writer, log, history, batch).send(timeout_s)
    finally:
        writer.close(0.0)


def _fitting(batch: QueryBatch, frame: Packed, transport: Transport) -> list[Packed]:
    """The frame's events in frames that fit a record."""
    room = transport.max_record_bytes - _RECORD_HEADROOM_BYTES
    if frame.size <= room:
        return [frame]
    runs = split(unpack(*frame), events_max=max(1, room // 8), bytes_max=room // 2)
    packed = [pack(run) for run in runs]
    largest = max(each.size for each in packed)
    if largest > room:
        raise EventTooLarge(
            f"{batch} has an event of {largest} bytes, and the broker takes records of at most"
            f" {transport.max_record_bytes}: send a reference to the data instead"
        )
    return packed


class _Sender:
    def __init__(self, client: JobClient, writer: Writer, log: StatusLog, history: str, batch: QueryBatch) -> None:
        self._client = client
        self._acks = Partition(client.topics.acks, 0)
        self._writer = writer
        self._log = log
        self._history = history
        self._batch = batch
        self._senders: list[str] = []
        """One for each writing of the batch; the newest is last."""
        self._epoch = -1
        """The highest that a status has named since the first writing."""

    def send(self, timeout_s: float) -> CommandReply:
        deadline, patience = time.monotonic() + timeout_s, ANSWER_S
        while (left := deadline - time.monotonic()) > 0:
            self._write(left)
            if (reply := self._answer(min(deadline, time.monotonic() + patience))) is not None:
                if not reply.accepted:
                    raise JobError(f"job {self._job} refused {self._batch}: {reply.outcome}")
                return reply
            patience *= 2
        raise JobError(
            f"job {self._job} did not answer {self._batch} within {timeout_s:g} s: does its coordinator run, do its"
            f" checkpoints complete, do other queries fill its room? (penstock status {self._job}) Start the query"
            " again: the batch is sent once more, and has its effect once"
        )

    @property
    def _job(self) -> str:
        return self._client.topics.job

    def _write(self, timeout_s: float) -> None:
        batch, failed = self._batch, list[Exception]()
        self._senders.append(uuid.uuid4().hex)
        for part, frame in enumerate(batch.frames):
            record = FeedPart(
                batch.operator, batch.query, batch.batch_id, self._senders[-1], part, len(batch.frames), batch.size,
                self._history, *frame,
            )  # fmt: skip
            self._writer.append(self._acks, encode(record), None, lambda _, e: failed.append(e) if e else None)
        if not self._writer.flush(timeout_s) or failed:
            why = failed[0] if failed else f"no answer from the broker within {timeout_s:.0f} s"
            raise AppendFailed(f"{batch} is not certain to be in {self._acks}: {why}")

    def _answer(self, until: float) -> CommandReply | None:
        """The answer to any writing of this batch; None at the time ``until``, or as soon as a new epoch has begun."""
        while (left := until - time.monotonic()) > 0:
            for _, found in self._log.poll(min(_POLL_S, left)):
                match found:
                    case CommandReply() if found.command == self._senders[-1] or (
                        found.accepted and found.command in self._senders
                    ):
                        return found
                    case JobStatus() if found.state in ENDED:  # replies stand before it
                        if self._client.ended() is not None:
                            raise _ended(self._batch, self._client, found)
                    case JobStatus() if found.epoch > self._epoch:
                        before, self._epoch = self._epoch, found.epoch
                        if before >= 0:
                            return None
                    case _:
                        pass
        return None


def _ended(batch: QueryBatch, client: JobClient, status: JobStatus) -> JobError:
    job = client.topics.job
    return JobError(
        f"job {job} is {status.state}, so no coordinator takes {batch}: start the job again, then the query, which"
        " sends this batch once more"
    )
