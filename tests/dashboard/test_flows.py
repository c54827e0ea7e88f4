"""Rates, latency, settings and updates: what a page is fed, from statuses alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.dashboard import updates
from penstock.dashboard.model import History, View
from penstock.dashboard.settings_shown import Settings, settings_of
from penstock.schemas.status import JobStatus

from .statuses import checkpoint, operator, status, subtask


def flowing(second: float, handled: int, unhandled: int, **changes: Any) -> JobStatus:
    row = subtask(0, sent=handled + unhandled, handled=handled)
    return status(second, operators=(operator(row), operator(subtask(0), name="idle")), **changes)


def view_of(*statuses: JobStatus, after_s: float = 0.5) -> View:
    history = History()
    for each in statuses:
        history.see(each)
    view = history.view(statuses[-1].at_ms + round(1000 * after_s))
    assert view is not None
    return view


def test_the_latency_is_the_mean_number_of_unhandled_events_by_those_handled_per_second() -> None:
    view = view_of(*(flowing(second, 1000 * second, 20) for second in range(6)))
    assert [(o.operator, o.latency_ms) for o in view.operators] == [("reader", 20.0), ("idle", -1.0)]
    assert view.operators[0].rates.handled == 1000.0
    assert view.latency_ms == pytest.approx(22.0), "the two events of the idle operator wait too"


def test_no_latency_is_told_where_nothing_was_handled_lately() -> None:
    assert view_of(flowing(0, 5, 3), flowing(1, 5, 4)).latency_ms == -1.0
    assert view_of(flowing(0, 0, 1), flowing(1, 9, 1), after_s=60.0).latency_ms == -1.0
    assert view_of(flowing(0, 0, 1)).latency_ms == -1.0


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "7", "[" * 100_000, '{"operators": 7}', '{"operators": [{"inputs": 3}]}']
)
def test_settings_that_a_forged_status_tells_break_nothing(text: str) -> None:
    assert settings_of(text).edges == ()


def test_settings_are_told_in_lines_and_a_forged_number_of_them_is_bounded() -> None:
    told = {"name": "flights", "checkpoint": {"interval": None}, "operators": [{"name": "op", "parallelism": 2}]}
    assert settings_of(json.dumps(told)) == Settings(
        (("name", "flights"), ("checkpoint.interval", "null"), ("operator op.parallelism", "2"))
    )
    assert len(settings_of(json.dumps({str(n): n for n in range(9_000)})).lines) == 2_000


def test_a_page_is_told_what_has_changed_and_nothing_twice() -> None:
    before = status(0, operators=(operator(subtask(0), subtask(1)),), checkpoints=(checkpoint(4),))
    after = status(
        1,
        operators=(operator(subtask(0, since_s=5.0), subtask(1, sent=11, since_s=5.0)),),
        checkpoints=(checkpoint(4),),
    )
    known, parts = (updates.parts_of(view_of(each, after_s=0.0)) for each in (before, after))
    changed = updates.changed(known, parts)
    assert list(changed["rows"]) == ["reader/1"]
    assert "checkpoints" not in changed and "settings" not in changed and "at_ms" in changed
    nothing = updates.changed(parts, parts)
    assert nothing == {"rows": {}, "bars": {}}
    assert updates.changed({}, parts) == parts


def test_of_a_thousand_subtasks_a_message_stays_small_and_where_nothing_happens_tells_none_of_them() -> None:
    def at(second: float, sent: int) -> JobStatus:
        rows = (
            subtask(i, attempt=10_000 + i, sent=sent, handled=sent, since_s=second, step="waiting for input", host="h")
            for i in range(1_000)
        )
        return status(second, operators=(operator(*rows),))

    told = [updates.parts_of(view_of(*statuses, after_s=0.0)) for statuses in (
        (at(0, 1_000_000),), (at(0, 1_000_000), at(1, 1_000_000)), (at(0, 1_000_000), at(1, 2_000_000)),
    )]  # fmt: skip
    whole, quiet, busy = (len(updates.text_of(updates.changed(known, parts))) for known, parts in (
        ({}, told[0]), (told[0], told[1]), (told[0], told[2]),
    ))  # fmt: skip
    assert whole < 150_000 and busy < 120_000
    assert quiet < 2_000
