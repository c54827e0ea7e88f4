"""A transport that goes wrong where a test says so, around any other: in memory or Kafka's.

::

    faults = Faults()
    transport = FaultyTransport(MemoryTransport(MemoryBroker()), faults)

:class:`~penstock.testing.LocalJob` makes one per process by itself; this class is for tests that make their own
coordinators and subtasks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from ..schemas.errors import (
    AppendFailed,
    BrokerUnreachable,
    Fenced,
    OutcomeUnknown,
    PositionUnavailable,
    TransportError,
)
from ..schemas.topics import TopicSpec
from ..transport.memory_election import MemoryElection
from ..transport.ports import (
    Election,
    FencedLog,
    Inspection,
    LogRecord,
    OffsetRange,
    Partition,
    Reader,
    TopicInfo,
    Transport,
    Writer,
)
from .faults import COMMITTING, READING, Faults, Hold, Kind
from .matching import Subject
from .processes import Process
from .writer import LOST_KEY, FaultyWriter

_TICK_S = 0.001
"""Kafka's clients wait whole milliseconds: what is left of a wait below one cannot be waited for."""
COMMIT_TIMEOUT_S = 90.0
"""How long a commit waits for a broker that is away, as over Kafka."""


class FaultyTransport:
    """See :class:`penstock.transport.ports.Transport`: one process's view of ``inner``, under ``faults``.

    ``process`` is the name that faults know this process by. :meth:`of` is the view of another process.
    """

    def __init__(self, inner: Transport, faults: Faults | None = None, *, process: str = "test", seed: int = 0) -> None:
        self.inner = inner
        self.faults = faults if faults is not None else Faults(seed)
        self.process = Process(process, self.faults.changed)
        self.max_record_bytes = inner.max_record_bytes
        self.commit_timeout_s = COMMIT_TIMEOUT_S

    def of(self, process: str) -> FaultyTransport:
        """Another process's view, under the same faults."""
        return FaultyTransport(self.inner, self.faults, process=process)

    def crash(self) -> None:
        """The process dies: from now on it writes nothing and reads nothing, as after SIGKILL."""
        self.process.kill()
        self.faults.note_process("crash", self.process.name)
        self.faults.wake()

    def freeze(self) -> None:
        """The process stops at its next transport call, as after SIGSTOP."""
        self.process.freeze()
        self.faults.note_process("freeze", self.process.name)

    def thaw(self) -> None:
        """The frozen process goes on."""
        self.process.thaw()
        self.faults.note_process("thaw", self.process.name)

    def __repr__(self) -> str:
        return f"FaultyTransport({self.inner!r}, process={self.process.name!r})"

    # ---- the port

    def check(self, timeout_s: float) -> str:
        return self._inner(timeout_s).check(timeout_s)

    def create_topics(self, specs: Iterable[TopicSpec], timeout_s: float = 30.0) -> None:
        self._inner(timeout_s).create_topics(specs, timeout_s)

    def first_epoch(self) -> int:
        return self.inner.first_epoch()

    def describe_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> Mapping[str, TopicInfo]:
        return self._inner(timeout_s).describe_topics(names, timeout_s)

    def inspect(self, names: Iterable[str], timeout_s: float = 30.0) -> Inspection:
        return self._inner(timeout_s).inspect(names, timeout_s)

    def list_topics(self, prefix: str, timeout_s: float = 30.0) -> list[str]:
        return self._inner(timeout_s).list_topics(prefix, timeout_s)

    def delete_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> None:
        self._inner(timeout_s).delete_topics(names, timeout_s)

    def offsets(self, partitions: Iterable[Partition], timeout_s: float = 30.0) -> Mapping[Partition, OffsetRange]:
        return self._inner(timeout_s).offsets(partitions, timeout_s)

    def offsets_at(self, times_ms: Mapping[Partition, int], timeout_s: float = 30.0) -> Mapping[Partition, int]:
        return self._inner(timeout_s).offsets_at(times_ms, timeout_s)

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        self._inner(timeout_s).truncate(positions, timeout_s)

    def topic_bytes(self, names: Iterable[str], timeout_s: float = 10.0) -> Mapping[str, int] | None:
        return self._inner(timeout_s).topic_bytes(names, timeout_s)

    def reader(self, positions: Mapping[Partition, int]) -> FaultyReader:
        return FaultyReader(self.faults, self.process, self._inner().reader(positions))

    def writer(self) -> Writer:
        self.process.pass_gate()
        return FaultyWriter(self.faults, self.process, self.inner.writer(), self.max_record_bytes)

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        found = self._inner(timeout_s).read_all(partition, timeout_s)
        return [record for record in found if not _is_lost(record)]

    def claim_log(self, topic: str, owner: str, timeout_s: float = 30.0) -> FaultyFencedLog:
        inner = self._inner(timeout_s).claim_log(topic, owner, timeout_s)
        return FaultyFencedLog(self.faults, self.process, inner, Partition(topic, 0), self.commit_timeout_s)

    def election(self, name: str, topic: str, session_s: float) -> FaultyElection:
        return FaultyElection(self.process, self._inner().election(name, topic, session_s))

    def candidates(self, name: str, timeout_s: float = 10.0) -> int:
        return self._inner(timeout_s).candidates(name, timeout_s)

    def close(self) -> None:
        """Closes the inner transport, which every view shares."""
        self.inner.close()

    def _inner(self, timeout_s: float = 30.0) -> Transport:
        """The inner transport, once it can be reached from this process."""
        self.process.pass_gate()
        there = self.faults.wait_for_broker(self.process, timeout_s)
        if self.process.dead:
            raise BrokerUnreachable(f"{self.process.name} has crashed: it reaches nothing any more")
        if not there:
            raise BrokerUnreachable(
                f"no broker answered {self.process.name} within {timeout_s:g} s (an injected fault)"
            )
        return self.inner


