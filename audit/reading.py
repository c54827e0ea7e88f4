"""Reads a job's topics for the checks: each partition once, in order, with bounded memory.

A job that runs goes on while it is read. So ends are noted first, then the checkpoint log is read, then the acks topic
up to its end, and the partitions that subtasks read last: what a record refers to stands in what was read before it,
but for what was appended since the first look (see :class:`~.report.Extent`).
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from ..schemas.acks import AcksRecord, Heartbeat
from ..schemas.checkpoints import CheckpointLogRecord
from ..schemas.codec import Record, decode
from ..schemas.data import DataRecord
from ..schemas.errors import JobRefused, PositionUnavailable, TransportError, UnreadableRecord
from ..schemas.events import EventsRecord
from ..schemas.ids import SubtaskId
from ..schemas.topics import DEFAULT_PREFIX, TopicNames
from ..transport.ports import LogRecord, OffsetRange, Partition, TopicInfo, Transport
from ..transport.requirements import require_visible
from .acks import AcksCheck
from .checkpoint_index import LogFacts
from .checkpoint_log import CheckpointLogCheck
from .data import DataCheck
from .events import EventsCheck
from .report import COPIES, Extent, Kind, Place, Report

Progress = Callable[[str, int, int], None]
"""Called now and then with a partition, how many records of it have been read, and how many there are."""


class PartitionCheck(Protocol):
    """Judges one partition, fed its records in order."""

    def read(self, offset: int, record: Any) -> None: ...

    def unreadable(self, offset: int) -> None: ...

    def finish(self) -> None: ...


_CheckT = TypeVar("_CheckT", bound=PartitionCheck)

SILENCE_S = 30.0
"""A broker that gives nothing for so long, while something is there, is away."""
_POLL_RECORDS = 1_000
_AGAIN_MAX = 10
_COUNT_ONCE = EventsRecord | DataRecord | Heartbeat
"""Of what else a subtask or a query says, each copy may be the one that counted."""
_REPEATS_WITHIN = 65_536
"""A copy stands at most so many records behind the first. A client has five requests with a broker, each of at most
10,000 records."""
_SUBTASK_KEY = re.compile(rb"([0-9]{1,9}):-?[0-9]*")


def audit(transport: Transport, job: str, prefix: str = DEFAULT_PREFIX, *, progress: Progress | None = None) -> Report:
    """Checks the logs of a job from its topics alone; the job may run meanwhile.

    Raises :class:`JobRefused` where there is no such job, :class:`NotAuthorized` where this user may not see it, and
    the transport's errors where it cannot be read.
    """
    return _Audit(transport, TopicNames(prefix, job), progress or (lambda *_: None)).run()


class _Audit:
    def __init__(self, transport: Transport, names: TopicNames, progress: Progress) -> None:
        self._transport, self._names, self._progress = transport, names, progress
        self._report = Report(names.job)
        self._before: Mapping[Partition, OffsetRange] = {}
        """What each partition held before the checkpoint log was read."""

    def run(self) -> Report:
        names = self._names
        topics = self._transport.describe_topics(self._transport.list_topics(names.root))
        if names.checkpoints not in topics:
            require_visible(names, self._transport)
            raise JobRefused(f"there is no job {names.job!r} under prefix {names.prefix!r} on this broker")
        partitions = [
            Partition(topic.name, index)
            for topic in topics.values()
            if topic.name not in (names.status, names.checkpoints)
            for index in range(topic.partitions)
        ]
        self._before = self._transport.offsets(partitions)
        facts = self._checkpoint_log()
        if facts.forked and not facts.epochs:
            raise JobRefused(
                f"job {names.job!r} under prefix {names.prefix!r} is a fork that has not come to its end: it is being"
                f" made, or was killed meanwhile (then purge it: penstock purge {names.job})"
            )
        self._topics(facts, topics)
        acks_at = Partition(names.acks, 0)
        if acks_at in self._before:
            acks, extent = self._acks(facts, acks_at)
            for at in sorted(partitions):
                self._partition(facts, at, acks, extent, Place(*acks_at))
        self._require_same(topics)
        return self._report

    def _require_same(self, topics: Mapping[str, TopicInfo]) -> None:
        """What was read of two jobs, one of which has taken the other's name meanwhile, says nothing of either."""
        for name, there in self._transport.describe_topics(topics).items():
            if there.topic_id != topics[name].topic_id and name != self._names.status:
                raise TransportError(
                    f"{name} was recreated while job {self._names.job} was audited: it was purged, or the topic deleted"
                    f" and created again. Audit it once more"
                )

    def _checkpoint_log(self) -> LogFacts:
        at = Partition(self._names.checkpoints, 0)
        check = CheckpointLogCheck(self._report, Place(*at))
        records = self._transport.read_all(at)
        for done, record in enumerate(records, 1):
            decoded = None if record.value is None else _decoded(record)
            if decoded is not None and not isinstance(decoded, CheckpointLogRecord):
                decoded = None  # a record of another topic is as foreign here as garbage
            readable = record.value is None or decoded is not None
            check.read(record.offset, record.key, decoded, readable=readable)
            self._tell(at, done, len(records))
        return check.finish()

    def _topics(self, facts: LogFacts, topics: Mapping[str, TopicInfo]) -> None:
        """The job's topics are the ones that the newest epoch has used; they are looked at again, since that may have
        begun meanwhile."""
        used = facts.topic_ids
        odd = [name for name, topic_id in used.items() if name not in topics or topics[name].topic_id != topic_id]
        again = self._transport.describe_topics(odd) if odd else {}
        hidden = self._transport.inspect(odd).hidden if odd else frozenset()
        for topic in odd:
            there = again.get(topic)
            if topic in hidden:
                self._report.unjudged["topics that this user may not see"] += 1
            elif there is None or there.topic_id != used[topic]:
                found = "it is gone" if there is None else f"id {there.topic_id}"
                at, expected = Place(self._names.checkpoints, 0), f"topic {topic} with id {used[topic]}"
                self._report.damage(Kind.TOPIC, at, facts.claim_offset, expected, found)

    def _acks(self, facts: LogFacts, at: Partition) -> tuple[AcksCheck, Extent]:
        def check(report: Report, extent: Extent) -> AcksCheck:
            return AcksCheck(report, Place(*at), extent, facts)

        return self._check(at, AcksRecord, check)

    def _partition(self, facts: LogFacts, at: Partition, acks: AcksCheck, acks_extent: Extent, acks_at: Place) -> None:
        log_at, place = Place(self._names.checkpoints, 0), Place(*at)
        match at.topic.removeprefix(self._names.root).split("."):
            case [operator, "events"]:
                subtask = SubtaskId(operator, at.index)

                def events(report: Report, extent: Extent) -> EventsCheck:
                    handled = acks.handled.get(subtask, {})
                    return EventsCheck(
                        report, place, extent, facts, subtask, acks.hellos, acks_extent, handled, acks_at, log_at
                    )

                self._check(at, EventsRecord, events)
            case [sender, receiver, "data"]:
                subtask = SubtaskId(receiver, at.index)

                def data(report: Report, extent: Extent) -> DataCheck:
                    return DataCheck(report, place, extent, facts, sender, subtask)

                self._check(at, DataRecord, data)
            case _:
                pass

    def _check(self, at: Partition, kinds: Any, make: Callable[[Report, Extent], _CheckT]) -> tuple[_CheckT, Extent]:
        """Feeds a check the whole partition; once more from its new beginning, should it be truncated meanwhile."""
        before = self._before[at]
        for _ in range(_AGAIN_MAX):
            there = self._transport.offsets([at])[at]
            extent = Extent(there.begin, before.end, there.end, before.begin)
            report = Report(self._names.job)
            check = make(report, extent)
            try:
                self._feed(at, extent, kinds, check, report)
            except PositionUnavailable:
                continue
            check.finish()
            self._report.take(report)
            return check, extent
        raise TransportError(f"{at} is truncated again and again while it is read: audit the job when it does less")

    def _feed(self, at: Partition, extent: Extent, kinds: Any, check: PartitionCheck, report: Report) -> None:
        if extent.begin >= extent.end:
            return
        position, deadline = extent.begin, time.monotonic() + SILENCE_S
        repeats = _Repeats()
        reader = self._transport.reader({at: position})
        try:
            while position < extent.end:
                records = reader.poll(1.0, _POLL_RECORDS)
                if not records and time.monotonic() > deadline:
                    raise TransportError(
                        f"{at}: nothing came for {SILENCE_S:g} s at offset {position}, and it ends at {extent.end}"
                    )
                for record in records:
                    position = record.offset + 1
                    if position > extent.end:
                        break
                    decoded = _decoded(record)
                    if isinstance(decoded, _COUNT_ONCE) and repeats.has(record.value):
                        report.void[COPIES] += not isinstance(decoded, Heartbeat)
                    elif isinstance(decoded, kinds):
                        if isinstance(decoded, EventsRecord):
                            _require_key(record, report)
                        check.read(record.offset, decoded)
                    else:
                        check.unreadable(record.offset)
                if records:
                    deadline = time.monotonic() + SILENCE_S
                    self._tell(at, position - extent.begin, extent.end - extent.begin)
        finally:
            reader.close()

    def _tell(self, at: Partition, done: int, of: int) -> None:
        self._progress(str(at), min(done, of), of)


class _Repeats:
    """Knows exact copies: a writer may append again what it has appended already (protocol, section 4.1)."""

    def __init__(self) -> None:
        self._newest: deque[int] = deque()
        self._known: set[int] = set()

    def has(self, value: bytes | None) -> bool:
        """Tell whether the same stands close before."""
        mark = hash(value)
        if mark in self._known:
            return True
        self._known.add(mark)
        self._newest.append(mark)
        if len(self._newest) > _REPEATS_WITHIN:
            self._known.discard(self._newest.popleft())
        return False


def _decoded(record: LogRecord) -> Record | None:
    try:
        return decode(record.value)
    except UnreadableRecord:
        return None


def _require_key(record: LogRecord, report: Report) -> None:
    """The key of an events record names the subtask, which is the partition's index; without one it says nothing."""
    named = _SUBTASK_KEY.fullmatch(record.key or b"")
    if named is not None and int(named[1]) != record.partition.index:
        expected = f"a key of subtask {record.partition.index}"
        report.damage(Kind.KEY, Place(*record.partition), record.offset, expected, named[0].decode())
