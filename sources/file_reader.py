"""Rows of CSV, JSON lines and Parquet files, read by pyarrow."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import IO, Any, TypeAlias

from ..errors import ConfigurationError, SubtaskError, UnreadableRecord
from .file_formats import format_of
from .row_codec import RowCodec
from .split import Split
from .split_reader import SplitReader

ROWS_AT_ONCE = 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
CHUNK_BYTES = 8 * 1024 * 1024
"""Lines of JSON are given to pyarrow together, so many bytes at most and one line."""
_CSV_OPTIONS = {"read_options": "ReadOptions", "parse_options": "ParseOptions", "convert_options": "ConvertOptions"}

Rows: TypeAlias = Iterator[tuple[Any, Any]]


class FileReader(SplitReader):
    """Reads the rows of files; ``source`` is a :class:`~penstock.sources.Files`, whose ``read`` has the arguments."""

    def __init__(
        self,
        format: str | None = None,
        *,
        schema: Any = None,
        columns: list[str] | None = None,
        batch_rows: int | None = None,
        csv: Mapping[str, Any] | None = None,
    ) -> None:
        arrow = _pyarrow()
        if schema is not None and not isinstance(schema, arrow.Schema):
            raise ConfigurationError(f"the schema of files must be a pyarrow.Schema, not a {type(schema).__name__}")
        if columns is not None and (
            not isinstance(columns, list | tuple) or not columns or not all(isinstance(name, str) for name in columns)
        ):
            raise ConfigurationError(f"the columns of files must be a list of names, not {columns!r}")
        if schema is not None and columns is not None and (unknown := set(columns) - set(schema.names)):
            raise ConfigurationError(f"the schema of files has no column {', '.join(sorted(unknown))}")
        if batch_rows is not None and (
            isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1
        ):
            raise ConfigurationError(f"batch_rows must be a whole number, at least 1, or None, not {batch_rows!r}")
        self._format = format
        self._columns = None if columns is None else list(columns)
        self._schema = schema
        if schema is not None and columns is not None:
            self._schema = arrow.schema([schema.field(name) for name in columns])
        self._batch_rows = batch_rows
        self._csv = _csv_options(csv, schema is not None or columns is not None)

    @property
    def output_codec(self) -> Any:
        """What its records travel by."""
        return RowCodec() if self._batch_rows is None else BatchCodec()

    def read(self, split: Split, position: Any) -> Rows:
        format = self._format or format_of(split.payload["url"])
        if split.payload["size"] == 0:
            return
        match format:
            case "parquet":
                yield from self._parquet(split, position)
            case "csv":
                yield from self._csv_rows(split, position)
            case "json":
                yield from self._json(split, position)
            case _:
                raise ConfigurationError(
                    f"the name of {split.payload['url']} does not say what is in it: give read(format=...), or a path"
                    " that leaves it out"
                )

    # ---- formats

    def _parquet(self, split: Split, position: Any) -> Rows:
        """A position is [row group, rows read of it]. A row group is in the part in which it begins."""
        import pyarrow.parquet as pq

        first, skip = position or (0, 0)
        start, end = split.payload["start"], split.payload["end"]
        with self.source.open(split, compression=None) as file, pq.ParquetFile(file) as parquet:
            metadata = parquet.metadata
            for group in range(first, metadata.num_row_groups):
                if metadata.num_columns and not start <= _begins(metadata.row_group(group)) < (end or float("inf")):
                    continue
                rows = self._batch_rows or ROWS_AT_ONCE
                batches = parquet.iter_batches(rows, row_groups=[group], columns=self._columns)
                for done, record in self._records(map(self._shaped, batches), skip if group == first else 0):
                    yield [group, done], record

    def _csv_rows(self, split: Split, position: Any) -> Rows:
        """A position is a number of rows. A file is read from its beginning: only that way are quotes understood."""
        from pyarrow import csv

        options = dict(self._csv)
        if self._schema is not None:
            options["convert_options"] = csv.ConvertOptions(
                column_types=self._schema, include_columns=self._schema.names
            )
        elif self._columns is not None:
            options["convert_options"] = csv.ConvertOptions(include_columns=self._columns)
        with self.source.open(split) as file, csv.open_csv(file, **options) as batches:
            yield from self._records(batches, position or 0)

    def _json(self, split: Split, position: Any) -> Rows:
        """A position is the number of bytes, decompressed, after which to go on. A line is where it begins."""
        with self.source.open(split) as file:
            lines = _lines(file, split.payload, position)
            if self._schema is None and self._batch_rows is None:
                for behind, line in lines:
                    yield behind, self._value(line)
                return
            rows = self._batch_rows or ROWS_AT_ONCE
            for chunk in _chunks(lines, rows):
                batch = self._parsed(b"".join(line for _, line in chunk))
                if batch.num_rows != len(chunk):
                    raise SubtaskError(f"{len(chunk)} lines of JSON hold {batch.num_rows} values; there is one a line")
                if self._batch_rows is not None:
                    yield chunk[-1][0], batch
                else:
                    yield from zip((behind for behind, _ in chunk), batch.to_pylist(), strict=True)

    def _value(self, line: bytes) -> Any:
        value = json.loads(line)
        if self._columns is not None:
            return {name: value.get(name) for name in self._columns}
        return value

    def _parsed(self, lines: bytes) -> Any:
        from pyarrow import json as arrow_json

        unexpected = "infer" if self._schema is None else "ignore"
        table = arrow_json.read_json(
            io.BytesIO(lines),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior=unexpected),
        )
        if self._columns is not None:
            table = table.select(self._columns)
        return _one_batch(table)

    # ---- records

    def _records(self, batches: Iterator[Any], skip: int) -> Rows:
        """Yield (rows read by then, record) for the records behind ``skip`` rows."""
        done = 0
        for batch in batches:
            rest = batch.slice(min(batch.num_rows, max(0, skip - done)))
            at = done + batch.num_rows - rest.num_rows
            if self._batch_rows is None:
                yield from enumerate(rest.to_pylist(), at + 1)
            else:
                for begin in range(0, rest.num_rows, self._batch_rows):
                    part = rest.slice(begin, self._batch_rows)
                    yield at + begin + part.num_rows, part
            done += batch.num_rows

    def _shaped(self, batch: Any) -> Any:
        if self._schema is None:
            return batch
        return _one_batch(_pyarrow().Table.from_batches([batch]).select(self._schema.names).cast(self._schema))


class BatchCodec:
    """Record batches as Arrow IPC streams: schema and one batch."""

    def encode(self, value: Any, /) -> bytes:
        arrow = _pyarrow()
        if not isinstance(value, arrow.RecordBatch):
            raise ConfigurationError(f"expected a pyarrow.RecordBatch, not a {type(value).__name__}")
        sink = io.BytesIO()
        with arrow.ipc.new_stream(sink, value.schema) as stream:
            stream.write_batch(value)
        return sink.getvalue()

    def decode(self, data: bytes, /) -> Any:
        arrow = _pyarrow()
        try:
            with arrow.ipc.open_stream(data) as stream:
                return stream.read_next_batch()
        except (arrow.ArrowException, StopIteration) as error:
            raise UnreadableRecord(f"expected a record batch in an Arrow IPC stream: {error}") from error

    def __repr__(self) -> str:
        return "BatchCodec()"


def _lines(file: IO[bytes], payload: Mapping[str, Any], position: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (offset behind it, line) for the lines that begin in this part, behind ``position``."""
    start, end, size = payload["start"], payload["end"], payload["size"]
    until = end if end != size else None  # of a compressed file the size says nothing of its lines
    if position is not None:
        at = file.seek(position)
    elif start:
        file.seek(start - 1)  # so that a line that begins right at the start is this part's
        at = start - 1 + len(_line(file))
    else:
        at = 0
    while until is None or at < until:
        line = _line(file)
        if not line:
            return
        at += len(line)
        if line.strip():
            yield at, line