class FaultyReader:
    """See :class:`penstock.transport.ports.Reader`."""

    def __init__(self, faults: Faults, process: Process, inner: Reader) -> None:
        self._faults, self._process, self._inner = faults, process, inner
        self._fetched: deque[LogRecord] = deque()
        """Read and not handed over: a fault holds it, or what came before it in its partition."""
        self._holds: dict[Partition, Hold] = {}
        """Of the first fetched record of each partition that waits."""
        self._error: TransportError | None = None
        """Raised behind what was read before it."""

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        deadline = time.monotonic() + timeout_s
        while True:
            if self._may_read():
                self._fetch(deadline, records_max)
                if self._may_read() and (records := self._take(records_max)):
                    return records
                if self._error is not None and not self._fetched:
                    error, self._error = self._error, None
                    raise error
            left = deadline - time.monotonic()
            if left <= _TICK_S:
                return []
            if self._process.dead or self._fetched or self._faults.is_away(self._process):
                self._faults.wait(left)

    def _may_read(self) -> bool:
        return self._process.pass_gate() and not self._faults.is_away(self._process)

    def _fetch(self, deadline: float, records_max: int) -> None:
        if self._error is not None or len(self._fetched) >= records_max:
            return
        try:
            wait_s = 0.0 if self._fetched else max(0.0, deadline - time.monotonic())
            self._fetched.extend(self._inner.poll(wait_s, records_max))
        except TransportError as error:
            self._error = error

    def _take(self, records_max: int) -> list[LogRecord]:
        taken: list[LogRecord] = []
        kept: deque[LogRecord] = deque()
        waiting: set[Partition] = set()
        while self._fetched and len(taken) < records_max:
            record = self._fetched.popleft()
            partition = record.partition
            if partition in waiting:
                kept.append(record)
                continue
            hold = self._holds.get(partition)
            if hold is None and not _is_lost(record):
                kind, hold = self._meets(record)
                if kind is Kind.MISS:
                    continue
            if hold is not None and not hold.over and not self._process.spared:
                self._holds[partition] = hold
                waiting.add(partition)
                kept.append(record)
                continue
            self._holds.pop(partition, None)
            if not _is_lost(record):
                taken.append(record)
        self._fetched.extendleft(reversed(kept))
        return taken

    def _meets(self, record: LogRecord) -> tuple[Kind | None, Hold | None]:
        if self._faults.idle:
            return None, None
        subject = Subject.of(record.partition, record.value)
        met = self._faults.meet(self._process, subject, READING)
        return (None, None) if met is None else met

    def seek(self, partition: Partition, offset: int) -> None:
        self._inner.seek(partition, offset)
        self._forget(partition)

    def pause(self, partition: Partition) -> None:
        self._inner.pause(partition)
        self._forget(partition)

    def _forget(self, partition: Partition) -> None:
        """Forgets what was read of ``partition``, and an error unless it speaks of another one: it comes only once."""
        self._fetched = deque(record for record in self._fetched if record.partition != partition)
        self._holds.pop(partition, None)
        if not isinstance(self._error, PositionUnavailable) or self._error.partition in (None, partition):
            self._error = None

    def close(self) -> None:
        self._inner.close()


