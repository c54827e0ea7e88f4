"""What a job needs of a broker: every role's rights, and that none of them reaches into another job."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.schemas.access import Grant, Operation, Resource, grant_commands, topic_grant
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.plan import Plan, Role, alter_command, create_command, partitions_command
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.topics import TopicNames, TopicSpec

SETTINGS = JobSettings(
    "flights",
    (
        OperatorSettings("reader", 4),
        OperatorSettings("totals", 2, has_coordinator=False, inputs=(InputSettings("reader", Partitioning.KEYED),)),
    ),
)
PLAN = Plan(SETTINGS)
ROOT = "penstock.flights."


def allows(role: Role, operation: Operation, name: str, resource: Resource = Resource.TOPIC) -> bool:
    return any(grant.covers(resource, name, operation) for grant in PLAN.grants([role]))


def test_the_topics_are_those_that_the_job_creates() -> None:
    assert PLAN.topics == SETTINGS.topic_specs
    assert {spec.name.removeprefix(ROOT): spec.partitions for spec in PLAN.topics} == {
        "checkpoints": 1, "acks": 1, "status": 1, "reader.events": 4, "totals.events": 2, "reader.totals.data": 2
    }  # fmt: skip


@pytest.mark.parametrize("topic", [spec.name for spec in SETTINGS.topic_specs])
def test_a_coordinator_reads_writes_and_truncates_every_topic_of_its_job(topic: str) -> None:
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE):
        assert allows(Role.COORDINATOR, operation, topic)
    assert not allows(Role.COORDINATOR, Operation.CREATE, topic)
    assert allows(Role.CREATOR, Operation.CREATE, topic)


def test_only_a_coordinator_may_take_the_transactional_id_and_join_the_standby_group() -> None:
    names = SETTINGS.topics
    for role in Role:
        taker = role is Role.COORDINATOR
        assert allows(role, Operation.WRITE, names.transactional_id, Resource.TRANSACTIONAL_ID) is taker
        assert allows(role, Operation.READ, names.standby_group, Resource.GROUP) is taker


def test_subtasks_read_their_events_and_records_and_write_acks_and_records() -> None:
    may = {
        (spec.name.removeprefix(ROOT), operation.value)
        for spec in PLAN.topics
        for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.CREATE)
        if allows(Role.SUBTASK, operation, spec.name)
    }
    assert may == {
        ("reader.events", "Read"), ("totals.events", "Read"), ("acks", "Write"),
        ("reader.totals.data", "Read"), ("reader.totals.data", "Write"),
    }  # fmt: skip


def test_the_tasks_of_a_query_read_its_coordinators_answers_too() -> None:
    one = JobSettings("flights", (OperatorSettings("reader", 4),), driven_by_query=True)
    grants = Plan(one).grants([Role.SUBTASK])
    assert Grant(Resource.TOPIC, one.topics.status, False, Operation.READ) in grants


def test_whoever_only_looks_changes_nothing() -> None:
    harmless = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    assert {grant.operation for grant in PLAN.grants([Role.READER])} <= harmless


@pytest.mark.parametrize("other", ["flights2", "flights-2", "a", "flight"])
@pytest.mark.parametrize("role", Role)
def test_no_right_reaches_another_job(role: Role, other: str) -> None:
    names = TopicNames("penstock", other)
    for grant in PLAN.grants([role]):
        assert not grant.prefixed or grant.name.endswith(".")
        for topic in (names.acks, names.checkpoints, names.events("reader")):
            assert not grant.covers(Resource.TOPIC, topic, grant.operation)
        assert not grant.covers(Resource.TRANSACTIONAL_ID, names.transactional_id, Operation.WRITE)
        assert not grant.covers(Resource.GROUP, names.standby_group, Operation.READ)


def test_a_prefix_of_ones_own_reaches_no_job_of_the_same_name_under_another() -> None:
    ours = Plan(dataclasses.replace(SETTINGS, prefix="team-a"))
    theirs = dataclasses.replace(SETTINGS, prefix="team-ab").topics
    assert not any(grant.covers(grant.resource, theirs.acks, grant.operation) for grant in ours.grants())


def test_rights_of_all_roles_together_come_once_and_without_those_that_another_includes() -> None:
    grants = PLAN.grants()
    assert len(set(grants)) == len(grants)
    assert [grant for grant in grants if grant.resource is Resource.TOPIC and not grant.prefixed] == []


def test_commands_are_ready_to_paste() -> None:
    commands = grant_commands(PLAN.grants([Role.SUBTASK, Role.COMMANDS]), "alice", "kafka:9093")
    assert (
        "kafka-acls.sh --bootstrap-server kafka:9093 --command-config admin.properties --add --allow-principal"
        " User:alice --operation Read --topic penstock.flights. --resource-pattern-type prefixed"
    ) in commands
    assert (
        "kafka-acls.sh --bootstrap-server kafka:9093 --command-config admin.properties --add --allow-principal"
        " User:alice --operation Write --topic penstock.flights.acks"
    ) in commands
    spec = TopicSpec("penstock.flights.acks", 3, {"retention.ms": "-1", "cleanup.policy": "delete"})
    assert create_command(spec, "kafka:9093") == (
        "kafka-topics.sh --bootstrap-server kafka:9093 --command-config admin.properties --create --if-not-exists"
        " --topic penstock.flights.acks --partitions 3 --config retention.ms=-1 --config cleanup.policy=delete"
    )
    assert alter_command(spec.name, spec.settings, "kafka:9093").endswith(
        "--alter --entity-type topics --entity-name penstock.flights.acks"
        " --add-config retention.ms=-1,cleanup.policy=delete"
    )
    assert partitions_command(spec, "kafka:9093").endswith("--alter --topic penstock.flights.acks --partitions 3")


def test_a_users_name_cannot_end_the_command() -> None:
    grant = Grant(Resource.TOPIC, "penstock.flights.", True, Operation.READ)
    (command,) = grant_commands([grant], "alice; rm -rf /", "kafka:9093")
    assert "'User:alice; rm -rf /'" in command


def test_the_right_named_for_a_topic_is_the_one_of_the_plan() -> None:
    grant = topic_grant(SETTINGS.topics.events("reader"), Operation.WRITE)
    assert grant in PLAN.grants([Role.COORDINATOR])
    assert topic_grant("other", Operation.READ) == Grant(Resource.TOPIC, "other", False, Operation.READ)
