"""The subtask of a Kafka source: reads the partitions that it is given, and keeps its position in each.

The broker gives the records of a topic that was created again under the offsets of the former one, and librdkafka reads
on as if nothing had happened. So no snapshot is taken before the cluster has said that each topic that was read from is
still the one that was given out.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import Context, Finished, Idle, Progress, Subtask
from ..errors import (
    BrokerUnreachable,
    ConfigurationError,
    EventTooLarge,
    PositionUnavailable,
    SubtaskError,
    TopicMissing,
    UnreadableRecord,
)
from .kafka_cluster import Consumer, KafkaCluster, TopicPartition
from .kafka_coordinator import MISSING_S, NOT_SELECTED, Connect, Selection

RECORDS_PER_FETCH = 1_000
_RECORDS_PER_SLICE = 100
TURN_S = 0.05
"""A turn of the subtask's loop begins no further slice of records after so long: barriers wait for it."""
IDLE_FIRST_S, IDLE_MAX_S = 0.001, 0.05
"""Between two fetches that bring nothing; the pause doubles."""
VERIFY_S = 60.0
"""For so long a snapshot waits for the cluster's answer."""
SHORT_S = 60.0
"""For so long a partition may end before the offset that it is to be read to."""
_LOOK_EVERY_S = 30.0
_ASK_S = 1.0
_LAG_EVERY_S = 1.0
_WARN_EVERY_S = 10.0
_NO_END = sys.maxsize

_log = logging.getLogger("penstock.sources.kafka")


class KafkaRecord(NamedTuple):
    """A record with all that Kafka says of it; the fields are called as in Spark's Kafka source."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    """Milliseconds since 1970; None where the record has none."""
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Decoder:
    """What becomes of a record; plain values and the user's functions."""

    value: Callable[[bytes], Any] | None = None
    record: Callable[[KafkaRecord], Any] | None = None
    skips: bool = False
    """Whether a record that cannot be decoded is skipped; else it fails the attempt."""

    @property
    def decode(self) -> Callable[[Any], Any]:
        """A function of confluent-kafka's message."""
        if self.record is not None:
            decode_record = self.record
            return lambda message: decode_record(_record(message))
        decode_value = self.value

        def decode(message: Any) -> Any:
            if (value := message.value()) is None:
                raise ValueError("it has no value (a tombstone); decode_record= is given such records, too")
            return value if decode_value is None else decode_value(value)

        return decode


def _record(message: Any) -> KafkaRecord:
    kind, timestamp = message.timestamp()
    return KafkaRecord(
        message.key(), message.value(), message.topic(), message.partition(), message.offset(),
        timestamp if kind else None, message.headers() or (),
    )  # fmt: skip


class Reading:
    """A partition that is being read."""

    __slots__ = ("begun", "done", "end", "lost", "name", "position", "short_since", "topic_id", "verified")

    def __init__(self, topic: str, topic_id: str, index: int, position: int, end: int | None) -> None:
        self.name = TopicPartition(topic, index)
        self.topic_id = topic_id
        self.position = position
        """Offset of the next record."""
        self.end = _NO_END if end is None else end
        """Offset before which reading ends."""
        self.verified = position
        """Up to here the records are known to be of this topic id."""
        self.begun = False
        """Whether the consumer has it."""
        self.done = self.position >= self.end
        """Whether it has been read to its end."""
        self.lost = ""
        """Why the broker does not have the position; empty where it does."""
        self.short_since: float | None = None
        """Monotonic second since which the partition has ended before ``end``."""

    def as_state(self) -> list[Any]:
        end = None if self.end == _NO_END else self.end
        return [self.name.topic, self.topic_id, self.name.partition, self.position, end]


def redistribute(states: Sequence[Any], parallelism: int) -> list[Any]:
    """Deal the partitions of all subtasks, with their positions, to so many subtasks: a ``rescale`` function."""
    given = [state for state in states if state is not None]
    partitions = sorted((one for state in given for one in state["partitions"]), key=lambda one: (one[0], one[2]))
    all_ = any(state["all"] for state in given)
    skipped = sum(state["skipped"] for state in given)
    return [
        {"partitions": partitions[index::parallelism], "all": all_, "skipped": 0 if index else skipped}
        for index in range(parallelism)
    ]


