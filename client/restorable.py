"""Which of a job's checkpoints can still be restored: somebody else may have cut the logs that they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..checkpoint_log.history import Checkpoint, History
from ..checkpoint_log.restorability import Available, Offsets, missing
from ..schemas.graph import DataPartition
from ..schemas.ids import SubtaskId
from ..schemas.topics import TopicNames
from ..transport.ports import OffsetRange, Partition, Transport
from .log_reader import read_log

_NOTHING = OffsetRange(0, 0)
"""Of a partition that is gone."""


def look(transport: Transport, topics: TopicNames, timeout_s: float = 60.0) -> tuple[History, Mapping[int, str]]:
    """The job's history, and of each checkpoint that cannot be restored what it needs and the logs do not hold."""
    described = transport.describe_topics(transport.list_topics(topics.root))
    partitions = [Partition(info.name, index) for info in described.values() for index in range(info.partitions)]
    before = transport.offsets(partitions)
    history = History.of(read_log(topics.job, transport, Partition(topics.checkpoints, 0), timeout_s))
    # Asked again behind the log: a coordinator at work truncates, and completes checkpoints above the ends before it.
    behind = transport.offsets(partitions)
    there = {at: OffsetRange(before[at].begin, behind[at].end) for at in partitions}
    found = ((n, missing(topics, c, _available(topics, c, there))) for n, c in history.checkpoints.items())
    return history, {n: why for n, why in found if why is not None}


def _available(topics: TopicNames, checkpoint: Checkpoint, there: Mapping[Partition, OffsetRange]) -> Available:
    def of(topic: str, index: int) -> Offsets:
        found = there.get(Partition(topic, index), _NOTHING)
        return Offsets(found.begin, found.end)

    return Available(
        of(topics.acks, 0),
        {s: of(topics.events(s.operator), s.index) for s in checkpoint.subtasks},
        {p: of(topics.data(p.upstream, p.receiver.operator), p.receiver.index) for p in _data(checkpoint)},
    )


def _data(checkpoint: Checkpoint) -> Iterable[DataPartition]:
    receivers: Iterable[SubtaskId] = checkpoint.subtasks
    return {DataPartition(p.sender.operator, r) for r in receivers for p in checkpoint.subtasks[r].data_positions}
