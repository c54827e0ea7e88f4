"""One consumer and one producer for all readers and writers of a process: for processes that host many subtasks.

A Kafka client has threads, connections and buffers of its own, and a subtask needs two of them. A process that hosts a
thousand subtasks as threads would have eight thousand threads more than it needs. So here they have *parts* of one
consumer and of one producer; what :mod:`penstock.transport.ports` says holds for each part.

The consumer belongs to a thread of its own, the feeder. It obeys what parts ask for (seek, pause) between two fetches,
and gives each record to the part whose partition it is from. A part that is not emptied gives its partitions back and
reads on behind what it has, once half of that has been taken: a slow subtask costs its own bound and holds up nobody.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

from ..schemas.errors import AppendFailed, BrokerUnreachable, TransportError
from .kafka import KafkaTransport
from .kafka_client import KafkaConfig, OwnProcess
from .kafka_reader import KafkaReader
from .kafka_writer import KafkaWriter, tell
from .ports import LogRecord, OffsetRange, OnOutcome, Partition, Reader, Writer, checked_positions
from .request_coalescing import Together

T = TypeVar("T")

logger = logging.getLogger("penstock.transport.kafka")

WAITING_BYTES_MAX = 4 * 1024 * 1024
"""A part that has so many bytes waiting, about, fetches no more until half of them have been taken."""
RECORD_COST_BYTES = 512
"""What a record takes in memory beside its value, about."""
ASKED_TIMEOUT_S = 30.0
"""How long a question may take that is asked for many."""
_ALONE_MAX = 8
"""So many ask alone at a time."""
_OBEY_S = 0.01
"""How long a seek or a pause waits at most for the fetch before it, where nothing comes."""


class SharedKafkaTransport(KafkaTransport):
    """A :class:`KafkaTransport` whose readers share a consumer, and whose writers share a producer.

    For processes that host many subtasks; what they append waits some milliseconds for company. A second reader of a
    partition that is being read has a consumer of its own.
    When an append fails, all writers of the process fail, and what they are replaced by has a new producer.
    """

    def __init__(self, bootstrap: str, client_settings: Mapping[str, str] | None = None, **timeouts_s: float) -> None:
        super().__init__(bootstrap, client_settings, **timeouts_s)
        self._process = OwnProcess()
        self._alone = threading.BoundedSemaphore(_ALONE_MAX)
        self._offsets = Together(lambda partitions: self._admin.offsets(partitions, ASKED_TIMEOUT_S))
        self._existing = Together(self._require)
        self._sharing = threading.Lock()
        self._feeder: _Feeder | None = None
        self._producer: _Producer | None = None

    def offsets(
        self, partitions: Iterable[Partition], timeout_s: float = ASKED_TIMEOUT_S
    ) -> dict[Partition, OffsetRange]:
        """See :class:`penstock.transport.ports.Transport`. May take as long again as a question that many ask does."""
        wanted = list(partitions)
        return self._asked(self._offsets, wanted, timeout_s, lambda: self._admin.offsets(wanted, timeout_s))

    def _asked(
        self,
        together: Together[Partition, T],
        about: Collection[Partition],
        timeout_s: float,
        alone: Callable[[], dict[Partition, T]],
    ) -> dict[Partition, T]:
        """The answer to a question that many ask; where it fails, one's own part is asked alone.

        What is wrong may concern another one's part: its topic is gone, or nobody leads its partition.
        """
        self._process.check("this transport")
        try:
            return together.ask(about, timeout_s)
        except BrokerUnreachable:
            raise
        except TransportError:
            with self._alone:
                return alone()

    def _require(self, partitions: Collection[Partition]) -> dict[Partition, None]:
        self._admin.require(partitions, ASKED_TIMEOUT_S)
        return dict.fromkeys(partitions)

    def reader(self, positions: Mapping[Partition, int]) -> Reader:
        self._asked(self._existing, positions.keys(), ASKED_TIMEOUT_S, lambda: self._require(positions.keys()))
        wanted = checked_positions(positions)
        with self._sharing:
            if self._feeder is None or self._feeder.ended:
                self._feeder = _Feeder(self.config, wanted)
            if (part := self._feeder.join(wanted)) is not None:
                return part
        return KafkaReader(self.config, wanted)

    def writer(self) -> Writer:
        self._process.check("this transport")
        with self._sharing:
            if self._producer is None or not self._producer.join():
                self._producer = _Producer(KafkaWriter(self.config, for_many=True))
            return WriterPart(self._producer)


# ---- reading


class _Feeder:
    """The thread that the consumer belongs to. It ends with the last part."""

    def __init__(self, config: KafkaConfig, positions: Mapping[Partition, int]) -> None:
        self.process = OwnProcess()
        self.reader = KafkaReader(config, positions, grows=True)
        for partition in positions:
            self.reader.pause(partition)
        self._lock = threading.Lock()
        self._parts: dict[Partition, ReaderPart] = {}
        self._orders: deque[Callable[[], None]] = deque()
        self.ended = False
        """No part can join any more."""
        self._started = False

    def join(self, positions: Mapping[Partition, int]) -> ReaderPart | None:
        """A part that reads these partitions; None where another one reads one of them, or this has just ended."""
        part = ReaderPart(self, positions)
        with self._lock:
            if self.ended or not self._parts.keys().isdisjoint(positions):
                return None
            self._parts.update(dict.fromkeys(positions, part))
        for partition, offset in positions.items():
            part.seek(partition, offset)
        if not self._started:
            self._start()
        return part

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="penstock-kafka-feeder", daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            self.ended = True
            self.reader.close()
            raise
        self._started = True

    def tell(self, order: Callable[[], None]) -> None:
        """Has the feeder do something with its consumer, behind everything it was told before."""
        self.process.check("this reader")
        self._orders.append(order)

    def leave(self, part: ReaderPart) -> None:
        """On the feeder's thread: that part reads no more."""
        with self._lock:
            for partition in [p for p, reads in self._parts.items() if reads is part]:
                self.reader.pause(partition)
                del self._parts[partition]
            self.ended = not self._parts

    def _run(self) -> None:
        try:
            while not self.ended:
                while self._orders:
                    self._orders.popleft()()
                self._feed()
        except Exception as error:
            logger.exception("the consumer that %d readers share has broken off", len(self._parts))
            self._tell_all(TransportError(f"the consumer that this reader shares has broken off: {error!r}"))
        finally:
            self.reader.close()

    def _feed(self) -> None:
        records = self.reader.fetch(_OBEY_S)
        given: dict[ReaderPart, list[LogRecord]] = {}
        for record in records:
            if (part := self._parts.get(record.partition)) is not None:
                given.setdefault(part, []).append(record)
        for part, those in given.items():
            part.give(those)
        if not records and (failed := self.reader.next_failure()) is not None:
            self._tell(*failed)

    def _tell(self, partition: Partition | None, error: Exception) -> None:
        if partition is not None:
            if (part := self._parts.get(partition)) is not None:
                part.fail(partition, error)
            return
        said = str(error)
        with self._lock:  # others may be joining
            meant = {part for p, part in self._parts.items() if p.topic in said} or set(self._parts.values())
        for part in meant:
            part.fail(None, error)

    def _tell_all(self, error: TransportError) -> None:
        with self._lock:
            self.ended = True
        for part in set(self._parts.values()):
            part.break_off(error)