class KafkaSubtask(Subtask):
    """Emits each record of its partitions once; its state is their positions."""

    def __init__(self, selection: Selection, connect: Connect, decoder: Decoder) -> None:
        self._selection, self._connect, self._decoder = selection, connect, decoder
        self._fails = selection.fail_on_data_loss
        self._partitions: dict[TopicPartition, Reading] = {}
        self._all = False
        """Whether no other partition will ever come."""
        self._skipped = 0
        self._fetched: list[Any] = []
        """Messages that have not been looked at, the next one last."""
        self._idle_s = IDLE_FIRST_S
        self._looked_at = self._look_due = self._lag_due = self._warn_due = 0.0
        """Monotonic seconds."""
        self._missing_since: dict[str, float] = {}
        self._cluster: KafkaCluster | None = None
        self._consumer: Consumer | None = None

    # ---- callbacks

    def open(self, context: Context) -> None:
        self._context = context
        self._who = f"operator {context.operator!r} of job {context.job!r}, subtask {context.subtask}"
        self._decode = self._decoder.decode
        self._cluster = self._connect(context.job, context.operator)
        metrics = context.metrics
        self._read = metrics.counter("records_read")
        self._lag, self._lag_max = metrics.gauge("records_lag"), metrics.gauge("records_lag_max")
        self._partitions_read = metrics.gauge("partitions")
        self._skips = metrics.gauge("records_skipped")
        self._lost = metrics.counter("records_lost")
        self._gone = metrics.counter("partitions_gone")

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self._all, self._skipped = state["all"], state["skipped"]
        self._skips.set(self._skipped)
        self._add(state["partitions"])

    def handle_operator_event(self, event: Any) -> None:
        self._add(event["partitions"])
        self._all = self._all or event["all"]

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self._verify()
        partitions = [reading.as_state() for reading in self._unread()]
        return {"partitions": partitions, "all": self._all, "skipped": self._skipped}

    def poll(self) -> Progress | Idle | Finished:
        now = time.monotonic()
        if not self._unread():
            return Finished() if self._all else Idle()
        if now >= self._look_due or (self._connected.complained and now >= self._looked_at + _ASK_S):
            self._look_at_topics(now)
        if now >= self._lag_due:
            self._lag_due = now + _LAG_EVERY_S
            self._measure_lag(now)
        if not self._fetched:
            self._fetched = self._fetch()
        if not self._fetched:
            self._idle_s = min(2 * self._idle_s, IDLE_MAX_S)
            return Idle(min(self._idle_s, max(0.0, self._look_due - now)))
        self._idle_s = IDLE_FIRST_S
        end = now + TURN_S
        while self._fetched and time.monotonic() < end:
            slice_ = self._fetched[: -_RECORDS_PER_SLICE - 1 : -1]
            del self._fetched[-_RECORDS_PER_SLICE:]
            self._process(slice_)
        return Progress()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        if self._cluster is not None:
            self._cluster.close()

    @property
    def _connected(self) -> KafkaCluster:
        assert self._cluster is not None, "open has been called"
        return self._cluster

    def _unread(self) -> list[Reading]:
        return [reading for reading in self._partitions.values() if not reading.done]

    # ---- records

    def _fetch(self) -> list[Any]:
        if self._consumer is None:
            return []
        messages = self._consumer.fetch(RECORDS_PER_FETCH)
        messages.reverse()
        return messages

    def _process(self, messages: Iterable[Any]) -> None:
        partitions, decode, emit, read = self._partitions, self._decode, self._context.emit, 0
        for message in messages:
            if message.error() is not None:
                self._note(message)
                continue
            reading = partitions.get((message.topic(), message.partition()))  # type: ignore[call-overload]
            offset = message.offset()
            if reading is None or offset < reading.position or not reading.begun:
                continue  # fetched before reading of the partition ended, or began anew
            if offset < reading.end:
                try:
                    record = decode(message)
                except Exception as error:
                    self._refuse(reading, offset, error)
                else:
                    try:
                        emit(record)
                    except (ConfigurationError, EventTooLarge) as error:
                        said = f"{self._who}: {reading.name}, offset {offset} cannot be emitted: {error}"
                        raise type(error)(said) from error
                    read += 1
                reading.position = offset + 1
            if offset + 1 >= reading.end:
                self._done(reading)
        self._read.inc(read)

    def _refuse(self, reading: Reading, offset: int, error: Exception) -> None:
        """Skips a record that cannot be decoded, or raises."""
        said = f"{self._who}: {reading.name}, offset {offset} cannot be decoded: {type(error).__name__}: {error}"
        if not self._decoder.skips:
            raise UnreadableRecord(f"{said}. on_error='skip' skips such records") from error
        self._skipped += 1
        self._skips.set(self._skipped)
        if (now := time.monotonic()) >= self._warn_due:
            self._warn_due = now + _WARN_EVERY_S
            _log.warning("%s. It is skipped; %d have been skipped in all", said, self._skipped)

    def _note(self, message: Any) -> None:
        """Does what is to be done about a message that holds no record."""
        assert self._consumer is not None
        fault = self._consumer.fault(message)
        reading = self._partitions.get(fault.partition)
        if fault.kind == "unknown":
            self._look_due = 0.0
        elif fault.kind == "failed" and (reading is not None or not fault.partition.topic):
            assert fault.error is not None
            raise fault.error
        elif reading is None or not reading.begun:
            pass
        elif fault.kind == "end":
            if fault.offset > reading.position:  # behind control records, or records of aborted transactions
                reading.position = fault.offset
            if reading.position >= reading.end:
                self._done(reading)
        elif fault.kind == "lost":
            reading.lost = fault.text
            self._look_due = 0.0

    # ---- partitions

    def _add(self, partitions: Iterable[Sequence[Any]]) -> None:
        for one in partitions:
            reading = Reading(*one)
            if (former := self._partitions.get(reading.name)) is not None:
                if former.topic_id == reading.topic_id:
                    raise SubtaskError(f"{self._who}: {reading.name} was given out twice")
                # The coordinator has seen that its topic was created again, and that this is no error.
                self._topic_changed(former, reading.topic_id)
            self._partitions[reading.name] = reading
        self._partitions_read.set(len(self._unread()))
        self._look_due = 0.0  # which begins them

    def _done(self, reading: Reading) -> None:
        """Ends reading a partition; it is forgotten once it is known whose records these were."""
        reading.done = True
        self._stop(reading)

    def _forget(self, reading: Reading) -> None:
        self._stop(reading)
        self._partitions.pop(reading.name, None)

    def _stop(self, reading: Reading) -> None:
        if reading.begun and self._consumer is not None:
            reading.begun = False
            self._consumer.end([reading.name])
            # A topic that is created again has the same names and offsets.
            self._fetched = [m for m in self._fetched if (m.topic(), m.partition()) != reading.name]
        self._partitions_read.set(len(self._unread()))

    def _look_at_topics(self, now: float) -> None:
        """Looks whether the topics are still those that were given out, and begins the partitions that wait for it."""
        self._looked_at, self._connected.complained = now, False
        try:
            found = self._connected.describe({reading.name.topic for reading in self._unread()}, _ASK_S)
            lost = [reading for reading in self._unread() if reading.lost and reading.name.topic in found]
            names = [reading.name for reading in lost]
            lows = self._connected.offsets(names, "earliest", _ASK_S)
            highs = self._connected.offsets(names, "latest", _ASK_S)
        except BrokerUnreachable as error:
            self._look_due = time.monotonic() + _ASK_S
            if now >= self._warn_due:
                self._warn_due = now + _WARN_EVERY_S
                _log.warning("%s: %s. It is asked again", self._who, error)
            return
        self._look_due = now + _LOOK_EVERY_S
        for reading in self._unread():
            topic = found.get(reading.name.topic)
            if not self._selection.selects(reading.name.topic):
                self._gone_for_good(reading, NOT_SELECTED)
            elif topic is not None and topic.id != reading.topic_id:
                self._topic_changed(reading, topic.id)
            elif topic is None:
                if now - self._missing_since.setdefault(reading.name.topic, now) < MISSING_S:
                    self._look_due = now + MISSING_S / 5
                else:
                    self._gone_for_good(reading, "was deleted")
            else:
                self._missing_since.pop(reading.name.topic, None)
        for reading in lost:
            if self._partitions.get(reading.name) is reading:
                self._find_position(reading, lows[reading.name], highs[reading.name])
        self._begin([r for r in self._unread() if not r.begun and r.name.topic in found])

    def _begin(self, waiting: Sequence[Reading]) -> None:
        if not waiting:
            return
        if self._consumer is None:
            self._consumer = self._connected.consumer()
        self._consumer.begin({reading.name: reading.position for reading in waiting})
        for reading in waiting:
            reading.begun = True

    def _verify(self) -> None:
        """Raises unless all that was read since the last time came from the topics that were given out."""
        moved = [reading for reading in self._partitions.values() if reading.position != reading.verified]
        found = self._connected.describe({reading.name.topic for reading in moved}, VERIFY_S) if moved else {}
        for reading in moved:
            topic = found.get(reading.name.topic)
            if topic is not None and topic.id != reading.topic_id:
                self._topic_changed(reading, topic.id)
            reading.verified = reading.position
        for reading in [reading for reading in self._partitions.values() if reading.done]:
            self._forget(reading)

    def _topic_changed(self, reading: Reading, topic_id: str) -> None:
        how = f"was deleted and created again (its id was {reading.topic_id} and is {topic_id})"
        if reading.position != reading.verified:
            # Some of these records may be of the new topic: the next attempt begins where they are known not to be.
            raise TopicMissing(self._loss(reading, how))
        self._gone_for_good(reading, how)

    def _gone_for_good(self, reading: Reading, how: str) -> None:
        said = self._loss(reading, how)
        if self._fails:
            raise TopicMissing(said)
        self._gone.inc()
        _log.warning("%s. It is not read any more", said)
        self._forget(reading)

    def _find_position(self, reading: Reading, low: int, high: int) -> None:
        """Begins a partition anew whose position was lost: where it was if it is there, else at the next offset."""
        wanted, begin = reading.position, min(max(reading.position, low), high)
        if wanted != begin or reading.lost == "truncated":
            why = "retention deleted what was to be read next" if wanted < low else "the brokers have lost its end"
            said = self._loss(reading, f"has the offsets from {low} to {high}, and {wanted} is wanted: {why}")
            if self._fails:
                raise PositionUnavailable(said)
            self._lost.inc(abs(begin - wanted))
            _log.warning("%s. Reading goes on at offset %d", said, begin)
        self._stop(reading)
        reading.position, reading.lost = begin, ""
        if begin >= reading.end:
            self._done(reading)

    def _loss(self, reading: Reading, how: str) -> str:
        accept = ". With fail_on_data_loss=False the source goes on with what there is" if self._fails else ""
        return f"{self._who}: {reading.name} at {self._connected.brokers} {how}{accept}"

    # ---- metrics

    def _measure_lag(self, now: float) -> None:
        """Sets the metrics; and notices a partition that ends before the offset that it is to be read to."""
        if self._consumer is None:
            return
        lags = [0]
        for reading in self._unread():
            high = self._consumer.high_watermark(reading.name) if reading.begun else None
            if high is None:
                continue
            lags.append(max(0, min(high, reading.end) - reading.position))
            if reading.end == _NO_END or high >= reading.end:
                reading.short_since = None
            elif reading.short_since is None:
                reading.short_since = now
            elif now - reading.short_since >= SHORT_S:
                said = self._loss(reading, f"ends at offset {high}, and did at {reading.end}: the brokers have lost it")
                if self._fails:
                    raise PositionUnavailable(said)
                self._lost.inc(reading.end - high)
                _log.warning("%s. It is not read any more", said)
                self._done(reading)
        self._lag.set(sum(lags))
        self._lag_max.set(max(lags))
