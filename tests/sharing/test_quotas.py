"""A quota as the benchmark sets it: taken by the broker, and felt by the client that it names alone."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from benchmarks.quotas import set_quota
from penstock.broker import EmbeddedBroker
from penstock.schemas.topics import TopicSpec
from penstock.transport.kafka import KafkaTransport

pytestmark = pytest.mark.kafka

RATE = 20_000.0
WINDOW_S = 11.0
"""Over which Kafka takes the rate: so much may go before it is slowed down."""


def seconds_for(bootstrap: str, client: str, count: int) -> float:
    """How long a client of that id takes to append so many records of 1,000 bytes, ten to a request."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client, "acks": "all"})
    began = time.monotonic()
    for n in range(count):
        producer.produce("quotas", bytes(1_000), partition=0)
        if n % 10 == 9:
            producer.flush(60)
    producer.flush(60)
    return time.monotonic() - began


def slowed_down(bootstrap: str, client: str, count: int) -> float:
    """How long it takes once the quota is in force, which brokers learn of after it was set."""
    deadline = time.monotonic() + 60.0
    while (took := seconds_for(bootstrap, client, count)) <= 1.5:
        assert time.monotonic() < deadline, f"{client} is not slowed down: {took:.2f} s"
    return took


def test_a_quota_slows_down_the_client_that_it_names(kafka_broker: EmbeddedBroker) -> None:
    address = kafka_broker.bootstrap
    KafkaTransport(address).create_topics([TopicSpec("quotas", 1)])
    records = int(RATE * (WINDOW_S + 3) / 1_000)
    set_quota(address, "slow", producer_byte_rate=RATE)
    try:
        slow = slowed_down(address, "slow", records)
        assert slow > 2 * seconds_for(address, "other", records)
    finally:
        set_quota(address, "slow", producer_byte_rate=None)


def test_a_quota_of_a_kind_that_there_is_not_is_refused(kafka_broker: EmbeddedBroker) -> None:
    with pytest.raises(RuntimeError, match="refused a quota"):
        set_quota(kafka_broker.bootstrap, "slow", patience=1.0)
