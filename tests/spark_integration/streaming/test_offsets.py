"""What Spark stores, and what it is refused for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock.schemas.errors import JobRefused
from penstock.schemas.status import BatchOutcome, BatchPartition, BatchPlanned
from penstock.spark_integration.streaming.offsets import StreamOffset

FIRST = StreamOffset("penstock.flights", "reader", "topic-1")
PLANNED = BatchPlanned(
    "run", 0, BatchOutcome.PLANNED, 7, 3, (BatchPartition(0, 5, 0), BatchPartition(10, 11, 40)), ""
)  # fmt: skip


def test_an_offset_survives_json() -> None:
    offset = FIRST.followed_by(PLANNED)
    assert StreamOffset.parse(json.loads(json.dumps(offset.to_dict()))) == offset
    assert StreamOffset.parse(json.loads(json.dumps(FIRST.to_dict()))) == FIRST


def test_an_offset_has_the_documented_form() -> None:
    assert FIRST.followed_by(PLANNED).to_dict() == {
        "job": "penstock.flights",
        "operator": "reader",
        "history": "topic-1",
        "checkpoint": 7,
        "previous": -1,
        "epoch": 3,
        "partitions": [[0, 5, 0], [10, 11, 40]],
    }


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"partition-1": 3},
        FIRST.to_dict() | {"checkpoint": "7"},
        FIRST.to_dict() | {"checkpoint": True},
        FIRST.to_dict() | {"job": None},
        FIRST.to_dict() | {"partitions": None},
        FIRST.to_dict() | {"partitions": [[1, 2]]},
        FIRST.to_dict() | {"partitions": [["a", 2, 3]]},
    ],
)
def test_an_offset_of_something_else_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(JobRefused, match=r"none of a penstock source.*new checkpointLocation"):
        StreamOffset.parse(stored)


def test_the_checkpoint_of_another_job_or_operator_is_refused() -> None:
    for job, operator in (("penstock.rules", "reader"), ("penstock.flights", "writer")):
        with pytest.raises(JobRefused, match=r"was made by operator 'reader' of job penstock\.flights"):
            FIRST.require(job, operator, "topic-1")
    FIRST.require("penstock.flights", "reader", "topic-1")


def test_a_checkpoint_from_before_a_purge_is_refused() -> None:
    with pytest.raises(JobRefused, match=r"topics have been deleted since \(its history was topic-1 and is topic-2\)"):
        FIRST.require("penstock.flights", "reader", "topic-2")


def test_a_batch_whose_predecessor_is_missing_is_refused() -> None:
    offset = FIRST.followed_by(PLANNED)
    offset.require_predecessor(FIRST)
    with pytest.raises(JobRefused, match="planned behind checkpoint -1, and Spark runs it behind checkpoint 5"):
        offset.require_predecessor(replace(FIRST, checkpoint=5))