class ReaderPart:
    """See :class:`penstock.transport.ports.Reader`."""

    def __init__(self, feeder: _Feeder, positions: Mapping[Partition, int]) -> None:
        self._feeder = feeder
        self._partitions = frozenset(positions)
        self._changed = threading.Condition()
        self._records: deque[LogRecord] = deque()
        self._bytes = 0
        self._next: dict[Partition, int] = {}
        """Behind what was given of each partition."""
        self._errors: dict[Partition | None, Exception] = {}
        self._ahead = 0
        """So many records come before the first error: those that waited when it was noted."""
        self._broken: Exception | None = None
        """Why nothing will ever come again."""
        self._unobeyed: Counter[Partition] = Counter()
        """Seeks and pauses that the feeder has not come to: what it gives until then is void."""
        self._given_back: set[Partition] = set()
        """Partitions that are not fetched because enough waits."""
        self._closed = False

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        self._feeder.process.check("this reader")
        with self._changed:
            self._changed.wait_for(lambda: self._records or self._errors or self._broken, max(0.0, timeout_s))
            if (count := self._ahead if self._errors else len(self._records)) > 0:
                return self._taken(min(records_max, count))
            if self._errors:
                raise self._errors.pop(next(iter(self._errors)))
            if self._broken is not None:
                raise self._broken
            return []

    def _taken(self, count: int) -> list[LogRecord]:
        taken = [self._records.popleft() for _ in range(count)]
        self._ahead = max(0, self._ahead - count)
        self._bytes -= sum(map(_cost, taken))
        self._fetch_again()
        return taken

    def _fetch_again(self) -> None:
        """To be called wherever there may be less waiting than before: nothing else begins what was given back."""
        if self._given_back and self._bytes <= WAITING_BYTES_MAX // 2:
            for partition in self._given_back:
                self._order(partition, partial(self._seek_now, partition, self._next[partition]))
            self._given_back.clear()

    def seek(self, partition: Partition, offset: int) -> None:
        checked_positions({partition: offset})
        with self._changed:
            self._forget(partition)
            self._order(partition, partial(self._seek_now, partition, offset))

    def pause(self, partition: Partition) -> None:
        with self._changed:
            self._forget(partition)
            self._order(partition, partial(self._feeder.reader.pause, partition))

    def _forget(self, partition: Partition) -> None:
        if partition not in self._partitions:
            raise ValueError(f"this reader does not read {partition}")
        self._given_back.discard(partition)
        self._errors.pop(partition, None)
        if any(record.partition == partition for record in self._records):
            self._records = deque(record for record in self._records if record.partition != partition)
            self._ahead = min(self._ahead, len(self._records))
            self._bytes = sum(map(_cost, self._records))
            self._fetch_again()

    def _order(self, partition: Partition, order: Callable[[], None]) -> None:
        self._unobeyed[partition] += 1
        self._feeder.tell(partial(self._obey, partition, order))

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._records.clear()
            self._ahead = 0
        self._feeder.tell(partial(self._feeder.leave, self))

    # What follows runs in the feeder's thread.

    def _obey(self, partition: Partition, order: Callable[[], None]) -> None:
        order()
        with self._changed:
            self._unobeyed[partition] -= 1

    def _seek_now(self, partition: Partition, offset: int) -> None:
        self._feeder.reader.add(partition)
        self._feeder.reader.seek(partition, offset)
        self._next[partition] = offset

    def give(self, records: list[LogRecord]) -> None:
        """Records in the order of their partitions, for :meth:`poll`."""
        with self._changed:
            counted = [record for record in records if not self._unobeyed[record.partition]]
            for record in counted:
                self._bytes += _cost(record)
                self._next[record.partition] = record.offset + 1
            self._records.extend(counted)
            if self._bytes > WAITING_BYTES_MAX:
                for partition in {record.partition for record in counted}:
                    self._feeder.reader.pause(partition)
                    self._given_back.add(partition)
            self._changed.notify()

    def fail(self, partition: Partition | None, error: Exception) -> None:
        with self._changed:
            if partition is None or not self._unobeyed[partition]:
                if not self._errors:
                    self._ahead = len(self._records)
                self._errors[partition] = error
                self._changed.notify()

    def break_off(self, error: Exception) -> None:
        with self._changed:
            self._broken = error
            self._changed.notify()


