"""Reading partitions by offset over Kafka: a consumer that owns what it is assigned and belongs to no group.

``group.id`` is set because librdkafka wants one; nothing is ever joined or committed under it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from ..schemas.access import Operation, topic_grant
from ..schemas.errors import NotAuthorized, PenstockError, PositionUnavailable, TopicMissing, TransportError
from .kafka_admin import missing_topic
from .kafka_client import (
    TOPIC_UNKNOWN,
    ClientEvents,
    ConsumerHandle,
    KafkaConfig,
    OwnProcess,
    client_settings,
    make_client,
)
from .kafka_retry import may_pass
from .ports import LogRecord, Partition, checked_positions

_WATERMARKS_TIMEOUT_S = 5.0
_PREFETCH_KBYTES = 16_384

_POSITION_LOST = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION, KafkaError._NO_OFFSET}
)
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_LASTING = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG, KafkaError._FATAL})
"""Errors of a partition that waiting does not cure; all others pass, or are said better elsewhere."""

_PAUSED = sys.maxsize
"""The next offset of a paused partition: no record has it."""

_NO_INDEX = -1
"""In place of a partition's, where something is said of its topic."""

_WAIT_ALONE_MS, _WAIT_OF_SHARED_MS, _WAIT_OF_MANY_MS = 1_000, 500, 100
"""How long the broker keeps a fetch waiting where there is nothing: new records end the wait at once. That is what an
idle reader costs; and a reader of many partitions waits for so long until a seek takes effect."""
_INTERRUPTIBLE_S = 1.0
"""A wait for records is interrupted (Ctrl-C) after so long at the latest."""


