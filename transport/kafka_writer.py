"""Appending over Kafka without a hole: an idempotent producer that stops for good at its first failure.

Why librdkafka's own ``message.timeout.ms`` is off: a record that it times out is dropped while those behind it are
sent when the broker is back, and ``enable.gapless.guarantee`` does not cover that. So time is measured here, and when
it is up everything queued is purged at once; what stands in a partition then is a prefix of what was appended to it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from ..schemas.access import Operation, topic_grant
from ..schemas.errors import AppendFailed, AppendNotAuthorized
from .kafka_client import (
    PRODUCER_ANSWER_MS,
    ClientEvents,
    KafkaConfig,
    OwnProcess,
    ProducerHandle,
    client_settings,
    make_client,
)
from .kafka_leaders import Leaders
from .ports import RECORD_OVERHEAD_BYTES, OnOutcome, Partition

logger = logging.getLogger("penstock.transport.kafka")

_CONNECT_TIMEOUT_S, _CONNECT_AGAIN_S = 3.0, 0.05
_SERVE_S = 0.2
_REST_S = 5.0
"""How long what an idle client says of its connections may wait; appends and closing end the rest at once."""
_LATE_S, _TELL_EVERY_S = 20.0, 30.0
"""A record that has waited for so long is worth a warning: a lost broker's partitions have another leader by then."""
_QUEUE_KBYTES = 1_048_576
_QUEUE_RECORDS = 10_000_000
"""Far above what those who append have unsettled: they keep bounds of their own, which know how to wait. By default
librdkafka takes 100,000 records, which one subtask that sends small events fills in ten seconds without a broker."""
_KBYTES_MAX = _RECORDS_MAX = 2**31 - 1
"""The most that librdkafka lets a queue hold: of many, each has the bounds that one would have."""
LINGER_MS = 10
"""How long records of many wait for company."""
_REFUSED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
"""Errors that mean: no right to write. The latter comes before any record goes out: who may write to no topic at all
gets no producer id."""


class _Append:
    """One record on its way. A broker that has ``taken`` it may leave its ``offset`` unsaid: the client learned it
    from the answer to a later one."""

    __slots__ = ("offset", "on_outcome", "partition", "since", "taken")

    def __init__(self, partition: Partition, on_outcome: OnOutcome | None, since: float) -> None:
        self.partition = partition
        self.on_outcome = on_outcome
        self.since = since
        self.taken = False
        self.offset: int | None = None


