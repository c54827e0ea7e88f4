"""Reads one split: the records of a byte range or a row range, as (line, group, value)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from .cells import InputError, group_text, number_of, shown
from .inputs import DELIMITERS, Question, Split

Record = tuple[int, tuple[str, ...], Any]


class SplitReader:
    """Reads splits of one question's files; keeps what the next split of the same file needs again."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._columns: dict[int, tuple[list[int], int]] = {}
        self._row_group: tuple[tuple[int, int], Any] | None = None

    def sums(self, split: Split) -> tuple[dict[tuple[str, ...], Decimal], int, int]:
        """The split's sums by group, and how many values were there and how many missing."""
        from .cells import EXACT

        sums: dict[tuple[str, ...], Decimal] = {}
        values = missing = 0
        for line, group, cell in self._records(split):
            number = self._number(split, line, cell)
            if number is None:
                missing += 1
                sums.setdefault(group, Decimal(0))
            else:
                values += 1
                sums[group] = EXACT.add(sums.get(group, Decimal(0)), number)
        return sums, values, missing

    def _number(self, split: Split, line: int, cell: Any) -> Decimal | None:
        try:
            return number_of(cell)
        except ValueError as error:
            path = self._question.files[split.file]
            raise InputError(
                f"{path}, line {line}, column {self._question.sum!r}: {shown(cell)} is no number"
            ) from error

    def _records(self, split: Split) -> Iterator[Record]:
        kind = self._question.kind(split.file)
        if kind == "parquet":
            return self._parquet(split)
        with Path(self._question.files[split.file]).open("rb") as file:
            file.seek(split.begin)
            text = file.read(split.end - split.begin).decode("utf-8-sig" if split.begin == 0 else "utf-8")
        return self._csv(split, text, DELIMITERS[kind]) if kind in DELIMITERS else self._json(split, text)

    def _csv(self, split: Split, text: str, delimiter: str) -> Iterator[Record]:
        group, value = self._csv_columns(split.file, delimiter)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        for row in reader:
            if row:
                yield split.first_line + reader.line_num - 1, tuple(row[i] for i in group), row[value]

    def _csv_columns(self, file: int, delimiter: str) -> tuple[list[int], int]:
        if file not in self._columns:
            with Path(self._question.files[file]).open(encoding="utf-8-sig", newline="") as opened:
                header = next(csv.reader(opened, delimiter=delimiter))
            question = self._question
            self._columns[file] = [header.index(name) for name in question.group_by], header.index(question.sum)
        return self._columns[file]

    def _json(self, split: Split, text: str) -> Iterator[Record]:
        question = self._question
        for line, record in enumerate(text.split("\n"), split.first_line):
            if record.strip():
                fields = json.loads(record, parse_float=Decimal)
                yield line, tuple(group_text(fields.get(name)) for name in question.group_by), fields.get(question.sum)

    def _parquet(self, split: Split) -> Iterator[Record]:
        import pyarrow.parquet as pq

        question, which = self._question, (split.file, split.row_group)
        if self._row_group is None or self._row_group[0] != which:
            columns = list(dict.fromkeys([*question.group_by, question.sum]))
            with pq.ParquetFile(question.files[split.file]) as file:
                self._row_group = which, file.read_row_group(split.row_group, columns=columns)
        rows = self._row_group[1].slice(split.begin, split.end - split.begin).to_pylist()
        for line, row in enumerate(rows, split.first_line):
            yield line, tuple(group_text(row[name]) for name in question.group_by), row[question.sum]
