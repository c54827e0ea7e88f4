"""Two jobs of two users on a secured broker: each runs, and neither can touch the other. In the broker's own errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock.schemas.errors import NotAuthorized
from penstock.schemas.plan import Plan as Needs
from penstock.schemas.status import Ending
from penstock.schemas.topics import TopicNames
from penstock.testing.local import LocalJob
from penstock.transport import Election, Partition
from tests.coordinator.jobs import Plan, make_job, run, wait_checkpoint

from .secured import PATIENCE_S, SecuredBroker

pytestmark = pytest.mark.kafka

OURS, THEIRS = "flights", "flights-2"
"""A right on ``penstock.flights`` without its closing dot would reach the other job too."""


class Side:
    """One user's job while it runs."""

    def __init__(self, broker: SecuredBroker, user: str, name: str) -> None:
        self.broker, self.user = broker, user
        self.plan = Plan()
        job = make_job(self.plan, name, parallelism=2)
        self.names = job.settings.topics
        broker.grant(user, Needs(job.settings).grants())
        self.transport = broker.transport(user)
        self.running: LocalJob = run(job, self.transport)

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.broker.bootstrap, **self.broker.client_settings(self.user), **more}

    def works(self) -> None:
        """An event is handled and a checkpoint completes, both from now on."""
        self.plan.wait_gateways(0, 1)
        event = b"%d" % time.monotonic_ns()
        self.plan.gateways[1].send_event(event)
        self.plan.wait_handled(event, 1)
        wait_checkpoint(self.running, self.plan)


@pytest.fixture(scope="module")
def sides(secured_broker: SecuredBroker) -> Iterator[tuple[Side, Side]]:
    ours, theirs = Side(secured_broker, "alice", OURS), Side(secured_broker, "bob", THEIRS)
    with ours.running, theirs.running:
        ours.works()
        theirs.works()
        yield ours, theirs
        for side in (ours, theirs):
            side.works()
            assert side.running.client.stop(timeout_s=PATIENCE_S).accepted
            assert side.running.wait(PATIENCE_S).ending is Ending.STOPPED


def code_of(attempt: Callable[[], Any]) -> int:
    with pytest.raises(KafkaException) as caught:
        attempt()
    error: KafkaError = caught.value.args[0]
    return error.code()


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def topics_of(names: TopicNames) -> list[str]:
    return [names.acks, names.checkpoints, names.status, names.events("op")]


def test_neither_can_read_the_others_topics(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    consumer = Consumer(ours.settings(**{"group.id": ours.names.readers_group, "enable.auto.commit": False}))
    try:
        metadata = consumer.list_topics(theirs.names.acks, timeout=PATIENCE_S)
        assert metadata.topics[theirs.names.acks].error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        position = TopicPartition(theirs.names.acks, 0, 0)
        refused = code_of(lambda: consumer.get_watermark_offsets(position, timeout=PATIENCE_S))
        assert refused in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_PARTITION)
        consumer.assign([position])
        message = consumer.poll(2.0)
        assert message is None or message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    finally:
        consumer.close()
    for topic in topics_of(theirs.names):
        with pytest.raises(NotAuthorized, match=rf"user 'alice' lacks the right Read on topic {theirs.names.root}\*"):
            ours.transport.reader({Partition(topic, 0): 0})


def test_neither_can_write_to_the_others_topics(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    for topic in topics_of(theirs.names):
        assert _refused(ours, topic) == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


def _refused(side: Side, topic: str) -> list[int]:
    """What an idempotent producer hears that writes one record."""
    heard: list[int] = []
    producer = Producer(side.settings(**{"enable.idempotence": True, "message.timeout.ms": 10_000}))
    try:
        producer.produce(topic, b"forged", partition=0, on_delivery=lambda e, _: heard.append(e.code() if e else 0))
        producer.flush(PATIENCE_S)
    except KafkaException as error:
        heard.append(error.args[0].code())
    return heard


def test_neither_can_take_the_others_transactional_id(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    producer = Producer(ours.settings(**{"transactional.id": theirs.names.transactional_id}))
    assert code_of(lambda: producer.init_transactions(PATIENCE_S)) == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with pytest.raises(NotAuthorized, match=r"right Write on transactional-id penstock.flights-2.coordinator"):
        ours.transport.claim_log(ours.names.checkpoints, theirs.names.transactional_id)


def test_neither_can_delete_truncate_create_or_widen_in_the_others_name(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    admin = AdminClient(ours.settings())
    acks = theirs.names.acks
    attempts: list[Callable[[], Any]] = [
        lambda: only(admin.delete_topics([acks])),
        lambda: only(admin.create_partitions([NewPartitions(acks, 2)])),
        lambda: only(admin.create_topics([NewTopic(theirs.names.root + "mine", 1, 1)])),
    ]
    assert {code_of(attempt) for attempt in attempts} == {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    with pytest.raises(NotAuthorized, match="lacks the right Delete"):
        ours.transport.delete_topics([acks])
    with pytest.raises(NotAuthorized, match="lacks the right"):
        ours.transport.truncate({Partition(acks, 0): 1})
    seen = set(ours.transport.list_topics(""))
    assert seen >= set(topics_of(ours.names))
    assert not [topic for topic in seen if topic.startswith(theirs.names.root)]


def test_neither_can_join_the_others_standby_group(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    consumer = Consumer(ours.settings(**{"group.id": theirs.names.standby_group}))
    try:
        consumer.subscribe([ours.names.status])
        deadline, heard = time.monotonic() + PATIENCE_S, 0
        while heard == 0:
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            heard = message.error().code() if message is not None and message.error() else 0
    finally:
        consumer.close()
    assert heard == KafkaError.GROUP_AUTHORIZATION_FAILED
    election = ours.transport.election(theirs.names.standby_group, ours.names.checkpoints, 6.0)
    refused = pytest.raises(NotAuthorized, match=r"lacks the right Read on group penstock.flights-2.standby")
    with closing(election), refused:
        _await_elected(election)


def _await_elected(election: Election) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not election.elected():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_both_have_gone_on_meanwhile(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.works()
        side.running.check()
