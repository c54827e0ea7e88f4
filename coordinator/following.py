"""Follows what a job's coordinators tell about it, from the topic alone: they may run anywhere, or not at all."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from ..schemas.codec import decode
from ..schemas.errors import BrokerUnreachable, PositionUnavailable, TopicMissing, UnreadableRecord, WrittenByNewer
from ..schemas.status import JobStatus, is_plausible
from ..schemas.topics import TopicNames
from ..transport.ports import LogRecord, OffsetRange, Partition, Transport

LOOK_BACK = 200
"""So many records of the topic are read at the beginning: the last minutes of the job."""
ASK_AFTER_S = 1.5
"""When nothing has come for so long the broker is asked why: readers are silent while it is away."""
LOOK_EVERY_S = 10.0
"""So often it is looked whether the topic is still the same one, also where records come: of a topic that was made anew
while nobody could look, those behind the position read before come as if nothing had been."""
ASK_TIMEOUT_S = 2.5
START_TIMEOUT_S = 30.0
NEWER_MAX = 3
"""So many records in a row of a newer release: statuses are among them."""


class Heard(NamedTuple):
    """A status, and when it was told: by the clock of whoever reads it, which need not be that of who wrote it.

    What stood in the topic before is taken to have been told when it says.
    """

    status: JobStatus
    at_ms: int


class StatusFollower:
    """The job's statuses in the order they were written, beginning some minutes ago. For one thread.

    Raises TopicMissing where the job does not exist (any more, or is another one of its name), TransportError where
    the broker does not answer, WrittenByNewer where a newer release tells it. It may be polled again.
    """

    def __init__(self, transport: Transport, topics: TopicNames) -> None:
        self._transport = transport
        self._partition = Partition(topics.status, 0)
        self._position, self._topic_id = 0, ""
        there = self._there(START_TIMEOUT_S)
        self._position, self._end = max(there.begin, there.end - LOOK_BACK), there.end
        self._reader = transport.reader({self._partition: self._position})
        self._asked_at = self._looked_at = time.time()
        self._newer = deque[WrittenByNewer](maxlen=NEWER_MAX)

    @property
    def caught_up(self) -> bool:
        """Whether everything has been read that there was at the beginning."""
        return self._position >= self._end

    def poll(self, timeout_s: float) -> list[Heard]:
        """What has come, waiting at most so long for the first of it; anything else in the topic is passed over."""
        records, found = self._poll(timeout_s), []
        now_ms = round(1000 * time.time())
        for record in records:
            self._position = record.offset + 1
            try:
                status = decode(record.value)
            except WrittenByNewer as error:
                self._newer.append(error)
                continue
            except UnreadableRecord:
                continue
            self._newer.clear()
            if isinstance(status, JobStatus) and is_plausible(status):
                found.append(Heard(status, status.at_ms if record.offset < self._end else now_ms))
        if len(self._newer) == NEWER_MAX:
            raise WrittenByNewer(f"the newest records of {self._partition} cannot be read: {self._newer[-1]}")
        return found

    def _poll(self, timeout_s: float) -> list[LogRecord]:
        try:
            if abs(time.time() - self._looked_at) > LOOK_EVERY_S:
                with suppress(BrokerUnreachable):  # silence will tell, if it is more than slow
                    self._ask()
            records = self._reader.poll(timeout_s)
            if records:
                self._asked_at = time.time()
            elif abs(time.time() - self._asked_at) > ASK_AFTER_S:
                self._ask()
            return records
        except PositionUnavailable:  # truncated away meanwhile: what is left is newer
            self._position = self._there().begin
            self._reader.seek(self._partition, self._position)
            return []

    def _ask(self) -> None:
        """Nothing comes: is the broker there, and is it still the same topic?"""
        self._asked_at = self._looked_at = time.time()  # which goes on while a machine sleeps
        self._there()

    def _there(self, timeout_s: float = ASK_TIMEOUT_S) -> OffsetRange:
        topic = self._partition.topic
        there = self._transport.offsets([self._partition], timeout_s)[self._partition]
        info = self._transport.describe_topics([topic], timeout_s).get(topic)
        if info is not None and not self._topic_id:
            self._topic_id = info.topic_id
        other = info is not None and info.topic_id != self._topic_id
        if other or self._position > there.end:
            raise TopicMissing(
                f"topic {topic} was made anew: offset {self._position} was read, and it ends at {there.end}"
            )
        return there

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
