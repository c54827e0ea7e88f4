"""The job's result beside the one computed directly, equal or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from .cells import EXACT, natural_order
from .direct import Totals
from .inputs import Question


@dataclass(frozen=True)
class Result:
    """What the job left behind."""

    totals: Totals
    events_sent: int
    events_handled: int
    checkpoint: int


@dataclass(frozen=True)
class Row:
    group: tuple[str, ...]
    sum: Decimal | None
    expected: Decimal | None

    @property
    def exact(self) -> bool:
        return self.sum is not None and self.sum == self.expected


def read_result(path: Path) -> Result | None:
    """The job's result, None where it left none."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    totals, handled = Totals(), 0
    for answer in found["answers"]:
        for group, amount in answer["answer"]:
            so_far = totals.sums.get(tuple(group), Decimal(0))
            totals.sums[tuple(group)] = EXACT.add(so_far, Decimal(amount))
        values, missing, handled_there = answer["counts"]
        totals.values += values
        totals.missing += missing
        handled += handled_there
    return Result(totals, found["events_sent"], handled, found["checkpoint"])


def side_by_side(result: Totals, expected: Totals) -> list[Row]:
    """Every group of either."""
    groups = sorted(result.sums.keys() | expected.sums.keys(), key=natural_order)
    return [Row(group, result.sums.get(group), expected.sums.get(group)) for group in groups]


def is_exact(result: Result | None, expected: Totals) -> bool:
    """Equal to the last digit, the counts of values and of missing ones included."""
    return (
        result is not None
        and result.totals == expected
        and all(row.exact for row in side_by_side(result.totals, expected))
    )


def plain(amount: Decimal | None) -> str | None:
    """Without an exponent: every digit shows."""
    return None if amount is None else format(amount, "f")


def json_rows(question: Question, totals: Totals) -> list[dict[str, Any]]:
    """One object per group; sums are strings, because JSON numbers would be rounded by most readers."""
    return [
        {**dict(zip(question.group_by, group, strict=True)), question.sum: plain(totals.sums[group])}
        for group in sorted(totals.sums, key=natural_order)
    ]
