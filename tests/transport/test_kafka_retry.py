"""Which errors of Kafka are asked again about."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeout

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.transport.kafka_retry import may_pass


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,  # librdkafka does not call it retriable
        KafkaError._TRANSPORT,
        KafkaError._DESTROY_BROKER,
    ],
)
def test_what_a_change_of_leaders_or_brokers_explains_may_pass(code: int) -> None:
    assert may_pass(KafkaException(KafkaError(code)))


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_what_asking_again_cannot_change_does_not(code: int) -> None:
    assert not may_pass(KafkaException(KafkaError(code)))


def test_silence_may_pass_and_an_error_of_ours_does_not() -> None:
    assert may_pass(FutureTimeout())
    assert not may_pass(ValueError())
