"""A job on three brokers, of which one or two fail: nothing is lost or doubled, and nobody is failed over.

The faults are those of ``benchmarks/lost_brokers.py``, which measures what each costs. Here a broker that is silent is
given up after 2 s, and not after Kafka's 9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.lost_brokers import DEADLINE_S, FAULTS, Watched, wait_for, watched
from penstock.broker import EmbeddedCluster
from penstock.cli.doctor import job_topics
from penstock.schemas.errors import BrokerUnreachable, ConfigurationError
from penstock.schemas.status import Ending
from penstock.transport import Partition
from penstock.transport.durability import risks
from penstock.transport.kafka import KafkaTransport

pytestmark = pytest.mark.kafka

SESSION = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Three brokers that each test leaves as it found them."""
    made = EmbeddedCluster(tmp_path_factory.mktemp("three-brokers"), extra_properties=SESSION).start()
    try:
        yield made
    finally:
        for broker in made:
            if broker.running:
                broker.kill()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_goes_on_exactly_once_and_without_a_failover(cluster: EmbeddedCluster, fault: str) -> None:
    with watched(cluster, {}) as job:
        FAULTS[fault](job)
        status = job.finish()
        assert (status.failovers_region, status.failovers_global) == (0, 0), status


def test_topics_have_the_copies_that_were_asked_for_and_no_more_than_there_are_brokers(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with watched(cluster, {}) as job, caplog.at_level(logging.WARNING):
        specs = job.job.settings.topic_specs
        facts = job.transport.inspect([spec.name for spec in specs]).topics
        assert {len(kept.brokers) for found in facts.values() for kept in found.copies} == {3}
        assert {(found.settings or {})["min.insync.replicas"] for found in facts.values()} == {"2"}
        assert {finding.state for finding in job_topics(job.transport, job.job.prefix, job.job.name)} == {"ok"}
        too_many = Watched(cluster, {}, replication_factor=4)
        with closing(too_many.transport), pytest.raises(ConfigurationError, match="Ask for fewer copies"):
            too_many.local.start()
        job.finish()


def test_a_partition_that_nobody_leads_is_named(cluster: EmbeddedCluster) -> None:
    """Its only copy is on a broker that is gone; the cluster goes on."""
    topic = "penstock.one-copy.acks"
    _create_with_copies_on(cluster, topic, [1])
    cluster[0].kill()
    try:
        with closing(KafkaTransport(cluster.bootstrap)) as transport:
            wait_for(lambda: transport.inspect([topic]).topics[topic].copies[0].leader is None, "no leader")
            with pytest.raises(BrokerUnreachable, match=f"partition 0 of topic {topic} has no leader, since"):
                transport.offsets([Partition(topic, 0)], 3.0)
            stopped, missing = risks(topic, transport.inspect([topic]))[-2:]
            assert stopped.now and "no leader: partition 0" in stopped.what
            assert "missing: broker 1" in missing.what
    finally:
        cluster[0].start()


def test_a_checkpoint_that_an_unclean_election_has_lost_fails_the_job(cluster: EmbeddedCluster) -> None:
    """The broker that is elected lacks the newest savepoint, which the subtasks know to be complete.

    Savepoints alone are taken, so that no transaction is open while a broker is lost: it would hide the log's end.
    """
    job = Watched(cluster, {}, checkpoint_s=None)
    log = Partition(job.topics.checkpoints, 0)
    _create_with_copies_on(cluster, log.topic, [1, 2])
    with closing(job.transport), job.local:
        left = _savepoint(job)
        wait_for(lambda: job.copies(log.topic).in_sync == {1, 2}, "both copies of the log are in sync")
        ahead = job.leader(log.topic)
        behind = next(broker for broker in (cluster[0], cluster[1]) if broker is not ahead)
        behind.kill()
        lost = _savepoint(job)
        assert set(job.local.client.history().checkpoints) == {left, lost}
        job.local.crash_coordinator()
        ahead.kill()
        behind.start()
        wait_for(lambda: job.leader(log.topic) is behind, "the broker that lacks the savepoint is elected")
        job.local.replace_coordinator()
        outcome = job.local.wait(DEADLINE_S)
        ahead.start()
    assert outcome.ending is Ending.FAILED, outcome
    assert "has lost its end" in outcome.cause, outcome
    assert f"was told that checkpoint {lost} is complete" in outcome.cause, outcome
    assert f"start with --from-checkpoint {left}, or --fresh" in outcome.cause, outcome


def _savepoint(job: Watched) -> int:
    """Take a savepoint; return its id once every subtask knows that it is complete, and its transaction has ended."""
    wait_for(lambda: all(job.seen.handled), "every subtask is given events")
    reply = job.local.client.savepoint(DEADLINE_S)
    assert reply.accepted, reply
    wait_for(lambda: set(job.seen.notified.values()) == {reply.checkpoint_id}, "every subtask knows of the savepoint")
    job.transport.read_all(Partition(job.topics.checkpoints, 0), DEADLINE_S)
    return reply.checkpoint_id


def _create_with_copies_on(cluster: EmbeddedCluster, topic: str, brokers: list[int]) -> None:
    """A checkpoint log that may lose what it has taken, as a careless cluster's defaults make one."""
    settings = {
        "min.insync.replicas": "1", "unclean.leader.election.enable": "true", "cleanup.policy": "compact",
        "retention.ms": "-1", "retention.bytes": "-1",
    }  # fmt: skip
    wanted: Any = NewTopic(topic, 1, replica_assignment=[brokers], config=settings)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for created in admin.create_topics([wanted]).values():
        created.result(60)
