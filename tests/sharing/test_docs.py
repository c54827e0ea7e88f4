"""What docs/sharing-a-broker.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.schemas.access import Operation
from penstock.schemas.errors import NotAuthorized
from penstock.schemas.plan import Plan, Role
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.transport import Inspection, MemoryBroker, MemoryTransport, TopicFacts, TopicInfo
from penstock.transport.requirements import require

PAGE = (Path(__file__).parents[2] / "docs" / "sharing-a-broker.md").read_text()
SETTINGS = JobSettings("flights", (OperatorSettings("reader", 4),))
PLAN = Plan(SETTINGS)


def test_the_table_of_roles_has_each_of_them_with_the_rights_of_its_plan() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]*) \|$", PAGE, re.MULTILINE))
    assert set(rows) == {role.value for role in Role}
    for role in Role:
        told = set(re.findall("|".join(sorted(Operation, key=len, reverse=True)), rows[role]))
        needed = {grant.operation.value for grant in PLAN.grants([role]) if grant.resource != "group"}
        if role is Role.SUBTASK:
            needed = {"Read", "Write"}
        assert needed <= told, role


def test_the_names_are_those_of_a_job() -> None:
    names = SETTINGS.topics
    for name in (names.transactional_id, names.readers_group, names.standby_group, names.checkpoints):
        assert f"`<prefix>.<job>.{name.removeprefix(names.root)}`" in PAGE


def test_the_error_that_is_shown_is_the_one_that_is_raised() -> None:
    acks = SETTINGS.topics.acks
    facts = {
        spec.name: TopicFacts(
            TopicInfo(spec.name, "id", spec.partitions),
            frozenset(Operation) - ({Operation.WRITE} if spec.name == acks else set()),
            spec.settings,
        )
        for spec in PLAN.topics
    }

    class Guarded(MemoryTransport):
        def inspect(self, names: object, timeout_s: float = 30.0) -> Inspection:
            return Inspection("kafka:9093", "cluster", "alice", facts, frozenset())

    try:
        require(SETTINGS, Guarded(MemoryBroker()), [Role.COORDINATOR], 5.0)
    except NotAuthorized as error:
        told = "".join(f"    {line}\n" for line in str(error).splitlines())
    assert told in PAGE


def test_commands_that_it_names_exist() -> None:
    from penstock.cli.commands import COMMANDS

    for command in re.findall(r"`penstock (\w+)", PAGE):
        assert command in COMMANDS, command


def test_the_tests_that_it_names_stand_there() -> None:
    for folder in re.findall(r"`(tests/[a-z/]+)/`", PAGE):
        assert (Path(__file__).parents[2] / folder).is_dir()
