"""Topics and offsets over Kafka: everything that is asked once and answered, as opposed to streamed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import tenacity
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from ..schemas.access import Operation, topic_grant
from ..schemas.errors import BrokerUnreachable, ConfigurationError, PositionUnavailable, TopicMissing, TransportError
from ..schemas.topics import TopicSpec
from .kafka_client import (
    NO_ANSWER,
    NOT_AUTHORIZED,
    TOPIC_UNKNOWN,
    AdminHandle,
    ClientEvents,
    KafkaConfig,
    OwnProcess,
    client_settings,
    make_client,
)
from .kafka_leaders import Leaders
from .kafka_retry import LEADER_MOVED, may_pass
from .kafka_topics import copies_of, info_of, operations_of, without_optional
from .ports import Inspection, OffsetRange, Partition, TopicFacts, TopicInfo, checked_positions

T = TypeVar("T")
K = TypeVar("K")

_DESCRIBE_AGAIN_S = 0.02
_ATTEMPT_S = 1.0
"""Seconds that the first attempts at a question wait; later ones wait half as long as the question has been open."""
_SILENT_S = 3.0
"""A client that was asked in vain is replaced if it has not answered for this long. Its successor has twice as long, up
to the maximum: where connecting takes long, nobody's short deadlines shall end each client before it is connected."""
_SILENT_MAX_S = 60.0

_SETTING_REFUSED = frozenset({KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION})
"""Errors of a topic with a setting that its broker does not allow, as managed ones do with some."""


