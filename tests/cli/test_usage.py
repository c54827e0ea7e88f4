"""What goes wrong before anything is done: one line that says what, where and the way out, and a documented code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.cli import connect
from penstock.cli.console import Console
from penstock.cli.display import headline, renderable, subtask_table
from penstock.cli.exits import MEANINGS, Exit
from penstock.schemas.errors import JobRefused
from penstock.transport.memory import MemoryBroker, MemoryTransport
from tests.dashboard.statuses import operator, status, subtask

from .conftest import Cli


def test_help_names_every_command_and_every_exit_code(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    commands = [
        *("demo", "new", "run", "coordinator", "broker", "jobs", "status", "checkpoints"),
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
        (["statis"], "No such command 'statis'. Did you mean 'status'? (penstock --help)"),
        (["status"], "Missing argument 'JOB'. (penstock status --help)"),
        (["new", "Not_A_Name"], "the job name 'Not_A_Name' cannot be part of a topic"),
        (["new", "/dev/null/job"], "cannot write into /dev/null/job"),
        (["status", "Not_A_Name", "--broker", "127.0.0.1:1"], "the job name 'Not_A_Name' cannot be part of a topic"),
        (["jobs", "--broker", "no-port"], "'no-port' is no HOST:PORT"),
        (["jobs", "--broker", "a:1,http://b"], "'http://b' is no HOST:PORT"),
        (["jobs", "--broker", "a:70000"], "'a:70000' is no HOST:PORT"),
        (["jobs", "--client-config", "nowhere.conf"], "--client-config nowhere.conf cannot be read: No such file"),
        (["run", "nowhere.py"], "there is no job file nowhere.py"),
        (["coordinator", "x.py", "--takeover-after", "3"], "--takeover-after is for --standby"),
        (["coordinator", "x.py", "--standby", "--takeover-after", "1.5"], "it must be at least 2 seconds"),
        (["coordinator", "x.py", "--standby", "--takeover-after", "nan"], "it must be at least 2 seconds"),
        (["coordinator", "x.py", "--standby", "--fresh"], "--standby continues from the last completed checkpoint"),
        (["coordinator", "x.py", "--standby", "--from-checkpoint", "3"], "--standby continues from the last completed"),
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


@pytest.mark.parametrize("command", ["run", "coordinator"])
def test_options_that_contradict_one_another_are_refused_before_a_broker_is_started(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("penstock.cli.connect.start_detached", lambda **_: pytest.fail("a broker was started"))
    ran = cli(command, "job.py", "--fresh", "--from-checkpoint", "3")
    assert (ran.code, ran.err.count("\n")) == (Exit.USAGE, 1)
    assert "--fresh, --from-checkpoint and --from-savepoint contradict one another" in ran.err
    ran = cli(command, "job.py", "--fresh", "--resume")
    assert (ran.code, ran.err.count("\n")) == (Exit.USAGE, 1)
    assert "--fresh and --resume contradict one another" in ran.err


def in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A job file; its broker is one in memory, which has no jobs, and there is no Spark."""

    def no_spark(*_: object, **__: object) -> None:
        raise JobRefused("no Spark here")

    transport = MemoryTransport(MemoryBroker())
    where = SimpleNamespace(bootstrap="in memory", client_settings={}, transport=lambda: transport)
    for module in ("run_job", "coordinator"):
        monkeypatch.setattr(f"penstock.cli.{module}.connection", lambda *_, **__: where)
    monkeypatch.setattr("penstock.cli.run_display.local_session", no_spark)
    file = tmp_path / "in_memory.py"
    file.write_text(
        "import penstock\njob = penstock.Job('j')\njob.operator('a', subtask=penstock.Subtask, parallelism=1)\n"
    )
    return file


@pytest.mark.parametrize("command", ["run", "coordinator"])
def test_resuming_a_job_that_the_broker_does_not_have_is_refused_before_spark_is_started(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    ran = cli(command, in_memory(monkeypatch, tmp_path), "--resume")
    assert (ran.code, ran.err.count("\n")) == (Exit.FAILED, 1)
    assert "job j cannot resume: its checkpoint log penstock.j.checkpoints is missing" in ran.err


def test_a_job_that_the_broker_does_not_have_is_said_to_be_new(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may have lost it."""
    file, new = in_memory(monkeypatch, tmp_path), "job j is new on this broker and begins from nothing"
    assert new in cli("run", file).out
    assert new not in cli("run", file, "--fresh").out


def test_a_setting_of_another_type_is_one_line_and_code_2(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "numbered.py"
    file.write_text(
        "import penstock\njob = penstock.Job('j', state_storage=7)\n"
        "job.operator('a', subtask=penstock.Subtask, parallelism=1, codec='bytes')\n"
    )
    ran = cli("plan", file)
    assert (ran.code, ran.err.count("\n")) == (Exit.USAGE, 1)
    assert "state_storage of job 'j' must be a URL" in ran.err


def test_an_output_that_nobody_reads_any_more_is_no_error(tmp_path: Path) -> None:
    """As in ``penstock plan FILE | head -1``."""
    file = tmp_path / "planned.py"
    file.write_text(
        "import penstock\njob = penstock.Job('j')\njob.operator('a', subtask=penstock.Subtask, parallelism=1)\n"
    )
    reads, writes = os.pipe()
    os.close(reads)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "penstock.cli", "plan", file],
            stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writes)
    assert (ran.returncode, ran.stderr) == (Exit.DONE, "")


ESCAPES = "\x1b]0;pwned \x1b[2J\x9b31m\u202e"
SHOWN = r"\x1b]0;pwned \x1b[2J\x9b31m\u202e"


def test_control_characters_of_others_are_shown_and_not_sent(
    cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steers.py"
    file.write_text(f"raise ValueError({ESCAPES!r})\n")
    ran = cli("plan", file)
    assert ran.code == Exit.USAGE
    assert SHOWN in ran.err
    assert not set(ran.err) & set(ESCAPES.replace(" ", "")) - set(SHOWN)
    console = Console()
    console.rich.width = 500
    now = status(operators=(operator(subtask(0, step=ESCAPES), name=ESCAPES),), cause=ESCAPES, job=ESCAPES)
    for what in (ESCAPES, headline(now), subtask_table(now), renderable(now, [ESCAPES])):
        console.show(what)
        printed = capsys.readouterr().out
        assert SHOWN[:12] in printed  # a table may cut it off
        assert "\x1b" not in printed and "\x9b" not in printed and "\u202e" not in printed
    console.data({"cause": ESCAPES})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"cause": ESCAPES}
    assert "\x9b" not in printed and "\u202e" not in printed


def test_the_other_project_of_the_name_penstock_is_said_in_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"penstock": "0.1.0"}.__getitem__)
    ran = cli("--version")
    (line,) = ran.err.splitlines()
    assert ran.code == Exit.DONE
    assert "penstock 0.1.0 is another project" in line and "pip uninstall penstock" in line


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    asked = {**os.environ, "_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock st", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "penstock"],
        env=asked,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["status", "stop"]


def test_a_command_loads_what_it_needs_and_not_what_others_need() -> None:
    show = "import sys, penstock.cli; penstock.cli.main(['status', '--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stderr.split())
    assert "penstock.cli.status_commands" in loaded
    others = {"penstock.cli.run_job", "penstock.cli.audit", "penstock.coordinator.service", "pyspark", "fsspec"}
    assert loaded & others == set()
