"""A Kafka source on a real broker: what librdkafka and the broker do is what the fake in memory says they do."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker import EmbeddedBroker
from penstock.schemas.access import Grant, Operation, Resource
from penstock.sources import Kafka
from penstock.testing import LocalJob
from penstock.testing.fixtures import LocalJobs
from penstock.transport.memory import MemoryBroker, MemoryTransport
from tests.rounds import rounds
from tests.sharing.secured import SecuredBroker, secured

from .kafka_jobs import PATIENCE_S, counted, label, reading_job, states, wait_counted
from .real_kafka import Topics

pytestmark = [pytest.mark.kafka]


@pytest.fixture
def topics(kafka_broker: EmbeddedBroker) -> Topics:
    return Topics(kafka_broker.bootstrap)


def job_of(broker: EmbeddedBroker, topic: Any, parallelism: int = 2, **settings: Any) -> penstock.Job:
    source = Kafka(topic, brokers=broker.bootstrap, **{"discover_every": 0.1, **settings})
    return reading_job(source.read(json.loads), parallelism)


def records(*numbers: range) -> Counter[str]:
    return Counter(label({"number": number, "what": ""}) for each in numbers for number in each)


def few_restarts(job: penstock.Job) -> penstock.Job:
    return job.renamed(job.name, restart=penstock.RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=3))


def failure(running: LocalJob) -> str:
    end = running.wait(PATIENCE_S)
    assert end.ending.value == "failed"
    return end.cause


def test_a_bounded_source_reads_what_was_committed_and_ends_behind_control_records(
    kafka_broker: EmbeddedBroker, topics: Topics, local_job: LocalJobs
) -> None:
    topic = topics.create(4)
    topics.write(topic, 0, range(100))
    topics.write_in_a_transaction(topic, 1, range(100, 150))
    topics.write_in_a_transaction(topic, 1, range(1000, 1010), commit=False)
    commit = topics.open_transaction(topic, 2, range(2000, 2010))
    running = local_job(job_of(kafka_broker, topic, until="latest"))
    assert running.wait(PATIENCE_S).ending.value == "finished"
    assert counted(running) == records(range(150))
    commit()


def test_what_an_open_transaction_commits_later_is_read_also_by_a_source_that_starts_at_latest(
    kafka_broker: EmbeddedBroker, topics: Topics, local_job: LocalJobs
) -> None:
    topic = topics.create()
    topics.write(topic, 0, range(5))
    commit = topics.open_transaction(topic, 0, range(100, 110))
    running = local_job(job_of(kafka_broker, topic, start="latest"))
    running.wait_for(lambda _: any(state["partitions"] for state in states(running, "in")), PATIENCE_S)
    topics.write(topic, 0, range(200, 205))
    commit()
    wait_counted(running, records(range(100, 110), range(200, 205)))


def test_a_time_is_a_place_to_start_and_to_end_at(
    kafka_broker: EmbeddedBroker, topics: Topics, local_job: LocalJobs
) -> None:
    topic = topics.create(2)
    topics.write(topic, 0, range(100))
    topics.write(topic, 1, range(50, 60))
    start, until = datetime.fromtimestamp(41, UTC), datetime.fromtimestamp(71, UTC)
    running = local_job(job_of(kafka_broker, topic, start=start, until=until))
    running.wait(PATIENCE_S)
    assert counted(running) == records(range(40, 70), range(50, 60))


@pytest.mark.smoke
def test_each_record_counts_once_while_subtasks_and_coordinators_die_and_partitions_come(
    kafka_broker: EmbeddedBroker, topics: Topics, local_job: LocalJobs
) -> None:
    """The job's own logs are on the same broker."""
    topic = topics.create(2)
    running = local_job(job_of(kafka_broker, f"{topic}.*"), broker=kafka_broker)
    for partition in range(2):
        topics.write(topic, partition, range(100 * partition, 100 * partition + 50))
    running.wait_for(lambda _: counted(running).total() > 0, PATIENCE_S)
    running.crash_subtask("in", 0)
    topics.grow(topic, 4)
    topics.write(topic, 3, range(300, 350))
    running.crash_coordinator()
    running.replace_coordinator()
    other = topics.create(name=f"{topic}.more")
    topics.write(other, 0, range(400, 450))
    running.crash_subtask("in", 1)
    wait_counted(running, records(range(50), range(100, 150), range(300, 350), range(400, 450)))
    running.check()


def test_a_topic_that_was_created_again_fails_the_job_by_name_and_nothing_of_it_counts(
    kafka_broker: EmbeddedBroker, topics: Topics, local_job: LocalJobs
) -> None:
    topic = topics.create()
    topics.write(topic, 0, range(20))
    running = local_job(few_restarts(job_of(kafka_broker, topic, discover_every=None)))
    wait_counted(running, records(range(20)))
    topics.delete(topic)
    topics.create(name=topic)
    topics.write(topic, 0, range(100, 140))
    said = failure(running)
    assert f"topic {topic!r}" in said and "was deleted and created again" in said
    assert counted(running) == records(range(20))


@pytest.mark.parametrize("records_of_the_new", [5, 40], ids=["fewer-records", "more-records"])
def test_where_that_is_accepted_the_new_topic_is_read_from_its_start(
    kafka_broker: EmbeddedBroker, topics: Topics, local_job: LocalJobs, records_of_the_new: int
) -> None:
    topic = topics.create()
    topics.write(topic, 0, range(20))
    running = local_job(job_of(kafka_broker, topic, fail_on_data_loss=False))
    wait_counted(running, records(range(20)))
    topics.delete(topic)
    topics.create(name=topic)
    topics.write(topic, 0, range(100, 100 + records_of_the_new))
    wait_counted(running, records(range(20), range(100, 100 + records_of_the_new)))


