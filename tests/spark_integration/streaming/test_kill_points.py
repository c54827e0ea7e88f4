"""A batch that runs again gets the same events, wherever its query was killed; and nothing is lost or doubled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.broker import EmbeddedBroker
from tests.rounds import rounds

from . import thousand
from .kill_points import (
    ELSEWHERE,
    IN_THE_DRIVER,
    SAME_REMAINS,
    Row,
    Story,
    compared,
    expected_to_run,
    java_options,
    not_exact,
    run,
)
from .struck import COLUMNS, DONE

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.soak]

POINTS = {"driver": IN_THE_DRIVER, "elsewhere": ELSEWHERE}


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    return java_options(tmp_path_factory.mktemp("java"))


@pytest.mark.timeout(3000)  # a driver for each point
@pytest.mark.parametrize("coordinator", POINTS)
@pytest.mark.parametrize("round_", rounds())
def test_a_batch_that_runs_again_gets_the_same_events_wherever_its_query_was_killed(
    kafka_broker: EmbeddedBroker, tmp_path: Path, round_: int, coordinator: str, job_name: str, java: str
) -> None:
    points = [point for point in POINTS[coordinator] if round_ or point[0] not in SAME_REMAINS]
    story = run(tmp_path / "job", f"points-{job_name}", kafka_broker.bootstrap, coordinator, points, java)
    assert not story.wrong
    assert [(row.point, row.commit_lost) for row in story.rows] == points
    for row in story.rows:
        assert (row.first is not None, row.second is not None) == expected_to_run(row), row
        assert row.identical, row
        assert row.exact, row


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("round_", rounds())
def test_a_query_whose_processes_are_killed_at_random_writes_every_event_once(
    kafka_broker: EmbeddedBroker, tmp_path: Path, round_: int, job_name: str, java: str
) -> None:
    name = f"thousand-{job_name}"
    account = thousand.run(tmp_path / "job", name, kafka_broker.bootstrap, 60, 4, round_, java, print)
    assert not account.wrong
    assert account.kills == dict.fromkeys(thousand.KINDS, 1)


def test_what_is_missing_doubled_or_out_of_order_is_seen() -> None:
    """The account that the tests above trust."""
    whole = [
        {"subtask": subtask, "sequence": n, "number": n, "batch_id": n // 2, "checkpoint_id": 1 + n // 2}
        for subtask in (0, 1)
        for n in range(6)
    ]
    ended = {"sent": [6, 6], "received": [6, 6], "wrong": []}
    assert not_exact(whole, ended) == []
    assert not_exact(whole[:-1], ended) == ["subtask 1: 6 were sent, and the files hold 5"]
    assert "5 in place of 6" in str(not_exact([*whole, whole[5]], ended))
    swapped = [*whole[:4], {**whole[4], "number": 5}, {**whole[5], "number": 4}, *whole[6:]]
    assert "5 in place of 4" in str(not_exact(swapped, ended))
    assert "batch 0 holds checkpoints {1, 7}" in str(not_exact([{**whole[0], "checkpoint_id": 7}, *whole[1:]], ended))
    assert "two batches hold the same checkpoint" in str(not_exact([{**r, "checkpoint_id": 1} for r in whole], ended))
    assert not_exact(whole, {**ended, "received": [6, 5]})
    assert not_exact(whole, {**ended, "wrong": [[0, 1, 2, 3, 4]]})


def test_a_batch_that_got_other_events_the_second_time_is_seen(tmp_path: Path) -> None:
    rows = [[0, 5, '{"number": 0}', 7, 1], [1, 5, '{"number": 0}', 9, 1]]
    named = [dict(zip(COLUMNS, row, strict=True)) | {"number": 0, "batch_id": 0} for row in rows]
    (tmp_path / "out").mkdir()
    parquet.write_table(
        pa.Table.from_pylist([row | {"event": str(row["event"]).encode()} for row in named]),
        tmp_path / "out" / "part.parquet",
    )
    ended = {"sent": [1, 1], "received": [1, 1], "wrong": []}
    kills = [(0, DONE, False, 0)]

    def story(first: list[Any], second: list[Any], read: list[Any]) -> Story:
        for path, seen in (("0/0.function", first), ("1/0.function", second), ("1/0.task.0.17", read)):
            (tmp_path / "seen" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "seen" / f"{path}.json").write_text(json.dumps(seen))
        return compared(tmp_path, "driver", kills, ended)

    whole = story(rows, rows, rows[:1])
    assert not whole.wrong
    assert whole.rows == [Row("driver", DONE, False, 0, rows, rows, True, True)]
    moved = [[0, 5, '{"number": 0}', 8, 1], rows[1]]
    for changed in (story(moved, rows, rows[:1]), story(rows, rows[:1], rows[:1])):
        assert (changed.rows[0].identical, changed.rows[0].exact) == (False, False)
        assert len(changed.wrong) == 1
    assert "1, 0.task.0.17.json has seen" in str(story(rows, rows, moved[:1]).wrong)