class KafkaAdmin:
    """The admin half of a transport. Thread-safe; connects when first used.

    A question is asked again before its deadline is over, and a client that stays silent is replaced. A broker that
    was frozen is fenced for a moment, and one that is alone then names no broker at all in its metadata. librdkafka
    believes it and forgets the address that it is connected to. If it then bootstraps again, a question looks for its
    broker only once and, if that came too early, waits on, well connected, for all the time it is given. And it may
    fail to bootstrap again, for ever: the answer that made it necessary also ends it.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._events = ClientEvents(config)
        self._leaders = Leaders()
        self._lock = threading.Lock()
        self._made: tuple[AdminHandle, OwnProcess] | None = None
        self._generation = 0  # of _made: how many clients were replaced before it
        self._silent_since = 0.0  # when _made was made, or last answered
        self._silent_max_s = _SILENT_S  # for how long _made may be silent
        # Frees the client that was replaced last: that may wait for a name server, and no question shall.
        self._freeing: threading.Thread | None = None

    @property
    def is_made(self) -> bool:
        """Whether it has been asked before, and so is connected most likely."""
        return self._made is not None

    def check(self, timeout_s: float) -> str:
        metadata = self._cluster(timeout_s)
        brokers = ", ".join(f"{b.host}:{b.port}" for b in metadata.brokers.values())
        return f"Kafka cluster {metadata.cluster_id} with {len(metadata.brokers)} broker(s): {brokers}"

    def addresses(self, timeout_s: float) -> list[tuple[str, int]]:
        """Host and port of every broker, as they tell clients."""
        return [(str(broker.host), broker.port) for broker in self._cluster(timeout_s).brokers.values()]

    def _cluster(self, timeout_s: float) -> Any:
        ask = "asking for the cluster"
        return self._call(ask, timeout_s, lambda left: self._client().list_topics(timeout=left))

    def create_topics(self, specs: Iterable[TopicSpec], timeout_s: float) -> None:
        wanted = {spec.name: spec for spec in specs}
        end = time.monotonic() + timeout_s
        existing = {
            name: info_of(name, there) for name, there in self._described(wanted, timeout_s, refuses=True).items()
        }
        new = [spec for spec in wanted.values() if spec.name not in existing]
        if new:
            refused = self._create(new, end, fine=_SETTING_REFUSED)
            if refused:  # a job on topics without them runs as well
                self._create([without_optional(wanted[name]) for name in refused], end)
            existing = self._described_when(lambda seen: len(seen) == len(wanted), wanted, end, "creating topics")
        grown = [spec for spec in wanted.values() if existing[spec.name].partitions < spec.partitions]
        self._grow(grown, end)
        ready = [Partition(spec.name, index) for spec in (*new, *grown) for index in range(spec.partitions)]
        if ready:
            self._wait_served(ready, end)

    def _wait_served(self, partitions: list[Partition], end: float) -> None:
        """A leader is named before it serves, and before it knows: a producer that it refuses may wait for ever."""
        while True:
            try:
                self._list_offsets(dict.fromkeys(partitions, OffsetSpec._latest), max(end - time.monotonic(), 0.05))
                return
            except TopicMissing:
                if time.monotonic() >= end:
                    raise
                time.sleep(_DESCRIBE_AGAIN_S)

    def _create(self, specs: list[TopicSpec], end: float, fine: frozenset[int] = frozenset()) -> list[str]:
        """Topics that are there already stay as they are. Returns those that were refused for an error in ``fine``."""
        new = [
            NewTopic(
                spec.name,
                num_partitions=spec.partitions,
                replication_factor=-1 if spec.replication_factor is None else spec.replication_factor,
                config=dict(spec.settings),
            )
            for spec in specs
        ]
        errors: dict[str, KafkaError] = {}
        self._each(
            "creating topics",
            end - time.monotonic(),
            lambda left: self._client().create_topics(new, operation_timeout=left, request_timeout=left),
            fine=fine | {KafkaError.TOPIC_ALREADY_EXISTS},
            needs=Operation.CREATE,
            errors=errors,
        )
        return [name for name, error in errors.items() if error.code() in fine]

    def _grow(self, specs: list[TopicSpec], end: float) -> None:
        """Adds partitions until each topic has as many as its spec says. Another that does the same does no harm."""
        if not specs:
            return
        new = [NewPartitions(spec.name, spec.partitions) for spec in specs]
        self._each(
            "adding partitions",
            end - time.monotonic(),
            lambda left: self._client().create_partitions(new, operation_timeout=left, request_timeout=left),
            fine={KafkaError.INVALID_PARTITIONS},  # somebody else has added them meanwhile
            needs=Operation.ALTER,
        )
        wanted = {spec.name: spec.partitions for spec in specs}
        self._described_when(
            lambda seen: all(name in seen and seen[name].partitions >= n for name, n in wanted.items()),
            wanted,
            end,
            "adding partitions",
        )

    def describe_topics(self, names: Iterable[str], timeout_s: float) -> dict[str, TopicInfo]:
        return {name: info_of(name, there) for name, there in self._described(names, timeout_s).items()}

    def inspect(self, names: Iterable[str], timeout_s: float) -> Inspection:
        names = list(names)
        end = time.monotonic() + timeout_s
        hidden: set[str] = set()
        found = self._described(names, timeout_s, hidden=hidden, include_authorized_operations=True)
        settings = self._settings(list(found), end - time.monotonic())
        cluster = self._call(
            "asking for the cluster",
            max(end - time.monotonic(), 0.05),
            lambda left: self._client().describe_cluster(request_timeout=left).result(left + 1.0),
        )  # without a topic's name: a broker that creates topics by itself would create that one
        topics = {
            name: TopicFacts(info_of(name, there), operations_of(there), settings.get(name), copies_of(there))
            for name, there in found.items()
        }
        brokers = frozenset(int(node.id) for node in cluster.nodes)
        return Inspection(
            self._config.bootstrap, str(cluster.cluster_id), self._config.user, topics, frozenset(hidden), brokers
        )

    def _described(
        self,
        names: Iterable[str],
        timeout_s: float,
        *,
        refuses: bool = False,
        hidden: set[str] | None = None,
        **asked: bool,
    ) -> dict[str, Any]:
        """Descriptions of those that exist and may be seen. Others are noted in ``hidden``, or refused."""
        names = list(names)
        if not names:
            return {}
        errors: dict[str, KafkaError] = {}
        found = self._each(
            "describing topics",
            timeout_s,
            lambda left: self._client().describe_topics(TopicCollection(names), request_timeout=left, **asked),
            fine=TOPIC_UNKNOWN if refuses else TOPIC_UNKNOWN | {KafkaError.TOPIC_AUTHORIZATION_FAILED},
            needs=Operation.DESCRIBE,
            errors=errors,
        )
        if hidden is not None:
            hidden |= {n for n, e in errors.items() if e.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED}
        return found

    def _settings(self, names: list[str], timeout_s: float) -> dict[str, dict[str, str]]:
        """Settings of those topics whose settings this user may know."""
        if not names:
            return {}
        found = self._each(
            "asking for topics' settings",
            timeout_s,
            lambda left: self._client().describe_configs(
                [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names], request_timeout=left
            ),
            fine=TOPIC_UNKNOWN | {KafkaError.TOPIC_AUTHORIZATION_FAILED},
        )
        return {
            resource.name: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
            for resource, entries in found.items()
        }

    def list_topics(self, prefix: str, timeout_s: float) -> list[str]:
        metadata = self._call("listing topics", timeout_s, lambda left: self._client().list_topics(timeout=left))
        return sorted(name for name, topic in metadata.topics.items() if name.startswith(prefix) and not topic.error)

    def delete_topics(self, names: Iterable[str], timeout_s: float) -> None:
        names = list(names)
        if not names:
            return
        end = time.monotonic() + timeout_s
        self._each(
            "deleting topics",
            timeout_s,
            lambda left: self._client().delete_topics(names, operation_timeout=left, request_timeout=left),
            fine={KafkaError.UNKNOWN_TOPIC_OR_PART},
            needs=Operation.DELETE,
        )
        self._described_when(lambda seen: not seen, names, end, "deleting topics")

    def offsets(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, OffsetRange]:
        wanted = list(partitions)
        if not wanted:
            return {}
        end = time.monotonic() + timeout_s
        self.require(wanted, timeout_s)
        begins = self._list_offsets(dict.fromkeys(wanted, OffsetSpec._earliest), end - time.monotonic())
        ends = self._list_offsets(dict.fromkeys(wanted, OffsetSpec._latest), end - time.monotonic())
        return {partition: OffsetRange(begins[partition], ends[partition]) for partition in wanted}

    def offsets_at(self, times_ms: Mapping[Partition, int], timeout_s: float) -> dict[Partition, int]:
        if not times_ms:
            return {}
        end = time.monotonic() + timeout_s
        self.require(times_ms, timeout_s)
        specs = {partition: OffsetSpec.for_timestamp(max(time_ms, 0)) for partition, time_ms in times_ms.items()}
        found = self._list_offsets(specs, end - time.monotonic())
        later = [partition for partition, offset in found.items() if offset < 0]  # everything there is older
        ends = self._list_offsets(dict.fromkeys(later, OffsetSpec._latest), end - time.monotonic()) if later else {}
        return {**found, **ends}

    def _list_offsets(self, specs: Mapping[Partition, Any], timeout_s: float) -> dict[Partition, int]:
        asked = {TopicPartition(*partition): spec for partition, spec in specs.items()}
        found = self._each(
            "asking for offsets",
            timeout_s,
            lambda left: self._client().list_offsets(
                asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=left
            ),
            void=lambda result: result.offset == OFFSET_INVALID,
        )
        return {Partition(tp.topic, tp.partition): result.offset for tp, result in found.items()}

    def members(self, group: str, timeout_s: float) -> int:
        """Count the consumers in a group; none in one that does not exist, or that this user may not see."""
        found = self._call("describing a group", timeout_s, lambda left: self._client().groups(group, left))
        return sum(len(there.members) for there in found)

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float) -> None:
        if not positions:
            return
        end = time.monotonic() + timeout_s
        self.require(positions, timeout_s)
        checked_positions(positions)
        below = [TopicPartition(*partition, offset) for partition, offset in positions.items()]
        try:
            self._each(
                "truncating",
                end - time.monotonic(),
                lambda left: self._client().delete_records(below, operation_timeout=left, request_timeout=left),
                needs=Operation.DELETE,
            )
        except _OutOfRange as error:
            raise PositionUnavailable(f"cannot truncate above the end of the log: {error}", error.partition) from None

    def close(self) -> None:
        with self._lock:
            self._made = None

    def require(self, partitions: Iterable[Partition], timeout_s: float) -> None:
        """Raises :class:`TopicMissing` for the first partition that does not exist, NotAuthorized where it is hidden.

        Asked for explicitly because a consumer that ACLs keep from a topic waits for it for ever, without an error.
        """
        partitions = list(partitions)
        hidden: set[str] = set()
        described = self._described({partition.topic for partition in partitions}, timeout_s, hidden=hidden)
        known = {name: info_of(name, there) for name, there in described.items()}
        for partition in partitions:
            if partition.topic in hidden:
                raise self._config.denied(f"looking at {partition.topic}", topic_grant(partition.topic, Operation.READ))
            if partition.topic not in known:
                raise missing_topic(self._config, partition.topic)
            if partition.index >= known[partition.topic].partitions:
                raise TopicMissing(
                    f"partition {partition} does not exist at {self._config.bootstrap}: the topic has"
                    f" {known[partition.topic].partitions} partitions"
                )

    # How a question is asked: until it is answered or its deadline is over.

    def _client(self) -> AdminHandle:
        with self._lock:
            if self._made is None:
                settings = client_settings(self._config, self._events)
                self._made = make_client(AdminHandle, self._config, settings), OwnProcess()
                self._silent_since = time.monotonic()
            client, process = self._made
        process.check("this KafkaTransport")
        return client

    def _call(self, what: str, timeout_s: float, ask: Callable[[float], T]) -> T:
        """The answer to ``ask(seconds it has)``; what a broker's restart explains is asked again until the deadline."""
        began = time.monotonic()
        end = began + timeout_s
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
            stop=lambda _state: time.monotonic() >= end,
            reraise=True,
        )
        try:
            return attempts(lambda: self._attempt(ask, began, end))
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
        except FutureTimeout:
            raise self._config.unreachable(what, timeout_s, self._last_heard()) from None
        if error.code() in TOPIC_UNKNOWN:
            raise TopicMissing(f"{what} failed at {self._config.bootstrap}: {self._config.explained(error)}")
        raise self._config.error(what, error, timeout_s, self._last_heard())

    def _attempt(self, ask: Callable[[float], T], began: float, end: float) -> T:
        """One attempt at a question that is open since ``began``; its client is replaced if it is silent."""
        now = time.monotonic()
        generation = self._generation
        try:
            # Never 0: librdkafka takes that, and anything below, as "no deadline".
            answer = ask(max(min(end - now, max(_ATTEMPT_S, (now - began) / 2)), 0.05))
        except (KafkaException, FutureTimeout) as failure:
            if isinstance(failure, FutureTimeout) or failure.args[0].code() in NO_ANSWER:
                failure.__traceback__ = None  # its frames hold the client
                self._replace(generation)
            raise
        self._silent_since = time.monotonic()
        self._silent_max_s = _SILENT_S
        return answer

    def _replace(self, generation: int) -> None:
        """Has the next question asked by a new client. Questions that are with the old one are asked again too."""
        self._last_heard()  # what it has to say is why
        with self._lock:
            silent = time.monotonic() - self._silent_since >= self._silent_max_s
            freeing = self._freeing is not None and self._freeing.is_alive()
            if generation != self._generation or not silent or freeing:
                return
            self._generation += 1
            self._silent_max_s = min(2 * self._silent_max_s, _SILENT_MAX_S)
            old = [self._made]
            self._made = None
            self._freeing = threading.Thread(target=old.clear, name="penstock-kafka-admin", daemon=True)
            self._freeing.start()

    def _each(
        self,
        what: str,
        timeout_s: float,
        ask: Callable[[float], Mapping[K, Future[T]]],
        fine: Iterable[int] = (),
        needs: Operation | None = None,
        errors: dict[K, KafkaError] | None = None,
        void: Callable[[T], bool] = lambda answer: False,
    ) -> dict[K, T]:
        """The answers to a question about many things, without those whose error is ``fine`` (noted in ``errors``).

        ``needs`` is the right on a topic that the question takes. An answer that is ``void`` says nothing.
        """
        fine, asked = frozenset(fine), set[str]()

        def once(left: float) -> dict[K, T]:
            end = time.monotonic() + left + 1.0  # the client's own deadline comes first, and says more
            answers: dict[K, T] = {}
            for subject, future in ask(left).items():
                asked.add(subject.topic if isinstance(subject, TopicPartition) else str(subject))
                try:
                    answers[subject] = answer = future.result(max(end - time.monotonic(), 0.001))
                    if void(answer):
                        raise KafkaException(KafkaError(KafkaError._PARTIAL))
                except KafkaException as failure:
                    error: KafkaError = failure.args[0]
                    if error.code() in fine:
                        if errors is not None:
                            errors[subject] = error
                        continue
                    if error.code() in LEADER_MOVED or error.code() == KafkaError._PARTIAL:
                        # The client does not look again by itself for the leader that it remembers.
                        self._leaders.see(self._client().list_topics(timeout=max(end - time.monotonic(), 0.05)))
                    if may_pass(failure):
                        raise
                    self._refuse(what, subject, error, timeout_s, needs)
            return answers

        try:
            return self._call(what, timeout_s, once)
        except TransportError as error:
            if (why := self._leaders.told(asked)) and not isinstance(error, TopicMissing):
                raise BrokerUnreachable(f"{what} at {self._config.bootstrap}: {why}") from None
            raise

    def _refuse(self, what: str, subject: object, error: KafkaError, timeout_s: float, needs: Operation | None) -> None:
        partition = Partition(subject.topic, subject.partition) if isinstance(subject, TopicPartition) else None
        name = str(subject if partition is None else partition)
        if error.code() in NOT_AUTHORIZED and needs is not None:
            topic = name if partition is None else partition.topic
            raise self._config.denied(f"{what} ({name})", topic_grant(topic, needs), self._config.explained(error))
        if error.code() in TOPIC_UNKNOWN:
            raise missing_topic(self._config, name)
        if error.code() == KafkaError.INVALID_REPLICATION_FACTOR:
            raise ConfigurationError(
                f"{what} ({name}) at {self._config.bootstrap}: {self._config.explained(error)}. Ask for fewer copies"
                " (replication_factor, --replication-factor), or start the brokers that are missing"
            )
        if error.code() == KafkaError.OFFSET_OUT_OF_RANGE:
            wanted = subject.offset if isinstance(subject, TopicPartition) else "?"
            raise _OutOfRange(f"{name} has no offset {wanted}", partition)
        raise self._config.error(f"{what} ({name})", error, timeout_s, self._last_heard())

    def _described_when(
        self, condition: Callable[[dict[str, TopicInfo]], bool], names: Iterable[str], end: float, what: str
    ) -> dict[str, TopicInfo]:
        """Topics once the broker's own view of them fulfils ``condition``: it lags behind the answer to a change."""
        names = list(names)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise BrokerUnreachable(f"{what} at {self._config.bootstrap} did not take effect in time: {names}")
            seen = self.describe_topics(names, left)
            if condition(seen):
                return seen
            time.sleep(_DESCRIBE_AGAIN_S)

    def _last_heard(self) -> str:
        made = self._made
        if made is not None:
            made[0].poll(0)  # serves the error callback, where a refused connection says why
        return self._events.heard


class _OutOfRange(TransportError):
    """An offset that the partition does not have; becomes :class:`PositionUnavailable` where a reader meant it."""

    def __init__(self, message: str, partition: Partition | None) -> None:
        super().__init__(message)
        self.partition = partition


def missing_topic(config: KafkaConfig, topic: str) -> TopicMissing:
    return TopicMissing(
        f"topic {topic} does not exist at {config.bootstrap}: create the job's topics first (penstock plan prints how)"
    )
