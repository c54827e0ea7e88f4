"""The coordinator of a Kafka source: finds partitions, and gives each to a subtask, once, with its first offset."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .. import CheckpointResult, Gateway, OperatorCoordinator
from ..errors import BrokerUnreachable, ConfigurationError, TopicMissing
from .kafka_cluster import KafkaCluster, Topic, TopicPartition

Connect: TypeAlias = Callable[[str, str], KafkaCluster]
"""Makes the cluster of a job's operator, in the process that calls it."""

PARTITIONS_PER_EVENT = 1_000
MISSING_S = 5.0
"""For so long a topic must be unknown to count as deleted: a broker that starts may not know it for a moment."""
NOT_SELECTED = "is not selected by topics= any more"
_ASK_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")

_log = logging.getLogger("penstock.sources.kafka")


@dataclass(frozen=True)
class Selection:
    """Which topics are read, and from where to where; plain data."""

    topics: str | tuple[str, ...]
    """A name or a regular expression, or names."""
    start: str | int
    """"earliest", "latest", or ms since 1970."""
    until: str | int | None
    discover_every: float | None
    fail_on_data_loss: bool

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics by name; None where an expression selects them."""
        if isinstance(self.topics, tuple):
            return self.topics
        return (self.topics,) if _NAME.match(self.topics) else None

    def selects(self, name: str) -> bool:
        """Whether a topic of this name is read."""
        names = self.names
        return name in names if names is not None else re.fullmatch(str(self.topics), name) is not None

    def __str__(self) -> str:
        return repr(self.topics) if isinstance(self.topics, str) else ", ".join(map(repr, self.topics))


@dataclass(frozen=True)
class Found:
    """What a look at the cluster has found."""

    topics: Mapping[str, Topic]
    """Every topic that is selected and exists."""
    new: list[tuple[TopicPartition, str, int, int | None]] = field(default_factory=list)
    """Partitions to be given out: with their topic's id, the offset to begin at, and the one to end before."""
    gone: list[str] = field(default_factory=list)
    """What became of topics that are known and are not there any more, a sentence for each."""


def look(cluster: KafkaCluster, selection: Selection, known: Mapping[str, Topic] | None) -> Found:
    """Find the topics, what is new in them and what is gone of those that are ``known`` (None: this is the first look).

    Blocks for up to a minute. Raises what :class:`KafkaCluster` does, and TopicMissing for a topic that was named and
    does not exist when it is first looked for.
    """
    names = selection.names
    if names is None:
        names = tuple(filter(selection.selects, cluster.topics(_ASK_S)))
    selected = set(names)
    names = tuple(selected | (known or {}).keys())
    topics = cluster.describe(names, _ASK_S)
    if known is None:
        if selection.names is not None and (missing := sorted(selected - topics.keys())):
            raise TopicMissing(f"{_topics(missing)} at {cluster.brokers} to be read: create it, or mend topics=")
        if not topics and selection.until is not None:
            raise TopicMissing(f"no topic at {cluster.brokers} matches {selection}, so there is nothing to read")
    elif missing := sorted(known.keys() - topics.keys()):
        end = time.monotonic() + MISSING_S
        while missing and time.monotonic() < end:
            time.sleep(MISSING_S / 10)  # on a worker thread
            topics |= cluster.describe(missing, _ASK_S)
            missing = [name for name in missing if name not in topics]
    found = Found({name: topic for name, topic in topics.items() if name in selected})
    before: dict[str, int] = {}
    for name, topic in (known or {}).items():
        now = found.topics.get(name)
        if now is not None and now.id == topic.id:
            before[name] = topic.partitions
        elif now is not None:
            found.gone.append(f"topic {name!r} was deleted and created again (its id was {topic.id} and is {now.id})")
        elif name in topics:
            found.gone.append(f"topic {name!r} {NOT_SELECTED}")
        else:
            found.gone.append(f"topic {name!r} was deleted")
    new = [
        TopicPartition(name, index)
        for name, topic in sorted(found.topics.items())
        for index in range(before.get(name, 0), topic.partitions)
    ]
    # What is found later began after the first look: its earliest record is the first that "latest" has not seen.
    start = "earliest" if known is not None and selection.start == "latest" else selection.start
    starts = cluster.offsets(new, start, _ASK_S)
    ends = {} if selection.until is None else cluster.offsets(new, selection.until, _ASK_S)
    found.new.extend((one, found.topics[one.topic].id, starts[one], ends.get(one)) for one in new)
    return found


def _topics(names: list[str]) -> str:
    return f"there is no topic {' and no topic '.join(map(repr, names))}"


