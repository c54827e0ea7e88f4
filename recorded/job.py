"""What there is of a job on a broker: its operators, their partitions and its checkpoints, from its topics alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from ..checkpoint_log.history import Checkpoint, History
from ..client.job_client import JobClient
from ..schemas.checkpoints import SchemaUsed
from ..schemas.errors import JobRefused
from ..schemas.ids import SubtaskId
from ..schemas.topics import DEFAULT_PREFIX
from ..transport.ports import Partition, Transport

ASK_TIMEOUT_S = 30.0


class RecordedJob:
    """One job on one broker. Raises JobRefused, with what there is, where something that is asked for is not there."""

    def __init__(self, transport: Transport, name: str, prefix: str = DEFAULT_PREFIX) -> None:
        self.transport, self.name = transport, name
        self.client = JobClient(transport, name, prefix)
        self.topics = self.client.topics
        self.client.require()

    @cached_property
    def operators(self) -> dict[str, int]:
        """Each operator's name, and how many partitions its events have."""
        begin, end = self.topics.root, ".events"
        named = {
            topic[len(begin) : -len(end)]: topic
            for topic in self.transport.list_topics(begin, ASK_TIMEOUT_S)
            if topic.endswith(end) and "." not in topic[len(begin) : -len(end)]
        }
        described = self.transport.describe_topics(named.values(), ASK_TIMEOUT_S)
        return {name: described[topic].partitions for name, topic in named.items() if topic in described}

    @cached_property
    def history(self) -> History:
        """Its checkpoint log, as it was when this was first asked for."""
        return self.client.history()

    def schemas(self, operator: str) -> list[SchemaUsed]:
        """The Avro schemas that an operator's events, states and output were written under."""
        return [used for used in self.history.schemas.values() if used.operator == operator]

    @property
    def acks(self) -> Partition:
        return Partition(self.topics.acks, 0)

    def events(self, subtask: SubtaskId) -> Partition:
        return Partition(self.topics.events(subtask.operator), subtask.index)

    def subtasks(self, operator: str, index: int | None = None) -> list[SubtaskId]:
        """Those of an operator, or the one with this index."""
        if operator not in self.operators:
            known = ", ".join(sorted(self.operators)) or "none"
            raise JobRefused(f"job {self.name} has no operator {operator!r} on this broker; there is: {known}")
        count = self.operators[operator]
        if index is not None and not 0 <= index < count:
            raise JobRefused(
                f"operator {operator} of job {self.name} has no subtask {index}: its events have {count} partitions,"
                f" for subtasks 0 to {count - 1}"
            )
        return [SubtaskId(operator, i) for i in (range(count) if index is None else [index])]

    def checkpoint(self, checkpoint_id: int, *, savepoint: bool = False) -> Checkpoint:
        """A completed one that is kept; with ``savepoint`` it must be one."""
        return kept_checkpoint(self.name, self.history, checkpoint_id, savepoint=savepoint)


def kept_checkpoint(job: str, history: History, checkpoint_id: int, *, savepoint: bool = False) -> Checkpoint:
    """The completed checkpoint of that id. JobRefused, with those that are kept, where it is none of them."""
    found = history.checkpoints.get(checkpoint_id)
    savepoints = [n for n, c in history.checkpoints.items() if c.header.savepoint]
    if found is None:
        raise JobRefused(
            f"job {job} has no {'savepoint' if savepoint else 'checkpoint'} {checkpoint_id} any more; it has:"
            f" {_listed(savepoints if savepoint else history.checkpoints)}"
        )
    if savepoint and not found.header.savepoint:
        raise JobRefused(
            f"{checkpoint_id} is a plain checkpoint of job {job}, which newer ones replace, and no savepoint; its"
            f" savepoints are: {_listed(savepoints)}. Name it as a checkpoint (--from-checkpoint {checkpoint_id}), or"
            f" take a savepoint (penstock savepoint {job})"
        )
    return found


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"
