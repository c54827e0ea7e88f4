"""What a job needs, held against what is there: each thing that can be missing is named, with its cure."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AclOperation

from penstock.schemas.access import Operation
from penstock.schemas.errors import JobRefused, NotAuthorized
from penstock.schemas.plan import Plan, Role
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.topics import TopicSpec
from penstock.transport import Inspection, MemoryBroker, MemoryTransport, TopicFacts, TopicInfo
from penstock.transport.kafka_topics import operations_of
from penstock.transport.requirements import Missing, missing, require, require_rights

SETTINGS = JobSettings("flights", (OperatorSettings("reader", 4),))
PLAN = Plan(SETTINGS)
EVENTS, ACKS = SETTINGS.topics.events("reader"), SETTINGS.topics.acks
ALL = frozenset(Operation)
RECORD_BYTES = 1_000_000


def facts(spec: TopicSpec, operations: frozenset[Operation] | None = ALL, **settings: str) -> TopicFacts:
    changed = {key.replace("_", "."): value for key, value in settings.items()}
    return TopicFacts(TopicInfo(spec.name, "id", spec.partitions), operations, {**spec.settings, **changed})


def inspection(hidden: tuple[str, ...] = (), **changed: TopicFacts) -> Inspection:
    topics = {spec.name: facts(spec) for spec in PLAN.topics}
    topics |= {found.info.name: found for found in changed.values()}
    topics = {name: found for name, found in topics.items() if name not in hidden}
    return Inspection("kafka:9093", "cluster", "alice", topics, frozenset(hidden))


def spec_of(name: str) -> TopicSpec:
    return next(spec for spec in PLAN.topics if spec.name == name)


def found(there: Inspection, role: Role = Role.COORDINATOR) -> list[Missing]:
    return missing(PLAN.topics, PLAN.grants([role]), there, RECORD_BYTES)


def test_nothing_is_missing_where_all_is_there() -> None:
    for role in Role:
        assert found(inspection(), role) == []


def test_a_broker_that_asks_nobody_refuses_nobody() -> None:
    assert found(inspection(acks=facts(spec_of(ACKS), None))) == []


def test_a_right_that_is_missing_is_named_with_user_topic_and_the_command_that_grants_it() -> None:
    (one,) = found(inspection(acks=facts(spec_of(ACKS), ALL - {Operation.WRITE})))
    assert one.topic == ACKS and one.right
    assert "user 'alice' lacks the right Write" in one.what
    assert one.remedy == (
        "kafka-acls.sh --bootstrap-server kafka:9093 --command-config admin.properties --add --allow-principal"
        " User:alice --operation Write --topic penstock.flights. --resource-pattern-type prefixed"
    )


def test_a_topic_that_may_not_be_seen_lacks_every_right_on_it() -> None:
    lacking = found(inspection((EVENTS,)))
    assert {one.topic for one in lacking} == {EVENTS}
    assert all(one.right for one in lacking)
    assert [one for one in lacking if "lacks the right Read" in one.what]


def test_a_subtask_is_not_asked_for_rights_that_it_does_not_need() -> None:
    only = inspection(
        (SETTINGS.topics.checkpoints, SETTINGS.topics.status),
        acks=facts(spec_of(ACKS), frozenset({Operation.WRITE, Operation.DESCRIBE})),
        events=facts(spec_of(EVENTS), frozenset({Operation.READ, Operation.DESCRIBE})),
    )
    assert found(only, Role.SUBTASK) == []
    assert found(only, Role.COORDINATOR) != []


@pytest.mark.parametrize(
    ("setting", "value"), [("retention_ms", "604800000"), ("cleanup_policy", "compact"), ("retention_bytes", "1000")]
)
def test_a_topic_that_would_lose_records_is_named_with_the_setting(setting: str, value: str) -> None:
    (one,) = found(inspection(events=facts(spec_of(EVENTS), **{setting: value})))
    name = setting.replace("_", ".")
    assert f"{name} is {value} and must be {spec_of(EVENTS).settings[name]}" in one.what
    assert f"--entity-name {EVENTS} --add-config {name}=" in one.remedy


def test_a_topic_that_takes_only_small_records_is_named() -> None:
    (one,) = found(inspection(acks=facts(spec_of(ACKS), max_message_bytes="1000")))
    assert "max.message.bytes is 1000 and must be at least" in one.what


def test_segments_of_another_size_do_not_stop_a_job() -> None:
    assert found(inspection(acks=facts(spec_of(ACKS), segment_bytes="1073741824"))) == []


def test_too_few_partitions_and_no_topic_are_named_with_both_numbers_and_commands() -> None:
    narrow = TopicFacts(TopicInfo(EVENTS, "id", 2), ALL, {})
    (one,) = found(inspection(events=narrow))
    assert "2 partitions and 4 are needed" in one.what
    assert one.remedy.endswith(f"--alter --topic {EVENTS} --partitions 4")
    there = inspection()
    without = there._replace(topics={name: f for name, f in there.topics.items() if name != EVENTS})
    (gone,) = found(without)
    assert gone.what == "it does not exist" and "--create" in gone.remedy


def test_missing_topics_and_partitions_are_created_where_they_may_be() -> None:
    transport = MemoryTransport(MemoryBroker())
    with pytest.raises(JobRefused, match=r"it does not exist[\s\S]*kafka-topics.sh"):
        require(SETTINGS, transport, [Role.SUBTASK], 5.0)
    require(SETTINGS, transport, [Role.COORDINATOR], 5.0, creates=True)
    wider = dataclasses.replace(SETTINGS, operators=(OperatorSettings("reader", 6),))
    require(wider, transport, [Role.COORDINATOR], 5.0, creates=True)
    assert transport.describe_topics([EVENTS])[EVENTS].partitions == 6


class Guarded(MemoryTransport):
    """Tells of rights what it is told, and creates nothing."""

    def __init__(self, there: Inspection) -> None:
        super().__init__(MemoryBroker())
        self.there = there

    def inspect(self, names: object, timeout_s: float = 30.0) -> Inspection:
        return self.there

    def create_topics(self, specs: object, timeout_s: float = 30.0) -> None:
        raise NotAuthorized("creating topics at kafka:9093: user 'alice' lacks the right Create")


def test_whoever_may_not_create_is_told_what_to_create() -> None:
    there = inspection()
    without = there._replace(topics={name: f for name, f in there.topics.items() if name != EVENTS})
    with pytest.raises(NotAuthorized, match="lacks the right Create") as caught:
        require(SETTINGS, Guarded(without), [Role.COORDINATOR], 5.0, creates=True)
    assert f"--create --if-not-exists --topic {EVENTS} --partitions 4" in str(caught.value)


def test_rights_are_asked_before_anything_is_created_and_the_first_are_named() -> None:
    names = tuple(spec.name for spec in PLAN.topics)
    for ask in (
        lambda: require(SETTINGS, Guarded(inspection(names)), [Role.COORDINATOR], 5.0, creates=True),
        lambda: require_rights(SETTINGS, Guarded(inspection(names)), [Role.COORDINATOR], 5.0),
    ):
        with pytest.raises(NotAuthorized, match=r"job flights cannot start at kafka:9093[\s\S]*and 11 more"):
            ask()


@pytest.mark.parametrize("told", [None, [], [AclOperation.READ, AclOperation.WRITE]])
def test_a_broker_that_does_not_say_what_a_user_may_do_is_not_taken_to_refuse(told: list[AclOperation] | None) -> None:
    """Where it did, whoever it describes a topic to may describe it."""
    assert operations_of(SimpleNamespace(authorized_operations=told)) is None


def test_what_a_user_may_do_is_told_in_our_words() -> None:
    told = SimpleNamespace(authorized_operations=[AclOperation.DESCRIBE, AclOperation.READ, AclOperation.ALTER_CONFIGS])
    assert operations_of(told) == {Operation.DESCRIBE, Operation.READ}
