"""Logs of simulated jobs, to be edited: each record keeps its offset, so that one that is dropped leaves a hole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from penstock.audit import Finding, Report, audit
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart, SubtaskSnapshot
from penstock.schemas.codec import Record, decode, encode
from penstock.schemas.errors import UnreadableRecord
from penstock.schemas.ids import SubtaskId
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import LogRecord, OffsetRange, Partition, TopicInfo
from tests.simulation.configs import CONFIGS
from tests.simulation.world import World

R = TypeVar("R")


@dataclass(frozen=True)
class At:
    """Where a record stands."""

    partition: Partition
    offset: int


class Logs:
    """A job's partitions, as lists of records. The small part of a transport that an audit reads is :meth:`audit`'s."""

    def __init__(self, broker: MemoryBroker, job: str) -> None:
        self.job = job
        self.topics: dict[str, TopicInfo] = {
            name: TopicInfo(name, topic.topic_id, len(topic.logs)) for name, topic in broker._topics.items()
        }
        self.records: dict[Partition, list[LogRecord]] = {
            log.partition: list(log.records) for topic in broker._topics.values() for log in topic.logs
        }
        self.begin = dict.fromkeys(self.records, 0)
        self.end = {partition: len(records) for partition, records in self.records.items()}

    def copy(self) -> Logs:
        made = object.__new__(Logs)
        made.job, made.topics = self.job, dict(self.topics)
        made.records = {partition: list(records) for partition, records in self.records.items()}
        made.begin, made.end = dict(self.begin), dict(self.end)
        return made

    # ---- finding

    def partition(self, name: str, index: int = 0) -> Partition:
        """By the end of its topic's name."""
        return next(p for p in self.records if p.topic.endswith("." + name) and p.index == index)

    def all(self, kind: type[R], where: Callable[[R], bool] = lambda _: True) -> Iterator[tuple[At, R]]:
        """Every record of a class, partition by partition."""
        for partition, records in sorted(self.records.items()):
            for record in records:
                found = _decoded(record)
                if isinstance(found, kind) and where(found):
                    yield At(partition, record.offset), found

    def first(self, kind: type[R], where: Callable[[R], bool] = lambda _: True) -> tuple[At, R]:
        return next(self.all(kind, where))

    def last(self, kind: type[R], where: Callable[[R], bool] = lambda _: True) -> tuple[At, R]:
        return list(self.all(kind, where))[-1]

    def behind(self, at: At, kind: type[R], where: Callable[[R], bool] = lambda _: True) -> tuple[At, R]:
        """The next record of a class in the same partition."""
        entries = self.all(kind, where)
        return next((a, r) for a, r in entries if a.partition == at.partition and a.offset > at.offset)

    def subtask(self, at: At) -> SubtaskId:
        return self.subtask_of(at.partition)

    def subtask_of(self, partition: Partition) -> SubtaskId:
        """Whose events, or data, these are."""
        return SubtaskId(partition.topic.split(".")[-2], partition.index)

    def part_of(self, n: int, subtask: SubtaskId) -> tuple[At, CheckpointPart, SubtaskSnapshot]:
        """The newest part of a checkpoint that holds a subtask."""
        for at, part in reversed(list(self.all(CheckpointPart, lambda p: p.checkpoint_id == n))):
            for snapshot in part.subtasks:
                if SubtaskId(part.operator, snapshot.subtask) == subtask:
                    return at, part, snapshot
        raise LookupError(f"no part of checkpoint {n} holds {subtask}")

    # ---- editing

    def at(self, at: At) -> Record:
        found = _decoded(self._raw(at))
        assert found is not None
        return found

    def put(self, at: At, record: Record | None, *, raw: bytes | None = None) -> None:
        """Another record in the place of one; with ``raw``, those bytes."""
        value = raw if record is None else encode(record)
        self._replace(at, self._raw(at)._replace(value=value))

    def change(self, at: At, **fields: Any) -> None:
        self.put(at, replace(self.at(at), **fields))  # type: ignore[type-var]

    def change_snapshot(self, n: int, subtask: SubtaskId, **fields: Any) -> SubtaskSnapshot:
        """Of a checkpoint's part; gives the one before."""
        at, part, snapshot = self.part_of(n, subtask)
        changed = tuple(replace(s, **fields) if s is snapshot else s for s in part.subtasks)
        self.change(at, subtasks=changed)
        return snapshot

    def drop(self, at: At) -> None:
        self.records[at.partition] = [r for r in self.records[at.partition] if r.offset != at.offset]

    def insert(self, at: At, record: Record, key: str = "") -> None:
        """Ahead of that place; what stands there and behind it moves up by one."""
        moved = [r if r.offset < at.offset else r._replace(offset=r.offset + 1) for r in self.records[at.partition]]
        moved.append(LogRecord(at.partition, at.offset, 0, key.encode(), encode(record)))
        self.records[at.partition] = sorted(moved, key=lambda r: r.offset)
        self.end[at.partition] += 1

    def append(self, partition: Partition, record: Record | None, key: str = "") -> At:
        at = At(partition, self.end[partition])
        value = None if record is None else encode(record)
        self.records[partition].append(LogRecord(partition, at.offset, 0, key.encode(), value))
        self.end[partition] += 1
        return at

    def swap(self, one: At, other: At) -> None:
        a, b = self._raw(one), self._raw(other)
        self._replace(one, a._replace(key=b.key, value=b.value))
        self._replace(other, b._replace(key=a.key, value=a.value))

    def truncate(self, partition: Partition, below: int) -> None:
        self.records[partition] = [r for r in self.records[partition] if r.offset >= below]
        self.begin[partition] = below

    def cut_off(self, partition: Partition, end: int) -> None:
        self.records[partition] = [r for r in self.records[partition] if r.offset < end]
        self.end[partition] = end

    def rekey(self, at: At, key: str) -> None:
        self._replace(at, self._raw(at)._replace(key=key.encode()))

    def _raw(self, at: At) -> LogRecord:
        return next(r for r in self.records[at.partition] if r.offset == at.offset)

    def _replace(self, at: At, record: LogRecord) -> None:
        self.records[at.partition] = [record if r.offset == at.offset else r for r in self.records[at.partition]]

    # ---- judging

    def audit(self) -> Report:
        prefix, job, *_ = next(iter(self.records)).topic.split(".")
        return audit(_Edited(self), job, prefix)


