"""What a Kafka source asks of a cluster: which topics there are, where their partitions begin and end, and records.

This is the only file of the source that knows confluent-kafka, and it imports it when a client is made.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import tenacity

from ..errors import BrokerUnreachable, ConfigurationError, NotAuthorized, PenstockError, TransportError

T = TypeVar("T")

REFUSED = {
    "bootstrap.servers": "give brokers= of the source",
    "group.id": "positions are part of the checkpoints, and no consumer group is joined",
    "group.instance.id": "no consumer group is joined",
    "group.protocol": "no consumer group is joined",
    "group.remote.assignor": "no consumer group is joined",
    "partition.assignment.strategy": "no consumer group is joined",
    "enable.auto.commit": "positions are part of the checkpoints, and nothing is committed to Kafka",
    "auto.commit.enable": "positions are part of the checkpoints, and nothing is committed to Kafka",
    "auto.commit.interval.ms": "positions are part of the checkpoints, and nothing is committed to Kafka",
    "enable.auto.offset.store": "positions are part of the checkpoints, and nothing is committed to Kafka",
    "auto.offset.reset": "an offset that is gone is an error; give start= and fail_on_data_loss= of the source",
    "isolation.level": "it is always read_committed",
    "enable.partition.eof": "the source needs it to find the end of a partition behind control records",
    "allow.auto.create.topics": "a source creates no topics",
    "error_cb": "the source logs these errors itself",
    "on_commit": "nothing is committed to Kafka",
    "logger": "librdkafka's lines go to the logger penstock.sources.kafka.librdkafka",
}
"""librdkafka settings that a user may not give, and why."""

_SECRET_NAME = re.compile(r"password|secret|token|\bkey\b|\.pem|jaas|oauthbearer\.config")
_ATTEMPT_S = 3.0
_OUR_TOPICS = ("__", "penstock.")

_SILENT_S = 10.0
"""A client for questions that has not answered for so long is replaced: one may lose every address that it knows."""
_CONSUMER_DEFAULTS = {
    # Bounds what is fetched ahead; librdkafka's own default is 64 MB.
    "queued.max.messages.kbytes": 16_384,
    "fetch.queue.backoff.ms": 10,
    # For so long a fetch of the other partitions may hold back one that is added.
    "fetch.wait.max.ms": 100,
}

_log = logging.getLogger("penstock.sources.kafka")
librdkafka_log = logging.getLogger("penstock.sources.kafka.librdkafka")


class TopicPartition(NamedTuple):
    """A partition, by its topic's name and its index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}"


class Topic(NamedTuple):
    """A topic as the cluster describes it; a topic that is created again has another id."""

    id: str
    partitions: int


class _LibrdkafkaLog:
    """librdkafka's own lines, at DEBUG: while a broker is away they are the noise of reconnecting."""

    def log(self, _level: int, text: str, *arguments: object) -> None:
        librdkafka_log.debug(text, *arguments)