class KafkaReader:
    """See :class:`penstock.transport.ports.Reader`. The caller makes sure that the partitions exist."""

    def __init__(
        self, config: KafkaConfig, positions: Mapping[Partition, int], with_ends: bool = False, grows: bool = False
    ) -> None:
        """``grows``: partitions are to be added, up to hundreds. No seek may disturb what is fetched of others, and a
        fetch that brings nothing, which names them all, must come seldom: of 250 it costs the broker milliseconds."""
        self._config = config
        self._process = OwnProcess()
        self._events = ClientEvents(config)
        self._next = checked_positions(positions)
        self._partitions: dict[tuple[str, int], Partition] = {partition: partition for partition in positions}
        self._failures: dict[Partition | None, PenstockError] = {}
        """What is to be raised, oldest first: at most one per partition, per topic where no partition is named (with an
        index of -1), and of neither (None).

        One for each, because each comes once: another's pause or seek must not lose it, nor what is said of another.
        """
        self._stopped: set[Partition | None] = set()
        """Of what a failure was noted since it was last begun: the client may not be fetching there any more."""
        self.ends: dict[Partition, int] = {}
        """With ``with_ends``: where each partition's last stable offset was met, control records included."""
        settings = client_settings(
            config,
            self._events,
            group_id=_group_name(positions),
            isolation_level="read_committed",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="error",
            enable_partition_eof=with_ends,
        )
        if with_ends:
            settings["fetch.wait.max.ms"] = 10  # the end is told by an empty fetch
        settings.setdefault("queued.max.messages.kbytes", _PREFETCH_KBYTES)
        self._takes_turns = len(self._next) == 1 and not grows
        wait_ms = _WAIT_ALONE_MS if self._takes_turns else _WAIT_OF_SHARED_MS if grows else _WAIT_OF_MANY_MS
        settings.setdefault("fetch.wait.max.ms", wait_ms)
        # The default, a second, is how long a full prefetch queue stops the stream after it has been emptied.
        settings.setdefault("fetch.queue.backoff.ms", 10)
        settings.setdefault("fetch.error.backoff.ms", 100)
        self._settings, self._wait_s = settings, float(settings["fetch.wait.max.ms"]) / 1_000
        self._consumer = make_client(ConsumerHandle, config, settings)
        self._resting: tuple[ConsumerHandle, float] | None = None
        """The client before this one, without partitions; until that monotonic second a fetch of its may be waiting."""
        self._paused_until = 0.0
        """Until that monotonic second a fetch from before the last pause may be waiting."""
        self._closed = self._dry = False
        """Dry: nothing was there when it was looked for last."""
        self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in self._next.items()])

    def finds_all(self, timeout_s: float) -> bool:
        """Whether the broker says so of every partition, asked over the connection that reading needs anyway.

        False says nothing: a partition may be missing, or hidden, or nobody has answered.
        """
        try:
            found = {
                topic: self._consumer.list_topics(topic, timeout=timeout_s).topics[topic]
                for topic in {partition.topic for partition in self._next}
            }
        except (KafkaException, KeyError):
            return False
        return all(found[topic].error is None and index in found[topic].partitions for topic, index in self._next)

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        records = self.fetch(timeout_s, records_max)
        if not records and (failed := self.next_failure()) is not None:
            raise failed[1]
        return records

    def fetch(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        """As ``poll``, but raises nothing: where it returns nothing, :meth:`next_failure` may say why."""
        self._process.check("this reader")
        end = time.monotonic() + timeout_s
        while not self._failures:
            left, messages = end - time.monotonic(), list[Message]()
            if left <= 0 or not self._dry:
                messages = self._consumer.consume(records_max, 0)
            if left > 0 and not messages:
                # Not poll, which wakes five times a second. And one record alone: for more it would wait.
                messages = self._consumer.consume(1, min(left, _INTERRUPTIBLE_S))
            self._dry = not messages
            records = self._records(messages)
            if self._events.topic_missing:
                self._note_missing_topic()
            if records:
                return records  # before the failure that may have come behind them
            if not self._failures and (self.ends or time.monotonic() >= end):
                break
        return []

    def next_failure(self) -> tuple[Partition | None, PenstockError] | None:
        """What went wrong longest ago and has not been told, and with which partition (None: of no single one)."""
        if not self._failures:
            return None
        subject = next(iter(self._failures))
        failure = self._failures.pop(subject)
        return (None if subject is None or subject.index == _NO_INDEX else subject), failure

    def _records(self, messages: list[Message]) -> list[LogRecord]:
        records: list[LogRecord] = []
        following, partitions = self._next, self._partitions
        for message in messages:
            error = message.error()
            if error is not None:
                self._note(message, error)
                continue
            offset = message.offset()
            partition = partitions[message.topic(), message.partition()]  # type: ignore[index]
            if offset is None or offset < following[partition]:
                continue  # fetched before a seek or a pause
            following[partition] = offset + 1
            records.append(LogRecord(partition, offset, message.timestamp()[1], message.key(), message.value()))
        return records

    def _note(self, message: Message, error: KafkaError) -> None:
        """Remembers an error that must be raised, behind the records that came before it."""
        code = error.code()
        topic, index = message.topic(), message.partition()
        partition = self._partitions.get((topic or "", _NO_INDEX if index is None else index))
        subject = Partition(topic, _NO_INDEX) if partition is None and topic else partition
        if code == KafkaError._PARTITION_EOF:
            if partition is not None:
                self.ends[partition] = message.offset() or 0
        elif subject in self._failures or (partition is not None and self._next[partition] == _PAUSED):
            pass
        elif code in _POSITION_LOST and partition is not None:
            self._note_position_lost(partition, error)
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._fail(subject, self._denied(topic, error))
        elif code in TOPIC_UNKNOWN:
            if topic is None or topic in self._topics_being_read():
                name = topic or ", ".join(sorted(self._topics_being_read()))
                self._fail(subject, missing_topic(self._config, name))
        elif code in _LASTING or error.fatal():
            what = f"reading {partition or topic} at {self._config.bootstrap}"
            self._fail(subject, TransportError(f"{what} failed: {self._config.explained(error)}"))

    def _fail(self, subject: Partition | None, failure: PenstockError) -> None:
        self._failures[subject] = failure
        self._stopped.add(None if subject is not None and subject.index == _NO_INDEX else subject)

    def _denied(self, topic: str | None, error: KafkaError) -> NotAuthorized:
        name = topic or min(self._topics_being_read(), default="the topic")
        return self._config.denied(f"reading {name}", topic_grant(name, Operation.READ), self._config.explained(error))

    def _note_position_lost(self, partition: Partition, error: KafkaError) -> None:
        wanted, found, refused, available = self._next[partition], None, "", "what is available was not answered"
        try:
            found = self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=_WATERMARKS_TIMEOUT_S)
        except KafkaException as failure:
            if not may_pass(failure):
                refused = self._config.explained(failure.args[0])
        if found is not None:
            available = f"offsets {found[0]} to {found[1]} are available"
        elif refused:
            available = f"what is available could not be asked ({refused})"
        if error.code() in _OUT_OF_RANGE and not refused and (found is None or found[0] <= wanted <= found[1]):
            # Said of a position before a seek, or nobody has an answer now: if it is so, it is said once more. It may
            # have stopped what the seek began.
            self._begin_at(partition, wanted)
            return
        lost = f"partition {partition} at {self._config.bootstrap}: offset {wanted} is wanted, {available}"
        because = "The log was truncated, or the topic was recreated"
        self._fail(partition, PositionUnavailable(f"{lost}. {because}", partition))

    def _note_missing_topic(self) -> None:
        said, self._events.topic_missing = self._events.topic_missing, ""
        if any(topic in said for topic in self._topics_being_read()):
            gone = f"a topic that is being read is gone, or hidden from this user, at {self._config.bootstrap}"
            self._fail(None, TopicMissing(f"{gone}: {said}"))

    def _topics_being_read(self) -> set[str]:
        return {partition.topic for partition, offset in self._next.items() if offset != _PAUSED}

    def seek(self, partition: Partition, offset: int) -> None:
        self._process.check("this reader")
        if partition not in self._next:
            raise ValueError(f"this reader does not read {partition}")
        before = self._next[partition]
        self._next |= checked_positions({partition: offset})
        if offset == before and self._stopped.isdisjoint({partition, None}):
            return  # what was fetched ahead begins there
        self._failures.pop(partition, None)
        self._stopped -= {partition, None}
        if self._takes_turns and (before != _PAUSED or time.monotonic() < self._paused_until):
            self._begin_by_another(partition, offset)
        elif before == _PAUSED:
            self._consumer.incremental_assign([TopicPartition(*partition, offset)])
        else:
            self._begin_at(partition, offset)

    def _begin_by_another(self, partition: Partition, offset: int) -> None:
        """Has another client fetch from ``offset``: this one waits first for what it is fetching, and it may be long
        until there is something. They take turns, so that only the first seek needs to connect."""
        former, now = self._consumer, time.monotonic()
        rested, self._resting = self._resting, (former, now + self._wait_s)
        if rested is not None and now < rested[1]:
            rested[0].close()
            rested = None
        former.unassign()
        self._consumer = make_client(ConsumerHandle, self._config, self._settings) if rested is None else rested[0]
        self._consumer.assign([TopicPartition(*partition, offset)])

    def _begin_at(self, partition: Partition, offset: int) -> None:
        """Has a partition that is not paused fetched from ``offset``; what was fetched of it is void from now on."""
        position = TopicPartition(*partition, offset)
        try:
            self._consumer.seek(position)
        except KafkaException:
            # Refused while the partition is not being fetched (just assigned, or stopped by an error): begin again.
            self._consumer.incremental_unassign([position])
            self._consumer.incremental_assign([position])

    def add(self, partition: Partition) -> None:
        """Reads this partition too from now on; it is paused until a seek."""
        if partition not in self._next:
            self._next[partition], self._partitions[partition] = _PAUSED, partition

    def pause(self, partition: Partition) -> None:
        """Gives the partition back instead of having the client pause it.

        The client would overtake its own start of a partition that was just assigned, and lose it. Here both calls
        are served in their order, and the fetches before are void when the call returns.
        """
        self._process.check("this reader")
        if partition not in self._next:
            raise ValueError(f"this reader does not read {partition}")
        if self._next[partition] != _PAUSED:
            self._next[partition] = _PAUSED
            self._paused_until = time.monotonic() + self._wait_s
            self._failures.pop(partition, None)
            self._consumer.incremental_unassign([TopicPartition(*partition)])

    def close(self) -> None:
        self._process.check("this reader")
        if not self._closed:
            self._closed = True
            self._consumer.close()
            if self._resting is not None:
                self._resting[0].close()


