"""The same sums without Penstock: whole files, read in one go by the plainest means. What the demo is checked by.

It shares with the job nothing but the rule of what a number is (``cells``): no split, no byte range, no event.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from .cells import EXACT, InputError, group_text, number_of, shown
from .inputs import DELIMITERS, Question


@dataclass
class Totals:
    """Sums by group."""

    sums: dict[tuple[str, ...], Decimal] = field(default_factory=dict)
    values: int = 0
    missing: int = 0

    def add(self, group: tuple[str, ...], number: Decimal | None) -> None:
        so_far = self.sums.setdefault(group, Decimal(0))
        if number is None:
            self.missing += 1
        else:
            self.values += 1
            self.sums[group] = EXACT.add(so_far, number)


def totals_of(question: Question, archive: Path | None = None) -> Totals:
    """Reads everything; InputError for the first thing that cannot be summed. ``archive``: a zip of the only file."""
    totals = Totals()
    for index, path in enumerate(question.files):
        kind = question.kind(index)
        try:
            if kind == "parquet":
                _add_parquet(totals, question, path)
            elif archive is not None:
                with zipfile.ZipFile(archive) as opened, opened.open(Path(path).name) as member:
                    unpacked = io.TextIOWrapper(member, encoding="utf-8-sig", newline="")
                    _add_csv(totals, question, path, unpacked, DELIMITERS[kind])
            else:
                with Path(path).open(encoding="utf-8-sig", newline="" if kind in DELIMITERS else "\n") as lines:
                    if kind in DELIMITERS:
                        _add_csv(totals, question, path, lines, DELIMITERS[kind])
                    else:
                        _add_json(totals, question, path, lines)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read as {kind} in UTF-8: {error}") from error
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error}") from error
    if not totals.sums:
        raise InputError(f"the input has no records: {', '.join(question.files[:3])}")
    return totals


def _add_csv(totals: Totals, question: Question, path: str, lines: Iterable[str], delimiter: str) -> None:
    reader = csv.DictReader(lines, delimiter=delimiter, strict=False)
    _require_columns(question, path, list(reader.fieldnames or []))
    for row in reader:
        if None in (row[name] for name in (*question.group_by, question.sum)):
            raise InputError(f"{path}, line {reader.line_num}: the record has fewer fields than the header")
        _add(totals, question, path, reader.line_num, row)


def _add_json(totals: Totals, question: Question, path: str, lines: Iterable[str]) -> None:
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: one JSON object is expected per line: {error}") from error
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: a JSON object is expected, not {shown(record)}")
        seen.update(record)
        _add(totals, question, path, number, record)
    if seen:
        _require_columns(question, path, sorted(seen))


def _add_parquet(totals: Totals, question: Question, path: str) -> None:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _require_columns(question, path, list(file.schema_arrow.names))
            for number, record in enumerate(_records_of(file, question), 1):
                _add(totals, question, path, number, record)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def _records_of(file: Any, question: Question) -> Iterator[dict[str, Any]]:
    columns = list(dict.fromkeys([*question.group_by, question.sum]))
    for batch in file.iter_batches(columns=columns):
        yield from batch.to_pylist()


def _add(totals: Totals, question: Question, path: str, line: int, record: dict[str, Any]) -> None:
    cell = record.get(question.sum)
    try:
        number = number_of(cell)
    except ValueError as error:
        raise InputError(
            f"{path}, line {line}, column {question.sum!r}: {shown(cell)} is no number (missing values may be empty,"
            " NA, NaN, null or none)"
        ) from error
    group = tuple(group_text(record.get(name)) for name in question.group_by)
    for name, text in zip(question.group_by, group, strict=True):
        if not _is_unicode(text):
            raise InputError(f"{path}, line {line}, column {name!r}: {shown(text)} is half a character")
    totals.add(group, number)


def _is_unicode(text: str) -> bool:
    """Not so a lone surrogate, which JSON can spell (\\ud800): neither an event nor a terminal takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_columns(question: Question, path: str, columns: list[str]) -> None:
    for name in (*question.group_by, question.sum):
        if columns.count(name) > 1:
            raise InputError(f"{path} has {columns.count(name)} columns named {name!r}")
        if name not in columns:
            raise InputError(f"{path} has no column {name!r}; it has: {', '.join(columns) or 'none'}")