class _Edited(MemoryTransport):
    """Reads what the edits have left."""

    def __init__(self, logs: Logs) -> None:
        super().__init__(MemoryBroker())
        self._logs = logs

    def list_topics(self, prefix: str, timeout_s: float = 30.0) -> list[str]:
        return sorted(name for name in self._logs.topics if name.startswith(prefix))

    def describe_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> dict[str, TopicInfo]:
        return {name: self._logs.topics[name] for name in names if name in self._logs.topics}

    def offsets(self, partitions: Iterable[Partition], timeout_s: float = 30.0) -> dict[Partition, OffsetRange]:
        return {p: OffsetRange(self._logs.begin[p], self._logs.end[p]) for p in partitions}

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        return list(self._logs.records[partition])

    def reader(self, positions: Mapping[Partition, int]) -> Any:
        return _Reader(self._logs, dict(positions))


class _Reader:
    def __init__(self, logs: Logs, positions: dict[Partition, int]) -> None:
        self._logs, self._positions = logs, positions

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        found: list[LogRecord] = []
        for partition, position in self._positions.items():
            found += [r for r in self._logs.records[partition] if r.offset >= position][:records_max]
        for record in found:
            self._positions[record.partition] = record.offset + 1
        return found

    def close(self) -> None:
        pass


def _decoded(record: LogRecord) -> Record | None:
    try:
        return decode(record.value)
    except UnreadableRecord:
        return None


def simulated(config: str, seed: int) -> Logs:
    """The whole logs of a seed, as if nothing had been truncated."""
    world = World(CONFIGS[config], seed)
    world.run_all()
    return Logs(world.broker.whole(), world.settings.name)


def at_place(report: Report, at: At) -> list[Finding]:
    """The findings at one place."""
    return [f for f in report.findings if (f.topic, f.partition, f.offset) == (*at.partition, at.offset)]


def acknowledged(logs: Logs) -> tuple[At, CheckpointCompleted]:
    """Return the newest checkpoint that every subtask acknowledged while it worked."""
    for at, header in reversed(list(logs.all(CheckpointCompleted))):
        parts = logs.all(CheckpointPart, lambda p, n=header.checkpoint_id: p.checkpoint_id == n)  # type: ignore[misc]
        if all(s.epoch == header.epoch and not s.finished for _, part in parts for s in part.subtasks):
            return at, header
    raise LookupError("no such checkpoint")