def _line(file: IO[bytes]) -> bytes:
    line = file.readline(LINE_BYTES_MAX + 1)
    if len(line) > LINE_BYTES_MAX:
        raise SubtaskError(f"a line of JSON has more than {LINE_BYTES_MAX} bytes; are there newlines in this file?")
    return line


def _chunks(lines: Iterator[tuple[int, bytes]], rows: int) -> Iterator[list[tuple[int, bytes]]]:
    chunk: list[tuple[int, bytes]] = []
    size = 0
    for behind, line in lines:
        chunk.append((behind, line if line.endswith(b"\n") else line + b"\n"))
        size += len(line)
        if len(chunk) >= rows or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _begins(group: Any) -> int:
    """Return the offset in the file at which a row group's first page begins."""
    column = group.column(0)
    offsets = [column.data_page_offset]
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        offsets.append(column.dictionary_page_offset)
    return int(min(offsets))


def _one_batch(table: Any) -> Any:
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    return _pyarrow().RecordBatch.from_pylist([], schema=table.schema)


def _csv_options(given: Mapping[str, Any] | None, has_columns: bool) -> dict[str, Any]:
    if given is None:
        return {}
    from pyarrow import csv

    for name, options in given.items():
        if name not in _CSV_OPTIONS or not isinstance(options, getattr(csv, _CSV_OPTIONS[name])):
            known = ", ".join(f'"{key}": pyarrow.csv.{kind}' for key, kind in _CSV_OPTIONS.items())
            raise ConfigurationError(f"the csv options of files are {{{known}}}, not {name!r}: {options!r}")
    if has_columns and "convert_options" in given:
        raise ConfigurationError("schema and columns of files would overwrite convert_options; give one of them")
    return dict(given)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError(
            "reading rows of files needs pyarrow, where the job is declared and where its subtasks run: pip install"
            " pyarrow (the extra penstock-spark[parquet] brings it)"
        ) from error
    return pyarrow
