"""A source that reads Kafka topics, each record once: positions are part of the checkpoints (``docs/kafka-source.md``).

After Flink's KafkaSource (its enumerator and its split readers) and the options of Spark's Kafka source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypedDict

from .. import OperatorCoordinator, Subtask
from ..errors import ConfigurationError
from .kafka_cluster import REFUSED, KafkaCluster
from .kafka_coordinator import KafkaCoordinator, Selection
from .kafka_subtask import Decoder, KafkaRecord, KafkaSubtask, redistribute

__all__ = ["Kafka", "KafkaOperator", "KafkaRecord"]

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")


class KafkaOperator(TypedDict):
    """Keyword arguments of ``job.operator`` that make it read a source."""

    coordinator: Callable[[], OperatorCoordinator]
    subtask: Callable[[], Subtask]
    codec: str
    state_codec: str
    rescale: Callable[[Sequence[Any], int], list[Any]]
    on_failover: str


@dataclass(frozen=True)
class Kafka:
    """Topics of a Kafka cluster, as the source of an operator.

    ::

        events = penstock.sources.Kafka("flights.*", brokers="broker:9092")
        job.operator("in", **events.read(decode=json.loads), parallelism=8, output_codec="json")

    Positions are part of the checkpoints; no consumer group is joined, and nothing is committed to Kafka. Raises
    ConfigurationError for an argument that cannot be.
    """

    topics: str | Sequence[str]
    """The name of a topic, a list of names, or a regular expression that the whole name of a topic matches (as Spark's
    ``subscribePattern``). A string of letters, digits, ``.``, ``_`` and ``-`` alone is a name. An expression matches
    neither Kafka's internal topics nor those that begin with ``penstock.``."""
    brokers: str = field(kw_only=True)
    """``host:port``, several separated by commas."""
    start: str | datetime = field(default="earliest", kw_only=True)
    """Where the first start of the job begins to read: "earliest", "latest", or a time with a time zone, then with the
    first record of that time or later. Partitions that are found while the job runs are read from their earliest record
    (or from that time)."""
    until: str | datetime | None = field(default=None, kw_only=True)
    """Where reading ends: "latest", the end of each partition when the job starts, or a time in the past. The operator
    then finishes. None: never."""
    discover_every: float | None = field(default=60.0, kw_only=True)
    """Seconds between two looks for new topics and partitions. None: only when the job starts, or fails over."""
    fail_on_data_loss: bool = field(default=True, kw_only=True)
    """Whether records that are gone fail the job: their topic was deleted or created again, or retention deleted them
    before they were read. False: the source goes on with what there is, with a warning and a metric."""
    config: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False)
    """Settings of librdkafka, for security mostly. Those that exactness depends on are refused."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topics", _checked_topics(self.topics))
        if not isinstance(self.brokers, str) or not self.brokers.strip():
            raise ConfigurationError(f"brokers= of a Kafka source must be 'host:port,...', not {self.brokers!r}")
        _check_place("start", self.start, ("earliest", "latest"))
        if self.until is not None:
            _check_place("until", self.until, ("latest",))
        every = self.discover_every
        if every is not None and (isinstance(every, bool) or not isinstance(every, int | float) or not every > 0):
            raise ConfigurationError(f"discover_every= must be seconds above 0, or None, not {every!r}")
        if not isinstance(self.fail_on_data_loss, bool):
            raise ConfigurationError(f"fail_on_data_loss= must be True or False, not {self.fail_on_data_loss!r}")
        if not isinstance(self.config, Mapping):
            raise ConfigurationError(
                f"config= must be a dict of librdkafka's settings, not a {type(self.config).__name__}"
            )
        object.__setattr__(self, "config", dict(self.config))
        for name in self.config:
            if name in REFUSED:
                raise ConfigurationError(f"config= of a Kafka source cannot set {name!r}: {REFUSED[name]}")

    def read(
        self,
        decode: Callable[[bytes], Any] | None = None,
        *,
        decode_record: Callable[[KafkaRecord], Any] | None = None,
        on_error: str = "fail",
    ) -> KafkaOperator:
        """Return the keyword arguments of ``job.operator`` for an operator that reads this source.

        ``decode`` makes of a record's value (bytes) what the operator emits; left out, the value itself is emitted.
        ``decode_record`` is given the whole :class:`KafkaRecord` instead. ``on_error``: what becomes of a record for
        which they raise, or that has no value where ``decode`` needs one: "fail" the attempt, with an error that names
        topic, partition and offset, or "skip" it, counted in the metric ``records_skipped``.
        """
        if decode is not None and decode_record is not None:
            raise ConfigurationError("give decode= (of the value) or decode_record= (of the whole record), not both")
        for name, given in (("decode", decode), ("decode_record", decode_record)):
            if given is not None and not callable(given):
                raise ConfigurationError(f"{name}= must be a function, not {given!r}")
        if on_error not in ("fail", "skip"):
            raise ConfigurationError(f"on_error= must be 'fail' or 'skip', not {on_error!r}")
        selection = Selection(
            self.topics if isinstance(self.topics, str) else tuple(self.topics),
            _milliseconds(self.start),
            None if self.until is None else _milliseconds(self.until),
            self.discover_every,
            self.fail_on_data_loss,
        )
        return KafkaOperator(
            coordinator=partial(KafkaCoordinator, selection, self._connect),
            subtask=partial(KafkaSubtask, selection, self._connect, Decoder(decode, decode_record, on_error == "skip")),
            codec="json",
            state_codec="json",
            rescale=redistribute,
            on_failover="replay",
        )

    def _connect(self, job: str, operator: str) -> KafkaCluster:
        """The cluster, for one process of an operator. No client is made yet."""
        return KafkaCluster(self.brokers, self.config, f"penstock.{job}.{operator}")


def _checked_topics(topics: object) -> str | tuple[str, ...]:
    if isinstance(topics, str):
        if "," in topics and "{" not in topics:
            raise ConfigurationError(f"no topic can be called {topics!r}, and none matches it: give a list of names")
        try:
            re.compile(topics)
        except re.error as error:
            raise ConfigurationError(
                f"topics= is {topics!r}, neither the name of a topic nor a regular expression: {error}. An expression"
                " matches the whole name: 'flights.*', not the glob '*flights'"
            ) from None
        if not topics:
            raise ConfigurationError("topics= is empty; give a name, a list of names, or a regular expression")
        return topics
    if not isinstance(topics, Sequence) or isinstance(topics, bytes) or not topics:
        raise ConfigurationError(f"topics= must be a name, a list of names, or a regular expression, not {topics!r}")
    for name in topics:
        if not isinstance(name, str) or not _TOPIC_NAME.match(name):
            raise ConfigurationError(
                f"topics= is a list, and {name!r} in it is no topic's name; a regular expression is given as one string"
            )
    return tuple(dict.fromkeys(topics))


def _check_place(what: str, place: object, words: tuple[str, ...]) -> None:
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise ConfigurationError(f"{what}= is {place}, which has no time zone; give datetime(..., tzinfo=UTC)")
        if place > datetime.now(UTC):
            raise ConfigurationError(f"{what}= is {place}, which is not over yet: Kafka knows no offset of it")
    elif place not in words:
        raise ConfigurationError(
            f"{what}= must be {' or '.join(map(repr, words))} or a datetime with a time zone, not {place!r}"
        )


def _milliseconds(place: str | datetime) -> str | int:
    return place if isinstance(place, str) else round(place.timestamp() * 1000)
