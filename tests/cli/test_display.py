"""What a running job looks like: redrawn on a terminal, else lines, and never anything on stdout with --json."""

from __future__ import annotations

import dataclasses
import io

import pytest
import rich.console

from penstock.cli.console import Console
from penstock.cli.display import Display
from penstock.coordinator.status import totals_of
from penstock.schemas.status import JobStatus, OperatorStatus, PendingStatus, SubtaskStatus

SUBTASK = SubtaskStatus(0, 7, "running", "here", "closed for 3", 10, 9, 1, 4, 2, "handling event 9", 0.1, 4.0)
STATUS = JobStatus(
    "flights", "i", "running", "", 1, "r", 2, 2, 5, 1, 0.02, 1, 1, "it [b]broke[/b]", {},
    (PendingStatus(3, True, 1.5, "reader/0: its ack, since 1.2 s"),),
    (OperatorStatus("reader", 1, "replay", (SUBTASK,), totals_of([SUBTASK], 1)),),
)  # fmt: skip


def test_without_a_terminal_a_line_tells_each_thing_that_happens_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(Console()) as display:
        display.update(STATUS, "1 of 2 splits done")
        display.update(dataclasses.replace(STATUS, at_ms=2))
        display.update(dataclasses.replace(STATUS, at_ms=3, failovers_region=2))
        display.say("fault: [something]")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("events of this epoch 10 sent 9 handled; 1 of 2 splits done")
    assert "failovers 2 region 1 global" in lines[1]
    assert lines[2] == "fault: [something]"


def test_on_a_terminal_everything_is_shown_by_name() -> None:
    console = Console()
    console.rich = rich.console.Console(file=io.StringIO(), force_terminal=True, width=160, _environ={"TERM": "xterm"})
    with Display(console) as display:
        display.say("fault: SIGKILL")
        display.update(STATUS, "1 of 2 splits done")
    assert isinstance(console.rich.file, io.StringIO)
    shown = console.rich.file.getvalue()
    assert "savepoint 3, 1.5 s old, waits for reader/0: its ack, since 1.2 s" in shown
    for said in ("reader/0", "closed for 3", "it [b]broke[/b]", "fault: SIGKILL", "1 of 2 splits done"):
        assert said in shown


def test_with_json_only_the_data_are_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(as_json=True)
    with console.stdout_kept(), Display(console) as display:
        display.update(STATUS)
        print("a user's coordinator prints")
        console.data({"one": "object"})
    captured = capsys.readouterr()
    assert captured.out == '{"one": "object"}\n'
    assert "a user's coordinator prints" in captured.err
    assert "flights: running" in captured.err