def test_a_deleted_topic_fails_the_job_by_name(
    kafka_broker: EmbeddedBroker, topics: Topics, local_job: LocalJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sources.kafka_coordinator.MISSING_S", 1.0)
    topic = topics.create()
    topics.write(topic, 0, range(20))
    running = local_job(few_restarts(job_of(kafka_broker, topic)))
    wait_counted(running, records(range(20)))
    topics.delete(topic)
    said = failure(running)
    assert f"topic {topic!r}" in said and "was deleted" in said


@pytest.mark.parametrize("accepted", [False, True])
def test_what_retention_deleted_before_it_was_read_is_an_error_by_name_or_passed_over(
    kafka_broker: EmbeddedBroker, topics: Topics, accepted: bool
) -> None:
    topic, logs = topics.create(), MemoryBroker()
    topics.write(topic, 0, range(20))
    job = few_restarts(job_of(kafka_broker, topic, fail_on_data_loss=not accepted))
    with LocalJob(job, MemoryTransport(logs)) as running:
        wait_counted(running, records(range(20)))
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
    topics.write(topic, 0, range(20, 40))
    topics.expire(topic, 0, 30)
    with LocalJob(job, MemoryTransport(logs)) as running:
        if accepted:
            wait_counted(running, records(range(20), range(30, 40)))
        else:
            assert "partition 0" in (said := failure(running))
            assert "has the offsets from 30 to 40, and 20 is wanted: retention" in said


def test_a_broker_that_is_killed_and_started_again_costs_nothing(tmp_path: Path) -> None:
    """The job's logs are elsewhere."""
    with EmbeddedBroker(tmp_path / "kafka") as broker:
        topics = Topics(broker.bootstrap)
        topic = topics.create(2)
        topics.write(topic, 0, range(20))
        with LocalJob(job_of(broker, topic), MemoryTransport(MemoryBroker())) as running:
            wait_counted(running, records(range(20)))
            broker.kill()
            done = running.wait_for(lambda _: True, 1).last_completed
            running.wait_for(lambda s: s.last_completed > done, PATIENCE_S)
            broker.start()
            Topics(broker.bootstrap).write(topic, 1, range(20, 40))
            wait_counted(running, records(range(40)))
            status = running.wait_for(lambda _: True, 1)
            assert (status.failovers_global, status.failovers_region) == (0, 0)


# ---- security


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured(tmp_path_factory.mktemp("kafka-sasl-tls")) as broker:
        yield broker


def secured_job(broker: SecuredBroker, topic: str, password: str | None = None) -> penstock.Job:
    config = broker.client_settings("alice", password)
    return few_restarts(reading_job(Kafka(topic, brokers=broker.bootstrap, config=config).read(json.loads)))


def test_over_sasl_and_tls_a_source_needs_rights_on_its_topics_alone(
    secured_broker: SecuredBroker, local_job: LocalJobs
) -> None:
    topics = Topics(secured_broker.bootstrap, secured_broker.client_settings("admin"))
    topic = topics.create()
    topics.write(topic, 0, range(20))
    secured_broker.grant("alice", [Grant(Resource.TOPIC, topic, False, Operation.READ)])
    wait_counted(local_job(secured_job(secured_broker, topic)), records(range(20)))


def test_a_source_without_rights_fails_by_name(secured_broker: SecuredBroker, local_job: LocalJobs) -> None:
    topic = Topics(secured_broker.bootstrap, secured_broker.client_settings("admin")).create()
    said = failure(local_job(secured_job(secured_broker, topic)))
    assert topic in said and "needs READ and DESCRIBE on its topics" in said


def test_a_wrong_password_fails_by_name_and_is_not_told(
    secured_broker: SecuredBroker, local_job: LocalJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sources.kafka_coordinator._ASK_S", 2.0)
    said = failure(local_job(secured_job(secured_broker, "flights", "wrong-word")))
    assert "Authentication failed" in said
    assert "wrong-word" not in said


# ---- whatever happens


@pytest.mark.soak
@pytest.mark.parametrize("seed", rounds())
def test_each_record_counts_once_on_real_kafka_in_any_order_of_events(
    kafka_broker: EmbeddedBroker, topics: Topics, seed: int
) -> None:
    chance = random.Random(seed)
    topic, total = topics.create(chance.randrange(1, 4)), 0
    partitions = {topic: 1}
    job = job_of(kafka_broker, f"{topic}.*", parallelism=chance.randrange(1, 4))
    with LocalJob(job, MemoryTransport(MemoryBroker())) as running:
        for round_ in range(8):
            more = chance.randrange(1, 200)
            name = chance.choice(list(partitions))
            numbers, partition = range(total, total + more), chance.randrange(partitions[name])
            if chance.random() < 0.5:
                topics.write(name, partition, numbers)
            else:
                topics.write_in_a_transaction(name, partition, range(9_000, 9_020), commit=False)
                topics.write_in_a_transaction(name, partition, numbers)
            total += more
            strikes = [
                lambda: running.crash_subtask("in", chance.randrange(len(states(running, "in")) or 1)),
                lambda: running.crash_subtask("out", chance.randrange(2)),
                lambda: (running.crash_coordinator(), running.replace_coordinator()),
                running.replace_coordinator,
                lambda: partitions.update({topics.create(2, f"{topic}.{round_}"): 2}),  # noqa: B023
            ]
            threading.Event().wait(chance.random() / 10)
            chance.choice(strikes)()
        wait_counted(running, records(range(total)))
        running.check()