class KafkaCoordinator(OperatorCoordinator):
    """Looks for partitions every so often, and sends each to one subtask, once.

    Its state says which partitions have been given out, not to whom: a subtask's state has the partition with its
    position from then on. An event is a dict with ``partitions``, a list of
    [topic, topic id, partition, start offset, end offset or None], and ``all``, whether no other will ever come.
    """

    def __init__(self, selection: Selection, connect: Connect) -> None:
        self._selection, self._connect = selection, connect
        self._cluster: KafkaCluster | None = None
        self._gateways: dict[int, Gateway] = {}
        self._looking = False
        self._known: dict[str, Topic] | None = None
        """Topics of which so many partitions have been given out; None: nothing has."""
        self._given = 0
        """Partitions given out in all: the next one goes to the subtask whose turn it is."""
        self._first: Found | None = None
        """What "latest" meant when this job was started: it stays so when the job is rolled back to its beginning."""

    @property
    def _bounded(self) -> bool:
        return self._selection.until is not None

    def start(self) -> None:
        self._cluster = self._connect(self.context.job, self.context.operator)
        if self._selection.discover_every is not None:
            self.context.call_every(self._selection.discover_every, self._look)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self._gateways[subtask] = gateway
        self._look()

    def _look(self) -> None:
        everybody = len(self._gateways) == self.context.parallelism
        if self._looking or not everybody or (self._bounded and self._known is not None):
            return
        if self._known is None and self._first is not None:
            self._give_out(self._first)
            return
        cluster, selection = self._cluster, self._selection
        known = None if self._known is None else dict(self._known)
        assert cluster is not None
        self._looking = True
        self.context.call_async(lambda: look(cluster, selection, known), self._looked)

    def _looked(self, found: Found, error: BaseException | None) -> None:
        self._looking = False
        if error is not None:
            if self._known is None or not isinstance(error, BrokerUnreachable):
                raise error  # rolls back, within the restart budget
            self.context.metrics.increment("discovery_failures")
            _log.warning("operator %s of job %s: %s", self.context.operator, self.context.job, error)
            return
        if found.gone:
            said = f"{'; '.join(found.gone)}. Records that had not been read are lost"
            if self._selection.fail_on_data_loss:
                raise TopicMissing(
                    f"operator {self.context.operator!r} of job {self.context.job!r}: {said}. With"
                    " fail_on_data_loss=False the source goes on with the topics that there are"
                )
            self.context.metrics.increment("topics_gone", len(found.gone))
            _log.warning("operator %s of job %s: %s", self.context.operator, self.context.job, said)
        if self._known is None and self._selection.start == "latest":
            self._first = found
        self._give_out(found)

    def _give_out(self, found: Found) -> None:
        parallelism, first = self.context.parallelism, self._known is None
        shares: dict[int, list[Any]] = {subtask: [] for subtask in range(parallelism)}
        for number, (one, topic_id, start, end) in enumerate(found.new, self._given):
            shares[number % parallelism].append([one.topic, topic_id, one.partition, start, end])
        for subtask, share in shares.items():
            for begin in range(0, len(share), PARTITIONS_PER_EVENT):
                self._send(subtask, share[begin : begin + PARTITIONS_PER_EVENT], False)
            if self._bounded:
                self._send(subtask, [], True)
        self._given += len(found.new)
        self._known = dict(found.topics)
        self.context.metrics.set("topics", len(self._known))
        self.context.metrics.set("partitions", sum(topic.partitions for topic in self._known.values()))
        if found.new:
            _log.info(
                "operator %s of job %s: %d new partitions of %d topics", self.context.operator, self.context.job,
                len(found.new), len(self._known),
            )  # fmt: skip
        if first and not found.topics:
            _log.warning(
                "operator %s of job %s: no topic matches %s yet", self.context.operator, self.context.job,
                self._selection,
            )  # fmt: skip

    def _send(self, subtask: int, partitions: list[Any], all_: bool) -> None:
        self._gateways[subtask].send_event({"partitions": partitions, "all": all_})

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        known = None if self._known is None else {name: list(topic) for name, topic in self._known.items()}
        result.complete({"topics": known, "given": self._given, "bounded": self._bounded})

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        # The result of a look that is under way is dropped, and every subtask will be ready anew.
        self._looking, self._gateways, self._known, self._given = False, {}, None, 0
        if state is None:
            return
        if state["topics"] is not None:
            if state["bounded"] != self._bounded:
                raise ConfigurationError(
                    f"checkpoint {checkpoint_id} is of a Kafka source {'with' if state['bounded'] else 'without'}"
                    f" until=, and until= is {self._selection.until!r} now. It cannot change between two starts of a"
                    " job: take the former one, or start the job with --fresh"
                )
            self._known = {name: Topic(*topic) for name, topic in state["topics"].items()}
        self._given = state["given"]

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
