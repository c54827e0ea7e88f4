"""The fenced log over Kafka: a transactional producer, whose id exactly one process can hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

from confluent_kafka import KafkaError, KafkaException

from ..schemas.access import Grant, Operation, Resource
from ..schemas.errors import AppendFailed, Fenced, OutcomeUnknown
from .kafka_client import (
    FENCED,
    NO_ANSWER,
    PRODUCER_ANSWER_MS,
    ClientEvents,
    KafkaConfig,
    OwnProcess,
    ProducerHandle,
    client_settings,
    make_client,
)
from .kafka_leaders import Leaders
from .ports import RECORD_OVERHEAD_BYTES

_TRANSACTION_BEYOND_COMMIT_S = 30.0
"""How much longer the broker keeps a transaction open than we wait for its commit."""


class KafkaFencedLog:
    """See :class:`penstock.transport.ports.FencedLog`; making one is the claim."""

    def __init__(self, config: KafkaConfig, topic: str, owner: str, timeout_s: float) -> None:
        self._config = config
        self._topic = topic
        self._owner = owner
        self._process = OwnProcess()
        self._value_bytes_max = config.message_bytes_max - RECORD_OVERHEAD_BYTES
        self._useless: str | None = None
        events = ClientEvents(config)
        settings = client_settings(
            config,
            events,
            transactional_id=owner,
            transaction_timeout_ms=int((config.commit_timeout_s + _TRANSACTION_BEYOND_COMMIT_S) * 1_000),
            message_max_bytes=config.message_bytes_max,
        )
        settings.setdefault("request.timeout.ms", PRODUCER_ANSWER_MS)
        settings.setdefault("linger.ms", 0)
        producer = make_client(ProducerHandle, config, settings)
        self._producer: ProducerHandle | None = producer
        what = f"claiming {topic} as {owner}"
        end = time.monotonic() + timeout_s
        try:
            producer.list_topics(timeout=timeout_s)  # connects first: init_transactions is 50 times faster then
            producer.init_transactions(max(end - time.monotonic(), 0.05))
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
        else:
            return
        if error.code() in FENCED:
            raise Fenced(f"{what} at {config.bootstrap}: a newer owner claimed it in the same moment")
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            grant = Grant(Resource.TRANSACTIONAL_ID, owner, False, Operation.WRITE)
            raise config.denied(what, grant, config.explained(error))
        raise config.error(what, error, timeout_s, events.heard)

    def commit(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        self._process.check("this log")
        producer = self._producer
        if producer is None or self._useless is not None:
            raise Fenced(f"{self._topic} is no longer written by this owner ({self._owner}): {self._useless}")
        for key, value in records:
            if value is not None and len(value) > self._value_bytes_max:
                raise AppendFailed(
                    f"a record of {len(value)} bytes for {self._topic} under {key!r} is larger than the"
                    f" {self._value_bytes_max} bytes that a record may have; nothing was appended"
                )
        if not records:
            return
        deadline = time.monotonic() + self._config.commit_timeout_s
        try:
            producer.begin_transaction()
            self._produce(producer, records, deadline)
            producer.commit_transaction(max(deadline - time.monotonic(), 0.05))
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
        else:
            return
        self._failed(producer, error)

    def _produce(self, producer: ProducerHandle, records: Sequence[tuple[str, bytes | None]], deadline: float) -> None:
        for key, value in records:
            while True:
                try:
                    producer.produce(self._topic, value, key.encode(), 0)
                    break
                except BufferError:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
                    producer.poll(min(left, 0.1))

    def _failed(self, producer: ProducerHandle, error: KafkaError) -> NoReturn:
        """Raises what the failed transaction means: someone else's log, a definite no, or not known."""
        what = f"committing to {self._topic} at {self._config.bootstrap} as {self._owner}"
        why = self._config.explained(error)
        if error.code() in FENCED:
            self._useless = why
            raise Fenced(f"{what}: a newer owner has claimed the log; leave and touch nothing ({why})")
        if error.txn_requires_abort():
            # A definite no only once the broker has agreed to the abort.
            try:
                producer.abort_transaction(self._config.commit_timeout_s)
            except KafkaException as failure:
                aborting: KafkaError = failure.args[0]
                self._useless = self._config.explained(aborting)
                if aborting.code() in FENCED:
                    raise Fenced(f"{what}: a newer owner has claimed the log ({self._useless})") from None
                raise OutcomeUnknown(f"{what} failed ({why}) and could not be aborted ({self._useless})") from None
            raise AppendFailed(f"{what} failed and was aborted; none of it was written: {why}")
        self._useless = why
        if error.code() in NO_ANSWER:
            leaders = Leaders()
            leaders.look(producer, [self._topic])
            why = f"no answer within {self._config.commit_timeout_s:.1f} s ({leaders.told([self._topic]) or why})"
        raise OutcomeUnknown(f"{what}: {why}. The next owner sees whether it was written")

    def close(self) -> None:
        self._process.check("this log")
        self._useless = self._useless or "it was closed"
        # Not Producer.close(): after a failure that would first try, with a warning, to end a transaction that is no
        # longer ours to end. Without the handle its connection closes.
        self._producer = None