class KafkaCluster:
    """The brokers of one source, with clients that are made when first needed. Belongs to one process.

    ``describe`` and ``offsets`` ask again until their deadline where asking again may help. They raise
    BrokerUnreachable when nobody answered in time, NotAuthorized where a right is lacking, ConfigurationError for a
    setting that librdkafka refuses, and TransportError for anything else.
    """

    def __init__(self, brokers: str, config: Mapping[str, Any], group: str) -> None:
        self.brokers, self._config, self.group = brokers, config, group
        self._admin: Any = None
        self._silent_since = time.monotonic()
        self._heard = ""
        self.complained = False
        """Whether a client has said something outside of any call since this was set to False last: a topic that has
        vanished is said that way alone."""

    # ---- topics and offsets

    def topics(self, timeout_s: float) -> list[str]:
        """The names of all topics that this user may see, without Kafka's internal ones and Penstock's own."""
        metadata = self._ask("listing topics", timeout_s, lambda left: self._client().list_topics(timeout=left))
        return sorted(name for name in metadata.topics if not name.startswith(_OUR_TOPICS))

    def describe(self, names: Iterable[str], timeout_s: float) -> dict[str, Topic]:
        """Those of the topics that exist."""
        wanted = sorted(set(names))
        if not wanted:
            return {}

        def ask(left: float) -> dict[str, Topic]:
            from confluent_kafka import KafkaError, KafkaException, TopicCollection

            found = {}
            asked = self._client().describe_topics(TopicCollection(wanted), request_timeout=left)
            for name, future in asked.items():
                try:
                    topic = future.result(left + 1.0)
                    found[name] = Topic(str(topic.topic_id), len(topic.partitions))
                except KafkaException as failure:
                    if failure.args[0].code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                        raise
            return found

        return self._ask(f"describing topics {', '.join(wanted)}", timeout_s, ask)

    def offsets(
        self, partitions: Iterable[TopicPartition], at: str | int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """The offset at which each partition begins ("earliest"), or ends for a reader of committed records ("latest"),
        or of its first record of that time (ms since 1970) or later; where there is none, its end."""
        wanted = list(partitions)
        if not wanted:
            return {}

        def ask(left: float) -> dict[TopicPartition, int]:
            from confluent_kafka import OFFSET_INVALID, IsolationLevel
            from confluent_kafka import TopicPartition as Asked
            from confluent_kafka.admin._listoffsets import OffsetSpec

            named = {"earliest": OffsetSpec._earliest, "latest": OffsetSpec._latest}
            spec = OffsetSpec.for_timestamp(at) if isinstance(at, int) else named[at]
            answers = self._client().list_offsets(
                {Asked(*partition): spec for partition in wanted},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=left,
            )
            found = {
                TopicPartition(asked.topic, asked.partition): int(future.result(left + 1.0).offset)
                for asked, future in answers.items()
            }
            if not isinstance(at, int) and OFFSET_INVALID in found.values():
                raise FutureTimeout  # a partition without a leader: nobody knows yet
            return found

        found = self._ask(f"asking for the {at} offsets", timeout_s, ask)
        later = [partition for partition, offset in found.items() if offset < 0]
        return {**found, **self.offsets(later, "latest", timeout_s)} if later else found

    def consumer(self) -> Consumer:
        """A consumer without partitions."""
        return Consumer(self)

    def close(self) -> None:
        self._admin = None

    # ---- clients

    def _client(self) -> Any:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = self.make(AdminClient)
        return self._admin

    def make(self, kind: Callable[..., Any], defaults: Mapping[str, Any] = MappingProxyType({}), **ours: Any) -> Any:
        """A client with some defaults, the user's settings, and ours (``a_b`` for a.b)."""
        from confluent_kafka import KafkaException

        settings: dict[str, Any] = {
            # Reading goes on as soon as the broker is back, not after as long as it was away.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "log.connection.close": False,
            **defaults,
            **self._config,
            "bootstrap.servers": self.brokers,
            "allow.auto.create.topics": False,
            "error_cb": self._on_error,
            **{name.replace("_", "."): value for name, value in ours.items()},
        }
        try:
            return kind(settings, logger=_LibrdkafkaLog())
        except (KafkaException, ValueError, TypeError) as error:
            reason = self.scrubbed(error.args[0].str() if isinstance(error, KafkaException) else str(error))
        # Raised outside the handler, so that the text with the value is no part of the traceback.
        raise ConfigurationError(f"the config of the Kafka source on {self.brokers} is refused: {reason}")

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        self.complained = True
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._heard:  # which comes behind the reason
            self._heard = self.scrubbed(f"{error.str()} ({error.name()})")
        _log.debug("Kafka source on %s: %s", self.brokers, self._heard)

    def scrubbed(self, text: str) -> str:
        """``text`` without the value of any setting that may be a secret."""
        for name, value in self._config.items():
            if value and _SECRET_NAME.search(name):
                text = text.replace(str(value), "***")
        return text

    # ---- questions

    def _ask(self, what: str, timeout_s: float, ask: Callable[[float], T]) -> T:
        from confluent_kafka import KafkaException

        end = time.monotonic() + timeout_s
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
            stop=lambda _state: time.monotonic() >= end,
            reraise=True,
        )
        try:
            # Never 0: librdkafka takes that as "no deadline".
            answer = attempts(lambda: ask(max(min(end - time.monotonic(), _ATTEMPT_S), 0.05)))
            self._silent_since = time.monotonic()
            return answer
        except KafkaException as failure:
            raise self.error(what, failure.args[0]) from None
        except FutureTimeout:
            raise self._unreachable(what) from None

    def error(self, what: str, error: Any) -> PenstockError:
        """The error of ours that a KafkaError of ``what`` is."""
        from confluent_kafka import KafkaError, KafkaException

        said = self.scrubbed(f"{error.str()} ({error.name()})")
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return NotAuthorized(
                f"{what} at {self.brokers}: {said}. The user of the source needs READ and DESCRIBE on its topics"
            )
        if _may_pass(KafkaException(error)):
            return self._unreachable(what, said)
        return TransportError(f"{what} at {self.brokers} failed: {said}")

    def _unreachable(self, what: str, said: str = "") -> BrokerUnreachable:
        if self._admin is not None:
            self._admin.poll(0)  # serves the error callback, where a refused connection says why
        if time.monotonic() - self._silent_since > _SILENT_S:
            self._admin, self._silent_since = None, time.monotonic()
        heard = self._heard or said
        return BrokerUnreachable(
            f"{what}: no Kafka broker at {self.brokers} answered in time{f'; last heard: {heard}' if heard else ''}."
            " Check brokers= and config= of the source, and that a broker runs there"
        )