class KafkaWriter:
    """See :class:`penstock.transport.ports.Writer`.

    One thread of its own serves the delivery reports and calls every ``on_outcome``.
    """

    def __init__(self, config: KafkaConfig, for_many: bool = False) -> None:
        """``for_many``: many append by it, most of them to one partition, and each has a bound of its own.

        A client that has five records of a partition with the broker sends no more of them, and if one more is due its
        thread turns without a pause until there is an answer. On few processors the broker then waits for that thread.
        So records of many wait up to ``LINGER_MS`` for company.
        """
        self._config = config
        self._process = OwnProcess()
        self._events = ClientEvents(config)
        self._value_bytes_max = config.message_bytes_max - RECORD_OVERHEAD_BYTES
        settings = client_settings(
            config,
            self._events,
            enable_idempotence=True,
            acks="all",
            enable_gapless_guarantee=True,
            message_timeout_ms=0,
            message_max_bytes=config.message_bytes_max,
        )
        settings.setdefault("request.timeout.ms", PRODUCER_ANSWER_MS)
        settings.setdefault("linger.ms", LINGER_MS if for_many else 0)
        settings.setdefault("queue.buffering.max.kbytes", _KBYTES_MAX if for_many else _QUEUE_KBYTES)
        settings.setdefault("queue.buffering.max.messages", _RECORDS_MAX if for_many else _QUEUE_RECORDS)
        self._producer = make_client(ProducerHandle, config, settings)
        self._leaders, self._tell_at = Leaders(), 0.0
        # Held while a record is queued, so that _pending has the order of the calls.
        self._order = threading.Lock()
        self._pending: deque[_Append] = deque()
        self._appended = 0
        # Guards _settled, _failure and _closing, and tells of their changes. Never held while calling out.
        self._state = threading.Condition()
        self._settled = 0
        self._failure: AppendFailed | None = None
        self._closing = False
        self._resting = False
        """The thread waits for an append: none is unsettled, and the client has had nothing to say for a while."""
        self._thread = threading.Thread(target=self._serve, name="penstock-kafka-writer", daemon=True)
        self._thread.start()

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        self._process.check("this writer")
        if len(value) > self._value_bytes_max:
            raise AppendFailed(
                f"a record of {len(value)} bytes for {partition} is larger than the {self._value_bytes_max} bytes that"
                " a record may have; nothing was appended, and the writer goes on"
            )
        with self._order:
            self._raise_failure()
            record = _Append(partition, on_outcome, time.monotonic())
            self._pending.append(record)  # before produce: its report may come before produce returns
            try:
                self._produce(record, value, key)
            except (AppendFailed, KafkaException) as error:
                self._pending.pop()
                if isinstance(error, KafkaException):
                    error = self._failed(partition, error.args[0])
                self._fail(error)
                raise error from None
            self._appended += 1
        if self._resting:
            with self._state:
                self._state.notify_all()

    def _produce(self, record: _Append, value: bytes, key: bytes | None) -> None:
        topic, index = record.partition
        report = partial(self._on_delivery, record)
        while True:
            try:
                self._producer.produce(topic, value, key, index, report)
                return
            except BufferError:
                left = record.since + self._config.queue_full_timeout_s - time.monotonic()
                with self._state:
                    if left <= 0:
                        raise AppendFailed(
                            f"the queue to {self._config.bootstrap} stayed full for"
                            f" {self._config.queue_full_timeout_s:.1f} s while appending to {record.partition}:"
                            f" {len(self._pending)} records wait for the broker"
                        ) from None
                    self._state.wait(min(left, 0.01))
                self._raise_failure()

    @property
    def failed(self) -> bool:
        """Whether it takes no more."""
        return self._failure is not None

    @property
    def is_its_thread(self) -> bool:
        """Whether outcomes are told on the calling thread."""
        return threading.current_thread() is self._thread

    def flush(self, timeout_s: float) -> bool:
        self._process.check("this writer")
        wanted = self._appended
        with self._state:
            return self._state.wait_for(lambda: self._settled >= wanted, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        self._process.check("this writer")
        self.flush(timeout_s)
        with self._state:
            self._closing = True
            self._state.notify_all()
        if not self.is_its_thread:
            self._thread.join()

    # What follows runs in the writer's thread, except _fail.

    def _connect(self) -> None:
        """Has the client ask for its producer id, which it would otherwise look for half a second later.

        It looks for a broker to ask whenever it hears of the cluster. What it hears first makes it leave the connection
        that it heard it by, and there may be none then: the second answer finds one. With the broker away the records
        wait in the queue, as they would later on.
        """
        heard, until = 0, time.monotonic() + _CONNECT_TIMEOUT_S
        while heard < 2 and time.monotonic() < until and self._failure is None and not self._closing:
            try:
                self._producer.list_topics(timeout=_SERVE_S)
                heard += 1
            except KafkaException:
                with self._state:
                    self._state.wait(_CONNECT_AGAIN_S)

    def _serve(self) -> None:
        self._connect()
        served = 1
        while True:
            if not served and not self._pending:
                self._rest()
            try:
                served = self._producer.poll(_SERVE_S)
            except (KafkaException, SystemError) as error:
                # A fatal error. It shows as SystemError where a report was being delivered when it was raised.
                fatal = error.args[0] if isinstance(error, KafkaException) else None
                self._fail(self._failed(self._oldest_partition(), fatal))
            self._settle_taken()
            self._check_age()
            with self._state:
                closing = self._closing
            if closing:
                self._fail(AppendFailed("the writer was closed before the broker had answered"))
            if self._failure is not None:
                self._settle_failed()
                return

    def _rest(self) -> None:
        """Wait for an append. One that comes meanwhile finds ``_resting`` set, or was queued before and is seen."""
        with self._state:
            self._resting = True
            self._state.wait_for(lambda: self._pending or self._closing or self._failure is not None, _REST_S)
            self._resting = False

    def _on_delivery(self, record: _Append, error: KafkaError | None, message: Message) -> None:
        if error is None:
            record.offset = message.offset()
            record.taken = True
        else:
            self._fail(self._failed(record.partition, error))

    def _settle_taken(self) -> None:
        """Outcomes of what the broker has taken, in the order of the appends, up to the first it has not answered."""
        pending = self._pending
        count = 0
        while pending and pending[0].taken:
            record = pending.popleft()
            count += 1
            if record.on_outcome is not None:
                tell(record.on_outcome, record.offset, None)
        self._count_settled(count)

    def _check_age(self) -> None:
        limit, now = self._config.append_timeout_s, time.monotonic()
        try:
            oldest = self._pending[0]
        except IndexError:
            return
        if not oldest.taken and now - oldest.since > _LATE_S and now >= self._tell_at:
            self._tell_at = now + _TELL_EVERY_S
            self._tell_late(oldest)
        if not oldest.taken and time.monotonic() - oldest.since > limit:
            self._fail(
                AppendFailed(
                    f"{self._config.bootstrap} has not taken a record for {oldest.partition} within {limit:.1f} s;"
                    f" whether it was written is unknown. Last heard: {self._events.heard or 'nothing'}"
                )
            )

    def _tell_late(self, oldest: _Append) -> None:
        """Log for how long the oldest record has waited, and whether its partition has a leader."""
        self._leaders.look(self._producer, [oldest.partition.topic])
        why = self._leaders.told([oldest.partition.topic]) or f"last heard: {self._events.heard or 'nothing'}"
        waits = time.monotonic() - oldest.since
        logger.warning(
            "%s has not taken a record for %s for %.0f s: %s", self._config.bootstrap, oldest.partition, waits, why
        )

    def _oldest_partition(self) -> Partition | None:
        """Of what the broker has not answered."""
        try:
            return self._pending[0].partition
        except IndexError:
            return None

    def _settle_failed(self) -> None:
        """Error outcomes for all that is left; nothing comes after it."""
        # Behind this lock, whoever was appending has queued its record, and whoever comes next sees the failure.
        with self._order, contextlib.suppress(KafkaException):
            self._producer.purge(in_queue=True, in_flight=True, blocking=True)
        for _ in range(100):
            with contextlib.suppress(KafkaException, SystemError):
                if self._producer.poll(0) == 0:
                    break
        self._settle_taken()
        failure = self._failure
        count = 0
        while self._pending:
            record = self._pending.popleft()
            count += 1
            if record.on_outcome is not None:
                tell(record.on_outcome, None, failure)
        self._count_settled(count)
        with contextlib.suppress(KafkaException):  # says once more why it failed
            self._producer.close()

    def _count_settled(self, count: int) -> None:
        if count:
            with self._state:
                self._settled += count
                self._state.notify_all()

    def _failed(self, partition: Partition | None, error: KafkaError | None) -> AppendFailed:
        if error is not None and error.code() in _REFUSED and partition is not None:
            grant = topic_grant(partition.topic, Operation.WRITE)
            return AppendNotAuthorized(
                self._config.denial(f"appending to {partition}", grant, self._config.explained(error))
            )
        where = f" to {partition}" if partition is not None else ""
        why = self._config.explained(error) if error is not None else "fatal error of the producer"
        return AppendFailed(f"an append{where} at {self._config.bootstrap} failed: {why}. Nothing is appended after it")

    def _fail(self, failure: AppendFailed) -> None:
        """The first one counts; but a refusal is the cause of a fatal error that is told before its own report."""
        with self._state:
            refused = isinstance(failure, AppendNotAuthorized) and not isinstance(self._failure, AppendNotAuthorized)
            if self._failure is None or refused:
                self._failure = failure
                self._state.notify_all()

    def _raise_failure(self) -> None:
        if self._closing:
            raise AppendFailed("this writer is closed")
        if self._failure is not None:
            raise AppendFailed(f"an earlier append failed, so nothing may follow: {self._failure}")


def tell(on_outcome: OnOutcome, offset: int | None, error: Exception | None) -> None:
    try:
        on_outcome(offset, error)
    except Exception:
        logger.exception("on_outcome raised; an append's outcome (offset %s, error %s) may be lost", offset, error)
