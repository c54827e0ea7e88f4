"""A position that a partition does not have: whose past that is, and what then. Protocol, sections 5 and 11."""

from __future__ import annotations

import pytest

from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on

A, B = "up/0", "up/1"


def test_a_position_lost_in_a_data_partition_stops_all_reading_and_fails_the_attempt_once_all_is_read(driver, a, wire):
    d = driver(f"{A} side/0").started()
    d.fresh().feed(on.DataLost("up", len(d.log) + 3, "offset 3 of the data partition is gone, it begins at 9"))
    assert d.of(do.PauseData) == [do.PauseData("up"), do.PauseData("side")]
    d.append(wire.frame(0, b"e1"), wire.marker(1, 1))
    d.feed(on.DataRead("up", 9, a.frame(b"a1")))
    assert (d.records, d.handled, d.of(do.TakeSnapshot)) == ([], [], [])
    assert d.core.dropped["position_lost"] == 3
    assert not d.core.may_poll
    assert not d.failed
    d.append(wire.frame(1, b"e2"))
    (report,) = d.of(do.Report)
    assert "offset 3 of the data partition is gone" in str(report.error)
    assert d.failed == [str(report.error)]
    assert "--fresh" in d.failed[0]
    assert "--from-checkpoint" in d.failed[0]


def test_a_position_lost_in_a_data_partition_is_refused_at_once_where_all_events_have_been_read(driver):
    d = driver(A).started()
    d.feed(on.DataLost("up", len(d.log), "gone"))
    assert len(d.failed) == 1


def test_a_position_lost_in_a_data_partition_is_judged_behind_the_users_call_that_is_under_way(driver, wire, a):
    d = driver(A).started()
    d.append(wire.marker(1, 0))
    d.receive("up", a.barrier(1))
    d.feed(on.DataLost("up", len(d.log) + 1, "gone"))
    d.user[do.NotifyCompleted] = lambda call: seen.append(list(d.failed)) or on.Notified(1)
    seen: list[list[str]] = []
    d.append(wire.completed(1))
    assert (seen, len(d.failed)) == ([[]], 1)


@pytest.mark.parametrize("ends", ["reset", "stop", "superseded", "a newer Start"])
def test_a_position_lost_in_a_data_partition_matters_not_where_the_attempt_is_over_anyway(driver, wire, a, ends):
    """A checkpoint of its successors may have truncated it."""
    d = driver(A).started()
    d.feed(on.DataLost("up", len(d.log) + 1, "gone"))
    match ends:
        case "reset":
            d.append(wire.reset())
        case "stop":
            d.append(wire.stop())
        case "superseded":
            d.append(wire.start(attempt=99, nonce="another"))
        case "a newer Start":
            d.append(wire.start(generation=1, data_positions=(wire.at(A),), event_position=2))
            d.receive("up", type(a)(A, attempt=40, generation=1).frame(b"a1"))
            assert d.records == [b"a1"]
    d.turn(dry=True)
    assert not d.failed
    assert not d.of(do.Report)


def test_a_position_lost_twice_is_told_once_and_one_lost_outside_an_attempt_is_nothing(driver, wire):
    d = driver(A).hello()
    assert d.feed(on.DataLost("up", len(d.log) + 1, "before any Start")) == []
    assert d.core.lost is None
    d.append(wire.start(data_positions=(wire.at(A),)))
    d.feed(on.DataLost("up", len(d.log) + 1, "first"))
    assert d.feed(on.DataLost("up", len(d.log) + 1, "second")) == []
    assert d.core.lost.cause == "first"
