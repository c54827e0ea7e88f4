"""What coordinators show of themselves (``context.show``), from their call to the view; rules show theirs so."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.dashboard.feed import of_topic
from penstock.dashboard.model import History
from penstock.errors import ConfigurationError
from penstock.testing import LocalJob
from tests.rules.driving import PATIENCE_S, Rule, ask, polling_job, rule

from .statuses import operator, status, subtask


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("", {}),
        ('{"version": 3, "rules": "[1]", "has": null}', {"version": "3", "rules": "[1]", "has": "null"}),
        ("[" * 100_000, {}),
        ('["version"]', {}),
        ("{", {}),
    ],
    ids=["nothing", "values", "deep", "no object", "no JSON"],
)
def test_the_view_has_what_a_coordinator_shows_as_text(told: str, shown: dict[str, str]) -> None:
    history, newest = History(), status(operators=(operator(subtask(0), shown=told),))
    history.see(newest)
    view = history.view(newest.at_ms)
    assert view is not None
    assert view.operators[0].shown == shown


def test_the_dashboard_shows_the_version_the_rules_and_which_subtasks_have_them() -> None:
    job = polling_job(penstock.Rules(Rule, initial=[Rule("first", 1.0)]), 3).renamed("shown", heartbeat_timeout=1.0)
    with LocalJob(job, kills_silent=False) as running:
        feed = of_topic(running.client)
        try:

            def shown(_: Any) -> dict[str, str]:
                view = feed.view()
                return view.operators[0].shown if view is not None and view.operators else {}

            running.wait_for(lambda _: shown(_).get("subtasks that have it") == "all", PATIENCE_S)
            assert "first" in shown(None)["rules"]
            ask(running, {"set": [rule("a")]})
            running.wait_for(lambda _: shown(_)["version"].startswith("1 ("), PATIENCE_S)
            running.wait_for(lambda _: shown(_)["subtasks that have it"] == "all", PATIENCE_S)
            assert shown(None)["rules"] == '[{"name": "a", "factor": 1.0}]'
            running.wait_for(lambda _: shown(_)["version of the last checkpoint"] == "1", PATIENCE_S)
            running.crash_subtask("score", 1, restart=False)
            running.wait_for(lambda _: shown(_)["subtasks that have it"] == "0, 2 of 3", PATIENCE_S)
            running.start_subtask("score", 1)
            running.wait_for(lambda _: shown(_)["subtasks that have it"] == "all", PATIENCE_S)
        finally:
            feed.close()


@pytest.mark.parametrize("what", [{"x": object()}, {"x": "y" * 8_000}, {"x": "\ud800"}], ids=["object", "long", "text"])
def test_what_cannot_be_shown_is_refused(what: dict[str, Any]) -> None:
    refused: list[str] = []

    class Shows(penstock.OperatorCoordinator):
        def start(self) -> None:
            try:
                self.context.show(what)
            except ConfigurationError as error:
                refused.append(str(error))

    job = penstock.Job("shows")
    job.operator("only", coordinator=Shows, subtask=penstock.Subtask, parallelism=1)
    with LocalJob(job) as running:
        running.wait_for(lambda _: bool(refused), PATIENCE_S)
    assert "context.show takes" in refused[0]
