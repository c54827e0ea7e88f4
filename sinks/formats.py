"""How records become a file: JSON lines and Parquet; others by the same two small protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from ..schemas.errors import ConfigurationError, SubtaskError


class Writer(Protocol):
    """Writes one file."""

    def write(self, record: Any, /) -> None:
        """Raises :class:`ConfigurationError` for a record that does not fit, before any of it is in the file."""

    def close(self) -> None:
        """Everything written is handed to the operating system; the sink itself sees to it that it is on the disk."""


@runtime_checkable
class Format(Protocol):
    """Makes the writer of each file. It travels to the subtask with the job, so it should hold plain values only."""

    @property
    def suffix(self) -> str:
        """The end of each file's name, with its dot."""

    def open(self, path: Path, /) -> Writer:
        """A writer for a file that does not exist yet."""


class JsonLines:
    """One JSON value in UTF-8 per line. NaN is refused, as no JSON has it."""

    suffix = ".jsonl"

    def open(self, path: Path) -> Writer:
        return _JsonLinesWriter(path.open("xb"))

    def __repr__(self) -> str:
        return "JsonLines()"


class _JsonLinesWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, record: Any) -> None:
        try:
            line = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"a {type(record).__name__} that JSON cannot hold: {error}; override the sink's encode(record), or give"
                " the operator whose records these are a codec"
            ) from error
        self._file.write(line + b"\n")

    def close(self) -> None:
        self._file.close()


class Parquet:
    """Parquet with one schema, a ``pyarrow.Schema``; records are dicts by column name.

    A record with a key that is no column is refused, and so is one that lacks a value of a column that is not
    nullable. ``rows_per_group`` rows are kept in memory and written together.
    """

    suffix = ".parquet"

    def __init__(self, schema: Any, *, rows_per_group: int = 10_000, compression: str = "snappy") -> None:
        arrow = _pyarrow()
        if not isinstance(schema, arrow.Schema):
            raise ConfigurationError(f"Parquet takes a pyarrow.Schema, not a {type(schema).__name__}")
        if type(rows_per_group) is not int or rows_per_group < 1:
            raise ConfigurationError(f"rows_per_group must be a whole number, at least 1, not {rows_per_group!r}")
        self.schema, self.rows_per_group, self.compression = schema, rows_per_group, compression

    def open(self, path: Path) -> Writer:
        return _ParquetWriter(path, self)

    def __repr__(self) -> str:
        return f"Parquet({', '.join(self.schema.names)})"


class _ParquetWriter:
    def __init__(self, path: Path, parquet: Parquet) -> None:
        self._arrow = _pyarrow()
        import pyarrow.parquet as pq

        self._schema, self._rows_per_group = parquet.schema, parquet.rows_per_group
        self._columns = frozenset(parquet.schema.names)
        self._required = frozenset(field.name for field in parquet.schema if not field.nullable)
        self._rows: list[dict[str, Any]] = []
        self._file = path.open("xb")
        try:
            self._writer = pq.ParquetWriter(self._file, parquet.schema, compression=parquet.compression)
        except BaseException:
            self._file.close()
            raise

    def write(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise ConfigurationError(
                f"Parquet takes dicts by column name, not a {type(record).__name__}; override the sink's encode(record)"
            )
        if unknown := record.keys() - self._columns:
            raise ConfigurationError(
                f"a record has {_named(unknown)}, which is no column of the Parquet schema ({_named(self._columns)})"
            )
        if missing := {name for name in self._required if record.get(name) is None}:
            raise ConfigurationError(f"a record has no value for {_named(missing)}, which the Parquet schema requires")
        self._rows.append(dict(record))  # the caller may use its own again
        if len(self._rows) >= self._rows_per_group:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            try:
                self._writer.close()
            finally:
                self._file.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._table(), row_group_size=len(self._rows))
            self._rows = []

    def _table(self) -> Any:
        try:
            return self._arrow.Table.from_pylist(self._rows, schema=self._schema)
        except (self._arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            # Not a ConfigurationError: rows that were taken before cannot be left out any more.
            raise SubtaskError(f"records do not fit the Parquet schema: {self._first_unfit() or error}") from error

    def _first_unfit(self) -> str:
        for row in self._rows:
            for field in self._schema:
                try:
                    self._arrow.array([row.get(field.name)], type=field.type)
                except (self._arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                    return f"{field.name} should be {field.type} and is {row.get(field.name)!r:.80}: {error}"
        return ""


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError(
            "Parquet needs pyarrow, where the job is declared and where its subtasks run: pip install pyarrow (the"
            " extra penstock-spark[parquet] brings it)"
        ) from error
    return pyarrow


def _named(names: Any) -> str:
    return ", ".join(sorted(map(repr, names)))