def _group_name(positions: Mapping[Partition, int]) -> str:
    """A name under the job's own prefix, so that prefixed ACLs cover it."""
    topic = min((partition.topic for partition in positions), default="penstock")
    return ".".join([*topic.split(".")[:2], "readers"])


def read_committed(
    config: KafkaConfig, partition: Partition, begin: int, end: int, timeout_s: float
) -> list[LogRecord]:
    """The committed records of ``partition`` in [begin, end)."""
    deadline = time.monotonic() + timeout_s
    reader = KafkaReader(config, {partition: begin}, with_ends=True)
    records: list[LogRecord] = []
    try:
        # Control records take offsets too, so the last record may stand below end - 1: only the end event tells.
        while reader.ends.get(partition, -1) < end and (not records or records[-1].offset < end - 1):
            left = deadline - time.monotonic()
            if left <= 0:
                reached = max(reader.ends.get(partition, begin), records[-1].offset + 1 if records else begin)
                raise TransportError(
                    f"reading {partition} at {config.bootstrap} to its end took longer than {timeout_s:.1f} s: reached"
                    f" offset {reached} of {end}. Either the broker is away, or a transaction that is still open"
                    " holds back what follows it; claiming the log ends the transactions of its former owners"
                )
            records += reader.poll(left, 10_000)
    finally:
        reader.close()
    return [record for record in records if record.offset < end]
