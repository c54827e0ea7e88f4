"""Follows what a job's coordinators tell about it, from the topic alone: they may run anywhere, or not at all."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ..schemas.codec import decode
from ..schemas.errors import PositionUnavailable, UnreadableRecord
from ..schemas.status import JobStatus
from ..schemas.topics import TopicNames
from ..transport.ports import LogRecord, Partition, Transport

LOOK_BACK = 200
"""So many records of the topic are read at the beginning: the last minutes of the job."""


class StatusFollower:
    """The job's statuses in the order they were written, beginning some minutes ago. For one thread.

    Raises TopicMissing where the job does not exist (any more), TransportError where the broker does not answer.
    """

    def __init__(self, transport: Transport, topics: TopicNames) -> None:
        self._transport = transport
        self._partition = partition = Partition(topics.status, 0)
        there = transport.offsets([partition])[partition]
        self._position = max(there.begin, there.end - LOOK_BACK)
        self._end = there.end
        self._reader = transport.reader({partition: self._position})

    @property
    def caught_up(self) -> bool:
        """Whether everything has been read that there was at the beginning."""
        return self._position >= self._end

    def poll(self, timeout_s: float) -> list[JobStatus]:
        """What has come, waiting at most so long for the first of it; anything else in the topic is passed over."""
        found = []
        for record in self._poll(timeout_s):
            self._position = record.offset + 1
            try:
                status = decode(record.value)
            except UnreadableRecord:
                continue  # a newer version wrote it, or it is garbage
            if isinstance(status, JobStatus):
                found.append(status)
        return found

    def _poll(self, timeout_s: float) -> list[LogRecord]:
        try:
            return self._reader.poll(timeout_s)
        except PositionUnavailable:  # truncated away meanwhile: what is left is newer
            begin = self._transport.offsets([self._partition])[self._partition].begin
            self._reader.seek(self._partition, begin)
            self._position = max(self._position, begin)
            return []

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
