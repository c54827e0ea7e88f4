"""A job's status topic, read in order (protocol, section 3)."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import NamedTuple

from ..schemas.codec import decode
from ..schemas.errors import PositionUnavailable, TopicMissing, TransportError, UnreadableRecord, WrittenByNewer
from ..schemas.status import BatchPlanned, CommandReply, JobStatus, StatusRecord, is_plausible
from ..schemas.topics import TopicNames
from ..transport.ports import LogRecord, OffsetRange, Partition, Transport

LOOK_BACK = 200
"""Records before the end of the topic: the last minutes of a job."""
ASK_TIMEOUT_S = 2.5
NEWER_MAX = 3
"""If so many records in a row are of a newer release, statuses are among them."""


class Entry(NamedTuple):
    offset: int
    record: StatusRecord


class StatusLog(AbstractContextManager["StatusLog"]):
    """The status topic from ``look_back`` records before its end. For one thread; to be closed.

    Unreadable records, and statuses with impossible times, are skipped. After a truncation the log goes on with the
    first record that is left. Raises TopicMissing if the topic is deleted or recreated. A call that raised may be
    repeated.
    """

    def __init__(self, transport: Transport, topics: TopicNames, look_back: int = 0, timeout_s: float = 30.0) -> None:
        self._transport = transport
        self.partition = Partition(topics.status, 0)
        self._topic_id = ""
        self.position = 0
        """Offset of the next record."""
        there = self.ask(timeout_s)
        self.begin, self.end = max(there.begin, there.end - look_back), there.end
        """The first offset read, and the end of the topic when this log was opened."""
        self.position = self.begin
        self.newer = deque[WrittenByNewer](maxlen=NEWER_MAX)
        """Errors of the newest records that a newer release wrote."""
        self._reader = transport.reader({self.partition: self.begin})

    @property
    def caught_up(self) -> bool:
        """Whether every record has been read that the topic held when this log was opened."""
        return self.position >= self.end

    def poll(self, timeout_s: float) -> list[Entry]:
        """Return the new records, waiting at most so long for the first."""
        entries = []
        for record in self._poll(timeout_s):
            self.position = record.offset + 1
            try:
                found = decode(record.value)
            except WrittenByNewer as error:
                self.newer.append(error)
                continue
            except UnreadableRecord:
                continue
            self.newer.clear()
            if isinstance(found, CommandReply | BatchPlanned) or (isinstance(found, JobStatus) and is_plausible(found)):
                entries.append(Entry(record.offset, found))
        return entries

    def _poll(self, timeout_s: float) -> list[LogRecord]:
        try:
            return self._reader.poll(timeout_s)
        except TransportError as error:
            try:
                if not isinstance(error, PositionUnavailable):
                    raise
                self.position = max(self.position, self.ask().begin)
            finally:
                self._reader.seek(self.partition, self.position)  # an error stops a reader
            return []

    def ask(self, timeout_s: float = ASK_TIMEOUT_S) -> OffsetRange:
        """Return what the topic holds now. Raises TopicMissing if it is not the one that this log began with."""
        topic = self.partition.topic
        there = self._transport.offsets([self.partition], timeout_s)[self.partition]
        info = self._transport.describe_topics([topic], timeout_s).get(topic)
        if info is not None and not self._topic_id:
            self._topic_id = info.topic_id
        if (info is not None and info.topic_id != self._topic_id) or self.position > there.end:
            raise TopicMissing(
                f"topic {topic} was recreated: offset {self.position} was read, and it ends at {there.end}"
            )
        return there

    def close(self) -> None:
        self._reader.close()

    def __exit__(self, *_: object) -> None:
        self.close()