def _cost(record: LogRecord) -> int:
    return RECORD_COST_BYTES + len(record.value or b"")


# ---- writing


class _Producer:
    """A writer, and how many have a part of it; the last one to leave closes it."""

    def __init__(self, writer: KafkaWriter) -> None:
        self.writer = writer
        self._lock = threading.Lock()
        self._parts = 1

    def join(self) -> bool:
        """Whether one more may have a part of it. One that has failed is closed first: nothing may follow a hole."""
        with self._lock:
            if self._parts and not self.writer.failed:
                self._parts += 1
                return True
        self.writer.close(0.0)
        return False

    def leave(self) -> None:
        with self._lock:
            self._parts -= 1
            last = not self._parts
        if last:
            self.writer.close(0.0)


class WriterPart:
    """See :class:`penstock.transport.ports.Writer`. What is closed before the broker has answered may yet stand, ahead
    of all that another part of the same producer appends later."""

    def __init__(self, producer: _Producer) -> None:
        self._producer = producer
        self._order = threading.Lock()
        """Held while a record is queued, so that ``_pending`` has the order of the appends."""
        self._pending: deque[OnOutcome | None] = deque()
        self._state = threading.Condition()
        """Guards what follows; never held while calling out."""
        self._appended = self._settled = 0
        self._closed = False
        self._calling = False
        """An outcome is just being told."""

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        with self._order:
            if self._closed:
                raise AppendFailed("this writer is closed")
            self._pending.append(on_outcome)  # before the append: its outcome may come before that returns
            try:
                self._producer.writer.append(partition, value, key, self._settle)
            except Exception:
                self._pending.pop()
                raise
            self._appended += 1

    def flush(self, timeout_s: float) -> bool:
        wanted = self._appended
        with self._state:
            return self._state.wait_for(lambda: self._settled >= wanted, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        self.flush(timeout_s)
        with self._order, self._state:
            if self._closed:
                return
            self._closed = True
            left, self._pending = self._pending, deque()
        if not self._producer.writer.is_its_thread:
            with self._state:  # and not _order, which who is just being told may want
                self._state.wait_for(lambda: not self._calling)
        failure = AppendFailed("the writer was closed before the broker had answered")
        try:
            for on_outcome in left:
                if on_outcome is not None:
                    tell(on_outcome, None, failure)
        finally:
            with self._state:
                self._settled += len(left)
                self._state.notify_all()
            self._producer.leave()

    def _settle(self, offset: int | None, error: Exception | None) -> None:
        """On the producer's thread, in the order of the appends."""
        with self._state:
            if self._closed:
                return
            on_outcome = self._pending.popleft()
            self._calling = True
        try:
            if on_outcome is not None:
                on_outcome(offset, error)
        finally:
            with self._state:
                self._calling = False
                self._settled += 1
                self._state.notify_all()