class FaultyFencedLog:
    """See :class:`penstock.transport.ports.FencedLog`."""

    def __init__(
        self, faults: Faults, process: Process, inner: FencedLog, partition: Partition, timeout_s: float
    ) -> None:
        self._faults, self._process, self._inner = faults, process, inner
        self._partition, self._timeout_s = partition, timeout_s
        self._useless = False

    def commit(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        what = f"committing to {self._partition.topic}"
        if self._useless:
            raise Fenced(f"{what}: an earlier commit had no outcome")
        self._live(what)
        kind = self._meets(records)
        if kind is Kind.REFUSE:
            raise AppendFailed(f"{what} was refused (an injected fault); none of it was written")
        if kind is Kind.OUTCOME_LOST:
            raise self._unknown(f"{what}: no answer (an injected fault)")
        self._live(what)
        if not self._faults.wait_for_broker(self._process, self._timeout_s):
            raise self._unknown(f"{what}: no broker answered within {self._timeout_s:g} s (an injected fault)")
        self._live(what)
        self._inner.commit(records)
        self._live(what)
        if kind is Kind.OUTCOME_STANDS:
            raise self._unknown(f"{what}: no answer (an injected fault)")

    def _meets(self, records: Sequence[tuple[str, bytes | None]]) -> Kind | None:
        """The fault that the commit meets by the first of its records that meets one; a hold is over then."""
        met: tuple[Kind, Hold] | None = None
        for subject in [Subject.of(self._partition, v) for _, v in records if v is not None and not self._faults.idle]:
            if met is None:
                met = self._faults.meet(self._process, subject, COMMITTING)
            else:
                self._faults.see(self._process, subject)
        if met is None:
            return None
        kind, hold = met
        while kind in (Kind.HOLD, Kind.DELAY) and not (hold.over or self._process.dead or self._process.spared):
            self._faults.wait(1.0)
        return kind

    def _live(self, what: str) -> None:
        if not self._process.pass_gate():
            raise self._unknown(f"{what}: {self._process.name} has crashed")

    def _unknown(self, why: str) -> OutcomeUnknown:
        self._useless = True
        return OutcomeUnknown(why)

    def close(self) -> None:
        self._inner.close()


class FaultyElection:
    """See :class:`penstock.transport.ports.Election`. In memory, the session of a stopped or dead process ends."""

    def __init__(self, process: Process, inner: Election) -> None:
        self._process, self._inner = process, inner
        if isinstance(inner, MemoryElection):
            inner.alive = lambda: not (process.dead or process.frozen)

    def elected(self) -> bool:
        self._process.pass_gate()
        if self._process.dead:
            raise BrokerUnreachable(f"{self._process.name} has crashed: it reaches nothing any more")
        return self._inner.elected()

    def close(self) -> None:
        if not self._process.dead:
            self._inner.close()


def _is_lost(record: LogRecord) -> bool:
    return record.key is not None and record.key.startswith(LOST_KEY)
