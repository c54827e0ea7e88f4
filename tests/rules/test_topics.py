"""Rule sets from a topic of a real Kafka: what it holds, what becomes of it, and what it must not be."""

from __future__ import annotations

import json
import uuid

import pytest
from confluent_kafka import Producer

import penstock
from penstock.broker import EmbeddedBroker
from penstock.testing import LocalJob
from tests.sources.real_kafka import Topics

from .driving import (
    PATIENCE_S,
    Rule,
    ask,
    one_more_checkpoint,
    polling_job,
    require_one_version,
    rule,
)

pytestmark = pytest.mark.kafka

INITIAL = [Rule("first", 1.0)]


class Rulebook:
    """A topic that a test writes rule sets to."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap, self.name = bootstrap, f"rules-{uuid.uuid4().hex[:12]}"
        self.topics = Topics(bootstrap)

    def rules(self) -> penstock.Rules:
        kafka = {"bootstrap.servers": self.bootstrap}
        return penstock.Rules(Rule, source=f"topic:{self.name}", kafka=kafka, initial=INITIAL, interval=0.05)

    def create(self, partitions: int = 1) -> None:
        self.topics.create(partitions, self.name)

    def write(self, *names: str, commit: bool | None = None) -> None:
        """Write one set for each name; with ``commit`` in a transaction."""
        settings = {"bootstrap.servers": self.bootstrap}
        producer = Producer(settings if commit is None else {**settings, "transactional.id": uuid.uuid4().hex})
        if commit is not None:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        for name in names:
            producer.produce(self.name, json.dumps([rule(name)]).encode(), partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)


@pytest.fixture
def rulebook(kafka_broker: EmbeddedBroker) -> Rulebook:
    return Rulebook(kafka_broker.bootstrap)


def wait_for_rules(running: LocalJob, name: str) -> None:
    def has(_: object) -> bool:
        return [each["name"] for each in ask(running, {"show": True})["rules"] or []] == [name]

    running.wait_for(has, PATIENCE_S)


def test_the_last_committed_set_counts_also_after_everyone_has_died(rulebook: Rulebook) -> None:
    rulebook.create()
    rulebook.write(*(f"old {n}" for n in range(250)))
    with LocalJob(polling_job(rulebook.rules(), 2)) as running:
        wait_for_rules(running, "old 249")
        rulebook.write("aborted", commit=False)
        rulebook.write("committed", commit=True)
        wait_for_rules(running, "committed")
        one_more_checkpoint(running, 2)
        rulebook.write("while nobody looked")
        running.crash_coordinator()
        running.crash_subtask("score", 0)
        running.replace_coordinator()
        wait_for_rules(running, "while nobody looked")
        one_more_checkpoint(running, 2)
    found = require_one_version(running, 2)
    assert not any("aborted" in each.names for each in found)


def test_a_topic_that_is_not_there_is_named_and_read_when_it_comes(rulebook: Rulebook) -> None:
    with LocalJob(polling_job(rulebook.rules(), 2)) as running:
        running.wait_for(lambda _: f"topic {rulebook.name}" in str(ask(running, {"show": True})), PATIENCE_S)
        assert "does not exist" in ask(running, {"show": True})["source_trouble"]
        rulebook.create()
        rulebook.write("a")
        wait_for_rules(running, "a")
        one_more_checkpoint(running, 2)
    require_one_version(running, 2)


def test_a_topic_of_two_partitions_is_refused_and_says_why(rulebook: Rulebook) -> None:
    rulebook.create(2)
    with LocalJob(polling_job(rulebook.rules(), 1)) as running:
        running.wait_for(lambda _: "has 2 partitions" in str(ask(running, {"show": True})), PATIENCE_S)


def test_a_topic_that_is_deleted_leaves_its_rules_and_is_read_from_its_beginning_when_it_comes_again(
    rulebook: Rulebook,
) -> None:
    rulebook.create()
    rulebook.write("a", "b", "c")
    with LocalJob(polling_job(rulebook.rules(), 2)) as running:
        wait_for_rules(running, "c")
        one_more_checkpoint(running)
        rulebook.topics.delete(rulebook.name)
        running.wait_for(lambda _: "source_trouble" in ask(running, {"show": True}), PATIENCE_S)
        one_more_checkpoint(running)
        wait_for_rules(running, "c")
        rulebook.create()
        rulebook.write("d", "e", "f")  # as many as before: an offset alone would tell nothing
        wait_for_rules(running, "f")
        one_more_checkpoint(running, 2)
    require_one_version(running, 2)


def test_records_that_retention_has_deleted_are_passed_over(rulebook: Rulebook) -> None:
    rulebook.create()
    rulebook.write("a", "b", "c")
    rulebook.topics.expire(rulebook.name, 0, 2)
    with LocalJob(polling_job(rulebook.rules(), 1)) as running:
        wait_for_rules(running, "c")
        assert ask(running, {"show": True})["version"] == 1
        rulebook.write("d")
        rulebook.topics.expire(rulebook.name, 0, 4)
        one_more_checkpoint(running, 2)
