"""A right that is missing, or is taken away: an error that names it, at the start or later, and never a silence."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.client.job_client import JobClient
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.service import CoordinatorService, instances_of
from penstock.schemas.access import Grant, Operation, Resource
from penstock.schemas.errors import NotAuthorized
from penstock.schemas.ids import SubtaskId
from penstock.schemas.plan import Plan as Needs
from penstock.schemas.plan import Role
from penstock.schemas.status import Ending
from penstock.schemas.topics import TopicSpec
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport import Partition
from penstock.transport.requirements import require, require_rights
from tests.coordinator.jobs import Handler, Plan, make_job, run, wait_checkpoint

from .secured import ADMIN, PATIENCE_S, SecuredBroker

pytestmark = pytest.mark.kafka

USER = "carol"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a job of this test's own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[-60:].strip("-")


def needs_of(name: str) -> Needs:
    return Needs(make_job(Plan(), name).settings)


def created(broker: SecuredBroker, needs: Needs) -> None:
    """The topics, by an administrator."""
    broker.transport(ADMIN).create_topics(needs.topics)


def without(grants: list[Grant], resource: Resource, operation: Operation) -> list[Grant]:
    kept = [grant for grant in grants if (grant.resource, grant.operation) != (resource, operation)]
    assert len(kept) < len(grants)
    return kept


@pytest.mark.parametrize(
    "operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE_CONFIGS], ids=str
)
def test_a_right_on_the_topics_that_is_missing_ends_the_start(
    secured_broker: SecuredBroker, name: str, operation: Operation
) -> None:
    needs = needs_of(name)
    created(secured_broker, needs)
    secured_broker.grant(USER, without(needs.grants([Role.COORDINATOR]), Resource.TOPIC, operation))
    with pytest.raises(NotAuthorized) as caught:
        require(needs.settings, secured_broker.transport(USER), [Role.COORDINATOR], PATIENCE_S, creates=True)
    told = str(caught.value)
    assert f"user '{USER}' lacks the right {operation} on it" in told
    assert all(spec.name in told for spec in needs.topics)
    assert f"--operation {operation} --topic {needs.names.root} --resource-pattern-type prefixed" in told


def test_a_transactional_id_that_may_not_be_taken_ends_the_coordinator_with_its_name(
    secured_broker: SecuredBroker, name: str
) -> None:
    needs = needs_of(name)
    created(secured_broker, needs)
    secured_broker.grant(USER, without(needs.grants(), Resource.TRANSACTIONAL_ID, Operation.WRITE))
    running = run(make_job(Plan(), name), secured_broker.transport(USER), subtasks=False)
    with running, pytest.raises(NotAuthorized) as caught:
        running.wait(PATIENCE_S)
    assert f"--operation Write --transactional-id {needs.names.transactional_id}" in str(caught.value)


def test_topics_that_may_not_be_created_are_named_with_the_commands_that_create_them(
    secured_broker: SecuredBroker, name: str
) -> None:
    needs = needs_of(name)
    secured_broker.grant(USER, needs.grants([Role.COORDINATOR]))
    with pytest.raises(NotAuthorized, match="lacks the right Create") as caught:
        require(needs.settings, secured_broker.transport(USER), [Role.COORDINATOR], PATIENCE_S, creates=True)
    for spec in needs.topics:
        assert f"--create --if-not-exists --topic {spec.name} --partitions {spec.partitions}" in str(caught.value)
    created(secured_broker, needs)
    require(needs.settings, secured_broker.transport(USER), [Role.COORDINATOR], PATIENCE_S, creates=True)


def test_partitions_that_may_not_be_added_are_named(secured_broker: SecuredBroker, name: str) -> None:
    needs = needs_of(name)
    created(secured_broker, needs)
    wide = Needs(make_job(Plan(), name, parallelism=3).settings)
    secured_broker.grant(USER, needs.grants([Role.COORDINATOR]))
    with pytest.raises(NotAuthorized, match=r"lacks the right Alter[\s\S]*--partitions 3"):
        require(wide.settings, secured_broker.transport(USER), [Role.COORDINATOR], PATIENCE_S, creates=True)
    secured_broker.grant(USER, needs.grants([Role.CREATOR]))
    require(wide.settings, secured_broker.transport(USER), [Role.COORDINATOR], PATIENCE_S, creates=True)


def test_each_role_is_enough_for_what_it_does(secured_broker: SecuredBroker, name: str) -> None:
    """Five users, each with the rights of one role and no other; together they run a job."""
    needs = needs_of(name)
    users = dict(zip(Role, ("alice", "bob", "carol", "dave", "erin"), strict=True))
    for role, user in users.items():
        secured_broker.grant(user, needs.grants([role]))
    transports = {role: secured_broker.transport(user) for role, user in users.items()}
    transports[Role.CREATOR].create_topics(needs.topics)
    require_rights(needs.settings, transports[Role.SUBTASK], [Role.SUBTASK], PATIENCE_S)
    plan = Plan()
    job = make_job(plan, name)
    options = CoordinatorOptions(status_interval_s=0.02)
    service = CoordinatorService(
        instances_of(job.settings, job.coordinators, transports[Role.COORDINATOR], options), job.restart
    )
    run_id = uuid.uuid4().hex
    commands = JobClient(transports[Role.COMMANDS], name)
    service.start()
    commands.announce_run(run_id)
    runtime = SubtaskRuntime(
        job.settings, SubtaskId("op", 0), lambda: Handler(plan), transports[Role.SUBTASK], run=run_id
    )
    with _thread(runtime.run):
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"one")
        plan.wait_handled(b"one")
        plan.wait_call("notify_checkpoint_complete", 2)
        reader = JobClient(transports[Role.READER], name)
        assert reader.status() is not None and (reader.history().last_id or 0) > 0
        assert commands.stop(timeout_s=PATIENCE_S).accepted
    outcome = service.wait(PATIENCE_S)
    assert outcome is not None and outcome.ending is Ending.STOPPED
    assert set(transports[Role.CREATOR].list_topics(needs.names.root)) == {spec.name for spec in needs.topics}


@contextmanager
def _thread(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("operation", [Operation.READ, pytest.param(Operation.WRITE, marks=pytest.mark.smoke)], ids=str)
def test_a_right_that_is_taken_away_ends_the_coordinator_with_its_name(
    secured_broker: SecuredBroker, name: str, operation: Operation
) -> None:
    needs, plan = needs_of(name), Plan()
    secured_broker.grant(USER, needs.grants())
    with run(make_job(plan, name), secured_broker.transport(USER)) as running:
        wait_checkpoint(running, plan)
        secured_broker.revoke(USER, [Grant(Resource.TOPIC, needs.names.root, True, operation)])
        with pytest.raises(NotAuthorized, match=rf"user '{USER}' lacks the right {operation}"):
            running.wait(PATIENCE_S)


@pytest.mark.parametrize("hidden", [False, True], ids=["not-read", "not-seen"])
def test_a_subtask_that_loses_its_events_raises_instead_of_waiting(
    secured_broker: SecuredBroker, name: str, hidden: bool
) -> None:
    topic = needs_of(name).names.events("op")
    secured_broker.transport(ADMIN).create_topics([TopicSpec(topic, 1)])
    may = [Grant(Resource.TOPIC, topic, False, op) for op in (Operation.READ, Operation.DESCRIBE)]
    secured_broker.grant(USER, may)
    reader = secured_broker.transport(USER).reader({Partition(topic, 0): 0})
    assert reader.poll(0.5) == []
    secured_broker.revoke(USER, may if hidden else may[:1])
    with pytest.raises(NotAuthorized, match=rf"reading {topic} .*lacks the right Read"):
        _poll_until_it_raises(reader.poll)
    reader.close()


def _poll_until_it_raises(poll: Callable[[float], object]) -> None:
    for _ in range(int(PATIENCE_S)):
        poll(1.0)
    raise AssertionError(f"nothing was said within {PATIENCE_S:g} s")


def test_a_job_that_may_not_be_seen_is_not_told_to_be_missing(secured_broker: SecuredBroker, name: str) -> None:
    needs = needs_of(name)
    created(secured_broker, needs)
    with pytest.raises(NotAuthorized, match=r"may not see job[\s\S]*lacks the right Read") as caught:
        JobClient(secured_broker.transport(USER), name).require()
    assert f"--topic {needs.names.root} --resource-pattern-type prefixed" in str(caught.value)


def test_doctor_names_the_rights_that_its_user_lacks(
    secured_broker: SecuredBroker, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan()
    needs = needs_of(name)
    secured_broker.grant("alice", needs.grants())
    with run(make_job(plan, name), secured_broker.transport("alice")) as running:
        wait_checkpoint(running, plan)
    config = tmp_path / "client.properties"
    settings = secured_broker.client_settings(USER)
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    arguments = ["doctor", name, "--broker", secured_broker.bootstrap, "--client-config", str(config), "--json"]

    def findings() -> dict[str, dict[str, str]]:
        capsys.readouterr()
        main(arguments)
        return {found["check"]: found for found in json.loads(capsys.readouterr().out)}

    unseen = findings()["job"]
    assert unseen["state"] == "missing" and "may not see job" in unseen["found"]
    secured_broker.grant(USER, needs.grants([Role.READER]))
    acks = findings()[needs.names.acks]
    assert acks["state"] == "missing" and f"user '{USER}' lacks the right Write" in acks["found"]
    assert "--operation Write" in acks["remedy"]
    secured_broker.grant(USER, needs.grants([Role.COORDINATOR]))
    assert findings()[needs.names.acks]["state"] == "ok"
