"""Which errors of Kafka may pass by themselves, so that asking again may help."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeout

from confluent_kafka import KafkaError, KafkaException

from .kafka_client import NO_ANSWER, TOPIC_UNKNOWN

LEADER_MOVED = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._NOENT,
    }
)
"""Errors of a partition that exists and whose leader is not the one that was asked, or is not known yet."""

_ASK_AGAIN = LEADER_MOVED | {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._PARTIAL,
    KafkaError._DESTROY,
    KafkaError._DESTROY_BROKER,
}
"""Errors that say nothing of the question: also a new leader that does not know yet where its partition ends, a broker
that knows no broker, a client that has been replaced, and a broker that has left the cluster while it was asked."""


def may_pass(failure: BaseException) -> bool:
    """Whether asking again may help: the broker is away, starting, or electing."""
    if isinstance(failure, FutureTimeout):
        return True
    if not isinstance(failure, KafkaException):
        return False
    error: KafkaError = failure.args[0]
    passing = error.retriable() or error.code() in NO_ANSWER or error.code() in _ASK_AGAIN
    return passing and error.code() not in TOPIC_UNKNOWN
