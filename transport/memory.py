"""Logs in memory: the same promises as Kafka's, within one process and without a thread of its own.

For examples, users' tests, and the simulator. Everybody who is to share logs shares one :class:`MemoryBroker`::

    broker = MemoryBroker()
    transport = MemoryTransport(broker)

Like Kafka: offsets, timestamps, fencing by claim, truncation, topic ids. Unlike it: control records take no offsets,
compaction never runs, and an append has its outcome before ``append`` returns.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..schemas.errors import AppendFailed, Fenced, PositionUnavailable, TopicMissing, TransportError
from ..schemas.frames import RECORD_BYTES_MAX
from ..schemas.topics import TopicSpec
from .memory_election import MemoryElection
from .ports import (
    Inspection,
    LogRecord,
    OffsetRange,
    OnOutcome,
    Partition,
    TopicFacts,
    TopicInfo,
    checked_positions,
)

Clock = Callable[[], int]

_EPOCHS_MAX = 1_000_000
"""Of one incarnation of a job, in memory."""


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Log:
    """One partition. ``records[i]`` has offset ``begin + i``."""

    __slots__ = ("begin", "partition", "records", "waiting")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.begin = 0
        self.records: list[LogRecord] = []
        self.waiting: set[threading.Condition] = set()
        """Of the readers that wait for a record in this partition."""

    @property
    def end(self) -> int:
        return self.begin + len(self.records)

    def append(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> int:
        offset = self.end
        self.records.append(LogRecord(self.partition, offset, timestamp_ms, key, value))
        self.wake()
        return offset

    def offset_at(self, time_ms: int) -> int:
        return next((record.offset for record in self.records if record.timestamp_ms >= time_ms), self.end)

    def wake(self) -> None:
        for condition in self.waiting:
            condition.notify_all()


class _Topic:
    def __init__(self, spec: TopicSpec, topic_id: str) -> None:
        self.topic_id = topic_id
        self.settings = dict(spec.settings)
        self.log_append_time = spec.settings.get("message.timestamp.type") == "LogAppendTime"
        self.name = spec.name
        self.logs: list[_Log] = []
        self.grow(spec.partitions)

    def grow(self, partitions: int) -> None:
        self.logs += [_Log(Partition(self.name, index)) for index in range(len(self.logs), partitions)]


class MemoryBroker:
    """The logs themselves. Thread-safe.

    ``now_ms`` is the clock of topics with LogAppendTime, in milliseconds since 1970; topic ids come from ``new_id``.
    """

    def __init__(
        self,
        *,
        now_ms: Clock = _wall_clock_ms,
        max_record_bytes: int = RECORD_BYTES_MAX,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.now_ms = now_ms
        self.max_record_bytes = max_record_bytes
        self._new_id = new_id
        self._lock = threading.RLock()
        self.cluster = f"memory-{uuid.uuid4().hex}"
        self._topics: dict[str, _Topic] = {}
        self._deletions = 0
        self._claims: dict[str, int] = {}
        """How often each owner's name was claimed: only the newest claim may commit."""
        self._candidates: dict[str, list[MemoryElection]] = {}
        """For each place, by name; who holds it stands first."""

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        with self._lock:
            for spec in specs:
                topic = self._topics.get(spec.name)
                if topic is None:
                    self._topics[spec.name] = _Topic(spec, self._new_id())
                else:
                    topic.grow(spec.partitions)

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        with self._lock:
            return {
                name: TopicInfo(name, self._topics[name].topic_id, len(self._topics[name].logs))
                for name in names
                if name in self._topics
            }

    def inspect(self, names: Iterable[str]) -> Inspection:
        with self._lock:
            topics = {
                name: TopicFacts(info, None, dict(self._topics[name].settings))
                for name, info in self.describe_topics(names).items()
            }
        return Inspection("memory", self.cluster, None, topics, frozenset())

    def list_topics(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(name for name in self._topics if name.startswith(prefix))

    def delete_topics(self, names: Iterable[str]) -> None:
        with self._lock:
            self._deletions += 1
            for name in names:
                topic = self._topics.pop(name, None)
                for log in topic.logs if topic is not None else ():
                    log.wake()

    def first_epoch(self) -> int:
        return 1 + _EPOCHS_MAX * self._deletions

    def offsets(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        with self._lock:
            return {p: OffsetRange(log.begin, log.end) for p, log in ((p, self._log(p)) for p in partitions)}

    def offsets_at(self, times_ms: Mapping[Partition, int]) -> dict[Partition, int]:
        with self._lock:
            return {p: self._log(p).offset_at(time_ms) for p, time_ms in times_ms.items()}

    def truncate(self, positions: Mapping[Partition, int]) -> None:
        with self._lock:
            for partition, offset in checked_positions(positions).items():
                log = self._log(partition)
                if offset > log.end:
                    raise PositionUnavailable(
                        f"cannot truncate {partition} below offset {offset}: offsets {log.begin} to {log.end} are"
                        " available",
                        partition,
                    )
                if offset > log.begin:
                    del log.records[: offset - log.begin]
                    log.begin = offset

    def topic_bytes(self, names: Iterable[str]) -> dict[str, int]:
        with self._lock:
            return {
                name: sum(len(r.key or b"") + len(r.value or b"") for log in topic.logs for r in log.records)
                for name in names
                if (topic := self._topics.get(name)) is not None
            }

    def _log(self, partition: Partition) -> _Log:
        topic = self._topics.get(partition.topic)
        if topic is None:
            raise TopicMissing(f"topic {partition.topic} does not exist: create the job's topics first")
        if not 0 <= partition.index < len(topic.logs):
            raise TopicMissing(f"partition {partition} does not exist: the topic has {len(topic.logs)} partitions")
        return topic.logs[partition.index]

    def _append(self, partition: Partition, key: bytes | None, value: bytes | None, producer_ms: Clock) -> int:
        with self._lock:
            log = self._log(partition)
            append_time = self._topics[partition.topic].log_append_time
            return log.append(key, value, self.now_ms() if append_time else producer_ms())

    def _too_large(self, where: object, value: bytes | None) -> AppendFailed | None:
        if value is None or len(value) <= self.max_record_bytes:
            return None
        return AppendFailed(
            f"a record of {len(value)} bytes for {where} is larger than the {self.max_record_bytes} bytes that a record"
            " may have; nothing was appended"
        )


class MemoryReader:
    """See :class:`penstock.transport.ports.Reader`. ``poll(0)`` never blocks."""

    def __init__(self, broker: MemoryBroker, positions: Mapping[Partition, int]) -> None:
        self._broker = broker
        self._next = checked_positions(positions)
        self._order = deque(positions)
        """Whose turn it is: a partition that filled a poll comes last in the next one, a paused one has no turn."""
        self._something = threading.Condition(broker._lock)
        with broker._lock:
            self._logs = {partition: broker._log(partition) for partition in positions}

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        with self._broker._lock:
            records = self._take(records_max)
            if records or timeout_s <= 0:
                return records
            awaited = [self._logs[partition] for partition in self._order]
            for log in awaited:
                log.waiting.add(self._something)
            try:
                end = time.monotonic() + timeout_s
                while not records and (left := end - time.monotonic()) > 0:
                    self._something.wait(left)
                    records = self._take(records_max)
                return records
            finally:
                for log in awaited:
                    log.waiting.discard(self._something)

    def _take(self, records_max: int) -> list[LogRecord]:
        records: list[LogRecord] = []
        for partition in tuple(self._order):
            log = self._logs[partition]
            offset = self._next[partition]
            unavailable = self._unavailable(partition, log, offset)
            if unavailable is not None:
                if records:
                    break  # what was read before it comes first
                raise unavailable
            taken = log.records[offset - log.begin : offset - log.begin + records_max - len(records)]
            records += taken
            self._next[partition] = offset + len(taken)
            if len(records) >= records_max:
                self._order.remove(partition)
                self._order.append(partition)
                break
        return records

    def _unavailable(self, partition: Partition, log: _Log, offset: int) -> TransportError | None:
        topic = self._broker._topics.get(partition.topic)
        if topic is None or topic.logs[partition.index : partition.index + 1] != [log]:
            return TopicMissing(f"topic {partition.topic} was deleted while {partition} was read")
        if log.begin <= offset <= log.end:
            return None
        return PositionUnavailable(
            f"partition {partition}: offset {offset} is wanted, offsets {log.begin} to {log.end} are available. The log"
            " was truncated, or the topic was recreated",
            partition,
        )

    def seek(self, partition: Partition, offset: int) -> None:
        if partition not in self._next:
            raise ValueError(f"this reader does not read {partition}")
        self._next |= checked_positions({partition: offset})
        if partition not in self._order:
            self._order.append(partition)

    def pause(self, partition: Partition) -> None:
        if partition not in self._next:
            raise ValueError(f"this reader does not read {partition}")
        if partition in self._order:
            self._order.remove(partition)

    def close(self) -> None:
        pass


class MemoryWriter:
    """See :class:`penstock.transport.ports.Writer`.

    Outcomes are called inside ``append``, after the lock is released: by this thread, or by another that is just
    appending, so that they come in order. A single thread always has the outcome before ``append`` returns, and gets
    what ``on_outcome`` raises.
    """

    def __init__(self, broker: MemoryBroker, now_ms: Clock) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._state = threading.Condition()
        self._outcomes: deque[tuple[OnOutcome | None, int | None, Exception | None]] = deque()
        self._calling = False
        self._appended = 0
        self._settled = 0
        self._failure: AppendFailed | None = None
        self._closed = False

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        too_large = self._broker._too_large(partition, value)
        if too_large is not None:
            raise too_large
        with self._state:
            if self._closed:
                raise AppendFailed("this writer is closed")
            if self._failure is not None:
                raise AppendFailed(f"an earlier append failed, so nothing may follow: {self._failure}")
            try:
                offset = self._broker._append(partition, key, value, self._now_ms)
            except TopicMissing as error:
                self._failure = AppendFailed(f"an append to {partition} failed: {error}")
                self._outcomes.append((on_outcome, None, self._failure))
            else:
                self._outcomes.append((on_outcome, offset, None))
            self._appended += 1
            if self._calling:
                return  # whoever calls outcomes now calls this one too, in its turn
            self._calling = True
        self._call_outcomes()

    def _call_outcomes(self) -> None:
        called = 0
        while True:
            with self._state:
                self._settled += called
                self._state.notify_all()
                if not self._outcomes:
                    self._calling = False
                    return
                on_outcome, offset, error = self._outcomes.popleft()
            called = 1
            try:
                if on_outcome is not None:
                    on_outcome(offset, error)
            except BaseException:
                with self._state:
                    self._settled += 1
                    self._calling = False
                raise

    def flush(self, timeout_s: float) -> bool:
        with self._state:
            wanted = self._appended
            return self._state.wait_for(lambda: self._settled >= wanted, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        self.flush(timeout_s)
        with self._state:
            self._closed = True


class MemoryFencedLog:
    """See :class:`penstock.transport.ports.FencedLog`."""

    def __init__(self, broker: MemoryBroker, topic: str, owner: str, now_ms: Clock) -> None:
        self._broker = broker
        self._partition = Partition(topic, 0)
        self._owner = owner
        self._now_ms = now_ms
        self._closed = False
        with broker._lock:
            broker._log(self._partition)
            self._claim = broker._claims[owner] = broker._claims.get(owner, 0) + 1

    def commit(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        with self._broker._lock:
            if self._closed or self._broker._claims[self._owner] != self._claim:
                why = "this claim was closed" if self._closed else "a newer owner has claimed the log"
                raise Fenced(f"committing to {self._partition.topic} as {self._owner}: {why}; touch nothing")
            try:
                self._broker._log(self._partition)
            except TopicMissing as error:
                raise AppendFailed(f"nothing was committed: {error}") from error
            for key, value in records:
                too_large = self._broker._too_large(f"{self._partition.topic} under {key!r}", value)
                if too_large is not None:
                    raise too_large
            for key, value in records:
                self._broker._append(self._partition, key.encode(), value, self._now_ms)

    def close(self) -> None:
        self._closed = True


class MemoryTransport:
    """Logs of a :class:`MemoryBroker`. ``now_ms`` is the producer's clock, the broker's where none is given."""

    def __init__(self, broker: MemoryBroker, *, now_ms: Clock | None = None) -> None:
        self.broker = broker
        self.max_record_bytes = broker.max_record_bytes
        self._now_ms = now_ms or broker.now_ms

    def check(self, timeout_s: float) -> str:
        return f"in-memory broker with {len(self.broker.list_topics(''))} topic(s)"

    def create_topics(self, specs: Iterable[TopicSpec], timeout_s: float = 30.0) -> None:
        self.broker.create_topics(specs)

    def describe_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> Mapping[str, TopicInfo]:
        return self.broker.describe_topics(names)

    def inspect(self, names: Iterable[str], timeout_s: float = 30.0) -> Inspection:
        return self.broker.inspect(names)

    def list_topics(self, prefix: str, timeout_s: float = 30.0) -> list[str]:
        return self.broker.list_topics(prefix)

    def delete_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> None:
        self.broker.delete_topics(names)

    def first_epoch(self) -> int:
        return self.broker.first_epoch()

    def offsets(self, partitions: Iterable[Partition], timeout_s: float = 30.0) -> Mapping[Partition, OffsetRange]:
        return self.broker.offsets(partitions)

    def offsets_at(self, times_ms: Mapping[Partition, int], timeout_s: float = 30.0) -> Mapping[Partition, int]:
        return self.broker.offsets_at(times_ms)

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        self.broker.truncate(positions)

    def topic_bytes(self, names: Iterable[str], timeout_s: float = 10.0) -> Mapping[str, int] | None:
        return self.broker.topic_bytes(names)

    def reader(self, positions: Mapping[Partition, int]) -> MemoryReader:
        return MemoryReader(self.broker, positions)

    def writer(self) -> MemoryWriter:
        return MemoryWriter(self.broker, self._now_ms)

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        with self.broker._lock:
            return list(self.broker._log(partition).records)

    def claim_log(self, topic: str, owner: str, timeout_s: float = 30.0) -> MemoryFencedLog:
        return MemoryFencedLog(self.broker, topic, owner, self._now_ms)

    def election(self, name: str, topic: str, session_s: float) -> MemoryElection:
        with self.broker._lock:
            self.broker._log(Partition(topic, 0))
            candidates = self.broker._candidates.setdefault(name, [])
        return MemoryElection(self.broker._lock, candidates, session_s)

    def candidates(self, name: str, timeout_s: float = 10.0) -> int:
        with self.broker._lock:
            return len(self.broker._candidates.get(name, ()))

    def close(self) -> None:
        pass
