"""Where the records of each subtask and channel stand."""

from __future__ import annotations

from collections.abc import Mapping

from ..schemas.graph import DataPartition
from ..schemas.ids import SubtaskId
from ..schemas.settings import JobSettings
from ..transport.ports import Partition


def event_partition(settings: JobSettings, subtask: SubtaskId) -> Partition:
    """Return the partition of events to a subtask."""
    return Partition(settings.topics.events(subtask.operator), subtask.index)


def event_partitions(settings: JobSettings) -> Mapping[SubtaskId, Partition]:
    """Return the partition of events to each subtask."""
    return {s: event_partition(settings, s) for s in settings.subtasks()}


def data_partitions(settings: JobSettings) -> Mapping[DataPartition, Partition]:
    """Return the partition of records from each upstream operator to each subtask that has it as an input."""
    return {
        p: Partition(settings.topics.data(p.upstream, p.receiver.operator), p.receiver.index)
        for p in settings.graph.data_partitions()
    }
