"""`penstock plan`: of a file, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.exits import Exit

from .conftest import Cli

JOB = """
import penstock

job = penstock.Job("flights")
job.operator("reader", coordinator=penstock.OperatorCoordinator, subtask=penstock.Subtask, parallelism=3)
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "planned_job.py"
    path.write_text(JOB)
    return path


def test_topics_rights_and_commands_are_printed(cli: Cli, job_file: Path) -> None:
    ran = cli("plan", job_file, "--user", "alice", "--broker", "kafka:9093")
    assert ran.code == Exit.DONE
    assert "penstock.flights.reader.events" in ran.out
    assert "3 partitions" in ran.out
    assert "--allow-principal User:alice --operation Write --transactional-id penstock.flights.coordinator" in ran.out
    assert "kafka-topics.sh --bootstrap-server kafka:9093" in ran.out


def test_json_has_every_role_with_its_rights_settings_and_commands(cli: Cli, job_file: Path) -> None:
    told = cli("plan", job_file, "--json", "--prefix", "team-a", "--name", "other").json
    assert (told["job"], told["prefix"]) == ("other", "team-a")
    assert [role["role"] for role in told["roles"]] == ["coordinator", "subtask", "commands", "reader", "creator"]
    coordinator = told["roles"][0]
    assert {
        "principal": "User:USER",
        "operation": "Write",
        "resource": "transactional-id",
        "name": "team-a.other.coordinator",
        "pattern": "literal",
    } in coordinator["acls"]
    assert coordinator["client_settings"]["transactional.id"] == "team-a.other.coordinator"
    assert all(topic["name"].startswith("team-a.other.") for topic in told["topics"])
    assert told["broker"]["message.max.bytes"] == 1_000_000


def test_a_role_alone(cli: Cli, job_file: Path) -> None:
    told = cli("plan", job_file, "--json", "--role", "subtask").json
    assert [role["role"] for role in told["roles"]] == ["subtask"]
    assert told["commands"] == told["roles"][0]["commands"]


def test_a_role_that_is_none_is_a_usage_error(cli: Cli, job_file: Path) -> None:
    ran = cli("plan", job_file, "--role", "king")
    assert ran.code == Exit.USAGE
    assert "king" in ran.err


@pytest.mark.parametrize(("copies", "least"), [("3", "2"), ("2", None)])
def test_copies_that_are_asked_for_are_in_every_command(
    cli: Cli, job_file: Path, copies: str, least: str | None
) -> None:
    told = cli("plan", job_file, "--json", "--replication-factor", copies).json
    for topic in told["topics"]:
        assert topic["replication_factor"] == int(copies)
        assert f"--partitions {topic['partitions']} --replication-factor {copies} " in topic["command"]
        assert topic["settings"]["unclean.leader.election.enable"] == "false"
        assert topic["settings"].get("min.insync.replicas") == least


def test_without_copies_asked_for_a_plan_says_whose_default_holds(cli: Cli, job_file: Path) -> None:
    ran = cli("plan", job_file)
    assert "copies of each: the default of the broker" in ran.out
    assert "--replication-factor 3" in ran.out and "min.insync.replicas" in ran.out
    assert all(topic["replication_factor"] is None for topic in cli("plan", job_file, "--json").json["topics"])


def test_no_copy_is_a_usage_error(cli: Cli, job_file: Path) -> None:
    assert cli("plan", job_file, "--replication-factor", "0").code == Exit.USAGE
