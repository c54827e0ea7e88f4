"""`penstock status --watch`: everything redrawn on a terminal, else a line for each thing that happens."""

from __future__ import annotations

import io
import itertools

import pytest
import rich.console

from penstock.cli import jobs, status_commands
from penstock.cli.console import Console
from penstock.cli.status_view import StatusDisplay
from penstock.client.status_follower import Heard
from penstock.dashboard.model import History, View
from penstock.schemas.errors import BrokerUnreachable
from penstock.schemas.status import JobStatus, SubtaskTimes
from tests.dashboard.statuses import BEGIN_MS, checkpoint, failover, operator, pending, status, subtask

FULL = status(
    pending=(pending(waits_for="reader/0 [red](slow)[/red]"),),
    operators=(operator(*(subtask(i, gateway="closed for 6" if i == 3 else "open") for i in range(40))),),
    checkpoints=(
        checkpoint(4, outcome="aborted", reason="reader/1 declined: [b]no[/b]"),
        checkpoint(5, SubtaskTimes("reader", 0, 30, 80), SubtaskTimes("reader", 1, -1, 90)),
    ),
    failovers=(failover(),),
)


def view_of(told: JobStatus) -> View:
    history = History()
    history.see(told)
    view = history.view(told.at_ms + 100)
    assert view is not None
    return view


def on_a_terminal(told: JobStatus) -> str:
    """Return what is shown of a status."""
    console = Console()
    console.rich = rich.console.Console(
        file=io.StringIO(), force_terminal=True, width=180, height=120, color_system=None, _environ={"TERM": "xterm"}
    )
    with StatusDisplay(console) as display:
        display.show(view_of(told))
    assert isinstance(console.rich.file, io.StringIO)
    return console.rich.file.getvalue()


def test_on_a_terminal_everything_is_shown_and_text_of_users_is_text() -> None:
    shown = on_a_terminal(FULL)
    for said in (
        "flights: recovering, epoch 1, 40/40 subtasks, checkpoint 5 (35 ms)",
        "checkpoint 6, 1.5 s old, waits for reader/0 [red](slow)[/red]",
        "reader/3", "closed for 6", "... 8 more", "reader/1 declined: [b]no[/b]", "safe after 80 ms", "cut after 10 ms",
        "not over yet", "reader/1 attempt 7: disk full",
    ):  # fmt: skip
        assert said in shown, said
    row, *_ = [line for line in shown.splitlines() if "safe after 80 ms" in line]
    assert row.count("█") == 28, "from 10 ms to 80 ms of 100 ms, in 40 characters"


def test_a_job_that_waits_for_its_users_own_code_is_said_to_be_idle() -> None:
    quiet = status(operators=(operator(subtask(0, sent=10, handled=10)),), last_event_s=42.0)
    assert "idle: every event sent is handled" in on_a_terminal(quiet)
    assert "idle:" not in on_a_terminal(FULL)


def test_a_subtask_that_no_status_names_shows_no_time() -> None:
    """While a job is rolled back its status names no subtasks; its rows stay."""
    shown = on_a_terminal(status(state="failing-over", operators=(operator(parallelism=2),)))
    assert "reader/1" in shown and "absent" in shown
    assert "-1000 ms" not in shown


def test_without_a_terminal_a_line_tells_each_thing_that_happens_once(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusDisplay(Console()) as display:
        display.show(view_of(status()))
        display.show(view_of(status(1)))
        display.show(view_of(status(2, failovers=(failover(at_ms=BEGIN_MS + 1),))))
    assert capsys.readouterr().out.splitlines() == [
        "flights is running in epoch 1",
        "region failover of reader/1, not over yet: reader/1 attempt 7: disk full",
    ]


class Told:
    """A job's follower that tells, or raises, one thing after another."""

    caught_up = True

    def __init__(self, *tells: list[Heard] | Exception) -> None:
        self.tells = list(tells)

    def follow(self) -> Told:
        return self

    def poll(self, timeout_s: float) -> list[Heard]:
        tells = self.tells.pop(0)
        if isinstance(tells, Exception):
            raise tells
        return tells

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_while_the_broker_is_away_nobody_is_gone_and_the_watch_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(step=10)
    monkeypatch.setattr(status_commands, "_now_ms", lambda: BEGIN_MS + 1000 * next(seconds))
    first, last = (
        Heard(status(0), BEGIN_MS + 10_000),
        Heard(status(60, state="stopped", cause="asked to"), BEGIN_MS + 70_000),
    )
    away = BrokerUnreachable("no broker answers")
    status_commands._watch(Told([first], away, away, [], [], [last]), Console())  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [
        "flights is running in epoch 1",
        "the job cannot be looked at, trying again: no broker answers",
        "flights is stopped in epoch 1: asked to",
    ]


@pytest.mark.parametrize(("last", "shown"), [(-1, "none"), (5, "5")])
def test_the_list_of_jobs_says_where_one_has_no_checkpoint(last: int, shown: str) -> None:
    assert jobs._doing(status(last_completed=last)) == ("2/2", "1", shown)