def _may_pass(failure: BaseException) -> bool:
    """Whether asking again may help: the broker is away, starting, or electing."""
    from confluent_kafka import KafkaError, KafkaException

    if not isinstance(failure, KafkaException):
        return isinstance(failure, FutureTimeout)
    error = failure.args[0]
    return bool(error.retriable()) or error.code() in {
        *(KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._ALL_BROKERS_DOWN),
        *(KafkaError._RESOLVE, KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.REQUEST_TIMED_OUT),
        *(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._PARTIAL),
        *(KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH, KafkaError._NOENT, KafkaError._DESTROY),
        KafkaError._DESTROY_BROKER,
    }


class Fault(NamedTuple):
    """What a message says that holds no record."""

    kind: str
    """"end": the partition's end has been met at ``offset``. "lost": its position is gone. "unknown": the topic may
    have vanished. "failed": ``error`` must be raised. "passing": waiting cures it."""
    partition: TopicPartition
    offset: int
    error: PenstockError | None = None
    text: str = ""
    """Of "lost": "truncated" where the log was cut below the position and has grown again, else "out of range"."""


class Consumer:
    """A consumer that is told each partition and offset, and belongs to no group."""

    def __init__(self, cluster: KafkaCluster) -> None:
        from confluent_kafka import Consumer as Client

        self._cluster = cluster
        self._client = cluster.make(
            Client,
            _CONSUMER_DEFAULTS,
            group_id=cluster.group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="error",
            enable_partition_eof=True,
        )

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """Adds partitions, each from an offset on."""
        self._client.incremental_assign([_with_offset(*item) for item in positions.items()])

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Takes partitions away. What was fetched of them may still come."""
        self._client.incremental_unassign([_with_offset(partition, 0) for partition in partitions])

    def fetch(self, messages_max: int) -> list[Any]:
        """What is there by now, as confluent-kafka's messages."""
        first = self._client.poll(0)  # it serves the callbacks, too
        return [] if first is None else [first, *self._client.consume(messages_max - 1, 0)]

    def fault(self, message: Any) -> Fault:
        """What a message says whose ``error()`` is not None."""
        from confluent_kafka import KafkaError

        error, partition = message.error(), TopicPartition(message.topic() or "", message.partition() or 0)
        make = partial(Fault, partition=partition, offset=message.offset() or 0)
        match error.code():
            case KafkaError._PARTITION_EOF:
                return make("end")
            case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE | KafkaError._NO_OFFSET:
                return make("lost", text="out of range")
            case KafkaError._LOG_TRUNCATION:
                return make("lost", text="truncated")
            case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC | KafkaError._UNKNOWN_PARTITION:
                return make("unknown")
            case KafkaError.UNKNOWN_TOPIC_ID:
                return make("unknown")
            case (
                KafkaError.TOPIC_AUTHORIZATION_FAILED
                | KafkaError._BAD_MSG
                | KafkaError._BAD_COMPRESSION
                | KafkaError.INVALID_MSG
                | KafkaError._FATAL
            ):
                return make("failed", error=self._cluster.error(f"reading {partition}", error))
        if error.fatal():
            return make("failed", error=self._cluster.error(f"reading {partition}", error))
        _log.debug("Kafka source on %s, %s: %s", self._cluster.brokers, partition, error.str())
        return make("passing")

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The end of a partition as the last fetch told it; None before the first."""
        _, high = self._client.get_watermark_offsets(_with_offset(partition, 0), cached=True)
        return None if high < 0 else int(high)

    def close(self) -> None:
        self._client.close()


def _with_offset(partition: TopicPartition, offset: int) -> Any:
    from confluent_kafka import TopicPartition as Assigned

    return Assigned(*partition, offset)
