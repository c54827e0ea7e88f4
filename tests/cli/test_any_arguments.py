"""Any command line is done, or refused in a line that says why; none ends in an error that nobody foresaw.

The broker is one in memory, with a job that has ended, and topics that somebody else has named alike.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.cli import main
from penstock.cli.app import app
from penstock.cli.connect import Connection
from penstock.cli.exits import Exit
from penstock.schemas.topics import TopicSpec
from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport
from tests.harmless import measured
from tests.machines import check
from tests.rounds import rounds

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("round_", rounds())]

LEFT_ALONE = {"demo", "run", "coordinator", "dashboard", "broker", "doctor", "fork", "new", "pack"}
"""They start something, look at a real broker, or make another job or files: other tests give them wrong arguments."""
LEFT_OUT = {"--watch", "--follow", "--yes"}
"""Options by which a command goes on until it is interrupted, or deletes the job that the others are about."""
TEXTS = [
    "", "-", "--", "ended", "unknown", "Not A Name", "..", "/", "a/b", "é", "\x1b[2J", "\udcff", "0", "-1", "1", "2",
    "1e9", "nan", "inf", "99999999999999999999", "1,2", "a:1", "127.0.0.1:1", "penstock", "x" * 300, "ended/0",
    "counters", "{}", "[1", "null", "json", "now", "yesterday", "2026-11-22", "2026-11-22T10:00:00Z", "10:00",
]  # fmt: skip
RIGHT = {"job": "ended", "operator": "counters", "file": "job.py", "payload": "null"}
"""Values of arguments with which a command is understood."""
COMMANDS = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    if name not in LEFT_ALONE
}


class Brief(penstock.Subtask):
    def poll(self) -> penstock.Finished:
        return penstock.Finished()


@pytest.fixture(scope="module")
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    transport = MemoryTransport(broker)
    job = penstock.Job("ended", checkpoint=penstock.CheckpointSettings(interval=0.05))
    job.operator("counters", coordinator=penstock.OperatorCoordinator, subtask=Brief, parallelism=2)
    with LocalJob(job, transport) as running:
        running.wait(60.0)
    transport.create_topics([TopicSpec("penstock.unknown.acks", 2), TopicSpec("penstock.x.y.events", 1)])
    return broker


@pytest.fixture
def files(broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths for arguments: a job file, one that raises, garbage, a folder, nothing."""
    monkeypatch.setattr(Connection, "transport", lambda _: MemoryTransport(broker))
    monkeypatch.setenv("PENSTOCK_BROKER", "127.0.0.1:1")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    monkeypatch.chdir(tmp_path)
    texts = {
        "job.py": "import penstock\njob = penstock.Job('ended')\n"
        "job.operator('counters', subtask=penstock.Subtask, parallelism=2)\n",
        "raises.py": "raise ValueError('no')\n",
        "garbage": "\x00\ufffd{[",
        "client.conf": "sasl.password=x\nbootstrap.servers=127.0.0.1:1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    return [*texts, "folder", "nowhere", "job.py:job", "job.py:nothing", "nowhere/" + "x" * 300]


def command_lines(files: list[str]) -> st.SearchStrategy[list[str]]:
    """A command with what it takes, right or of any kind, and some of its options with values of any kind."""
    values = st.sampled_from([*TEXTS, *files]) | st.text(max_size=8)

    @st.composite
    def lines(draw: st.DrawFn) -> list[str]:
        name = draw(st.sampled_from(sorted(COMMANDS)))
        line, command = [name], COMMANDS[name]
        right = draw(st.booleans())
        taken = [parameter for parameter in command.params if not set(parameter.opts) & LEFT_OUT]
        for argument in taken:
            if argument.param_type_name == "argument" and (right or draw(st.integers(0, 7))):
                line.append(RIGHT.get(str(argument.name), "1") if right else draw(values))
        options = [parameter for parameter in taken if parameter.param_type_name == "option"]
        for option in draw(st.lists(st.sampled_from(options), max_size=1 if right else 3)):
            line.append(draw(st.sampled_from([*option.opts, *option.secondary_opts])))
            line += [] if option.is_flag else [draw(values)]
        return [*line, *([] if right or draw(st.integers(0, 7)) else [draw(values)])]

    return lines()


def ran(arguments: list[str]) -> tuple[int, str]:
    """The exit code and what stands on stderr."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    err.flush()
    return code, err.buffer.getvalue().decode()  # type: ignore[attr-defined]


def test_any_command_line_is_done_or_refused(round_: int, files: list[str]) -> None:
    codes: Counter[int] = Counter()

    @given(st.data())
    def holds(data: st.DataObject) -> None:
        arguments = data.draw(command_lines(files))
        answer: Any = measured(arguments, ran, arguments)
        code, said = answer
        codes[code] += 1
        assert code in set(Exit) - {Exit.UNEXPECTED}, said
        assert "Traceback" not in said
        assert code == Exit.DONE or said.strip(), "refused without a word"

    check(holds, round_, examples=100)
    assert len(codes) > 1, f"all are wrong usage: {codes}"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *((name, Exit.DONE) for name in ("audit", "checkpoints", "events", "jobs", "plan", "status")),
        *((name, Exit.FAILED) for name in ("discard", "request", "savepoint", "stop")),
    ],
)
def test_a_right_command_line_is_understood(round_: int, files: list[str], name: str, code: Exit) -> None:
    """Among the lines above they are few."""
    arguments = [p for p in COMMANDS[name].params if p.param_type_name == "argument"]
    assert ran([name, *(RIGHT.get(str(argument.name), "1") for argument in arguments)])[0] == code
