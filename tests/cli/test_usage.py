"""What goes wrong before anything is done: one line that says what, where and the way out, and a documented code."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import connect
from penstock.cli.exits import MEANINGS, Exit

from .conftest import Cli


def test_help_names_every_command_and_every_exit_code(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    commands = [
        *("demo", "run", "coordinator", "broker", "jobs", "status", "checkpoints"),
        *("stop", "savepoint", "request", "purge", "compat", "doctor"),
    ]
    assert [c for c in commands if f"\n  {c} " not in ran.out] == []
    assert [code for code in MEANINGS if f"{code.value}  {MEANINGS[code][:20]}" not in ran.out] == []


def test_version_is_told(cli: Cli) -> None:
    assert cli("--version").out.startswith("penstock ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["status"], "Missing argument 'JOB'"),
        (["status", "Not_A_Name", "--broker", "127.0.0.1:1"], "the job name 'Not_A_Name' cannot be part of a topic"),
        (["jobs", "--broker", "no-port"], "'no-port' is no HOST:PORT"),
        (["jobs", "--broker", "a:1,http://b"], "'http://b' is no HOST:PORT"),
        (["jobs", "--broker", "a:70000"], "'a:70000' is no HOST:PORT"),
        (["jobs", "--client-config", "nowhere.conf"], "--client-config nowhere.conf cannot be read: No such file"),
        (["run", "nowhere.py"], "there is no job file nowhere.py"),
        (["coordinator", "x.py", "--takeover-after", "3"], "--takeover-after is for --standby"),
        (["coordinator", "x.py", "--standby", "--takeover-after", "1.5"], "it must be at least 2 seconds"),
        (["coordinator", "x.py", "--standby", "--takeover-after", "nan"], "it must be at least 2 seconds"),
        (["coordinator", "x.py", "--standby", "--fresh"], "--standby goes on from the last completed checkpoint"),
        (["coordinator", "x.py", "--standby", "--from-checkpoint", "3"], "--standby goes on from the last completed"),
        (["demo", "--subtasks", "0"], "--subtasks"),
        (["demo", "--job", "Bad Name"], "'Bad Name' cannot be part of a topic name"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, arguments: list[str], said: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_without_any_broker_the_way_to_one_is_told(cli: Cli) -> None:
    ran = cli("jobs")
    assert ran.code == Exit.NO_BROKER
    assert "penstock broker start" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_broker_that_does_not_answer_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CHECK_TIMEOUT_S", 0.3)
    ran = cli("jobs", "--broker", "127.0.0.1:1")
    assert ran.code == Exit.NO_BROKER
    assert "no Kafka broker at 127.0.0.1:1 answered" in ran.err


def test_a_line_that_is_no_setting_is_told_by_number_and_never_by_its_content(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "client.conf"
    config.write_text("# mine\nsasl.username=me\nswordfish\n")
    ran = cli("jobs", "--broker", "127.0.0.1:1", "--client-config", config)
    assert ran.code == Exit.USAGE
    assert "line 3" in ran.err
    assert "swordfish" not in ran.err


def test_a_secret_in_a_refused_setting_is_not_shown_even_with_debug(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "client.conf"
    config.write_text("sasl.password=swordfish\nsecurity.protocol=swordfish\n")
    ran = cli("--debug", "jobs", "--broker", "127.0.0.1:1", "--client-config", config)
    assert ran.code == Exit.USAGE
    assert "security.protocol" in ran.err
    assert "swordfish" not in ran.out + ran.err


def test_a_setting_that_the_protocol_owns_is_refused(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "client.conf"
    config.write_text("acks=1\n")
    ran = cli("jobs", "--broker", "127.0.0.1:1", "--client-config", config)
    assert ran.code == Exit.USAGE
    assert "'acks' cannot be changed" in ran.err


def test_an_error_nobody_foresaw_shows_its_traceback_only_with_debug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(connect, "detached_status", broken)
    quiet, loud = cli("jobs"), cli("jobs", "--debug")
    assert quiet.code == loud.code == Exit.UNEXPECTED
    assert "ZeroDivisionError: surprise" in quiet.err
    assert "Traceback" not in quiet.err
    assert "Traceback" in loud.err


def test_an_interrupt_has_a_code_of_its_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(connect, "detached_status", interrupted)
    told = cli("jobs")
    assert told.code == Exit.INTERRUPTED
    assert told.err == "penstock: interrupted\n"
