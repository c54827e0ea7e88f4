"""Rows of files: each once, from any position, in any parts."""

from __future__ import annotations

import datetime
import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from penstock.errors import ConfigurationError, PenstockError
from penstock.sources import Files, RowCodec, Split
from penstock.sources.file_reader import BatchCodec, FileReader
from penstock.sources.listing import Listed, Progress

ROWS = [{"n": n, "name": f"row {n}" + "," * (n % 3), "half": n / 2} for n in range(3_000)]


def parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=250)


def csv(path: Path) -> None:
    pa_csv.write_csv(pa.Table.from_pylist(ROWS), path)


def json_lines(path: Path) -> None:
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + ("" if path.name.startswith("no-newline") else "\n\n"))


def gzipped_json(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in ROWS).encode()))


def gzipped_csv(path: Path) -> None:
    csv(plain := path.with_name("plain.csv"))
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.parquet": parquet,
    "a.csv": csv,
    "a.jsonl": json_lines,
    "no-newline.json": json_lines,
    "a.ndjson.gz": gzipped_json,
    "a.csv.gz": gzipped_csv,
}
every_format = pytest.mark.parametrize("name", WRITERS)


def reader_and_splits(path: Path, **options: Any) -> tuple[FileReader, list[Split]]:
    """The reader of ``Files(path).read(...)``, and what it is given."""
    _, reader, _ = Files(str(path)).read(**options)["subtask"].args
    source = Files(str(path)).read(**options)["coordinator"].args[0]
    made: FileReader = reader()
    made.source = source
    splits = []
    for found in source.walk(Progress()):
        assert isinstance(found, Listed)
        parts, rest = 0, found.split
        while rest is not None:
            split, rest = source.cut(rest)
            splits.append(Split.from_json(json.loads(json.dumps(split.to_json()))))
            parts += 1
        assert parts == source.parts(found.split)
    return made, splits


def rows_of(path: Path, **options: Any) -> list[Any]:
    reader, splits = reader_and_splits(path, **options)
    return [row for split in splits for _, row in reader.read(split, None)]


@every_format
def test_rows_are_dicts(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert rows_of(tmp_path) == ROWS


@every_format
@pytest.mark.parametrize("split_bytes", [1_000, 20_011, 65_536])
def test_parts_of_a_file_hold_each_row_once(tmp_path: Path, name: str, split_bytes: int) -> None:
    WRITERS[name](tmp_path / name)
    _, splits = reader_and_splits(tmp_path, split_bytes=split_bytes)
    assert (len(splits) > 1) == (not name.endswith(("csv", "gz")) and (tmp_path / name).stat().st_size > split_bytes)
    assert len({split.id for split in splits}) == len(splits)
    assert rows_of(tmp_path, split_bytes=split_bytes) == ROWS


def test_a_line_that_begins_right_at_a_part_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("".join(f"{n:04}"[::-1].replace("0", "7") + "\n" for n in range(40)))
    whole = rows_of(tmp_path)
    for split_bytes in range(1, 30):
        assert rows_of(tmp_path, split_bytes=split_bytes) == whole


@every_format
@pytest.mark.parametrize("more", [{}, {"batch_rows": 70}], ids=["rows", "batches"])
def test_a_split_goes_on_behind_any_position(tmp_path: Path, name: str, more: dict[str, Any]) -> None:
    WRITERS[name](tmp_path / name)

    def rows(record: Any) -> list[Any]:
        return record.to_pylist() if more else [record]

    reader, splits = reader_and_splits(tmp_path, split_bytes=40_000, **more)
    read = []
    for split in splits:
        whole = [(json.loads(json.dumps(position)), rows(record)) for position, record in reader.read(split, None)]
        read += [row for _, some in whole for row in some]
        for at in (0, len(whole) // 3, len(whole) - 1):
            if at < len(whole):
                rest = [row for _, record in reader.read(split, whole[at][0]) for row in rows(record)]
                assert rest == [row for _, some in whole[at + 1 :] for row in some]
    assert read == ROWS


@every_format
def test_columns_and_a_schema_shape_the_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert rows_of(tmp_path, columns=["n"]) == [{"n": row["n"]} for row in ROWS]
    schema = pa.schema([("n", pa.float64()), ("half", pa.float32())])
    shaped = [{"n": float(row["n"]), "half": row["half"]} for row in ROWS]
    assert rows_of(tmp_path, schema=schema) == shaped
    assert rows_of(tmp_path, schema=schema, columns=["half"]) == [{"half": row["half"]} for row in ROWS]


def test_csv_is_read_with_pyarrows_own_options(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("007;x\n008;y\n")
    options = {
        "read_options": pa_csv.ReadOptions(column_names=["code", "letter"]),
        "parse_options": pa_csv.ParseOptions(delimiter=";"),
        "convert_options": pa_csv.ConvertOptions(column_types={"code": pa.string()}),
    }
    assert rows_of(tmp_path, csv=options) == [{"code": "007", "letter": "x"}, {"code": "008", "letter": "y"}]


def test_files_without_rows_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,name\n")
    for name in ("b.csv", "c.json"):
        (tmp_path / name).touch()
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "d.parquet")
    assert rows_of(tmp_path) == []


def test_a_row_that_is_none_of_its_format_fails(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n{"n": \n')
    with pytest.raises(ValueError, match="Expecting value"):
        rows_of(tmp_path)
    with pytest.raises(pa.ArrowInvalid):
        rows_of(tmp_path, batch_rows=10)
    (tmp_path / "a.json").write_text('{"n": 1}{"n": 2}\n')
    with pytest.raises(PenstockError, match="one a line"):
        rows_of(tmp_path, batch_rows=10)


def test_a_name_that_does_not_say_the_format_is_refused_unless_the_format_is_given(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text("n\n1\n")
    with pytest.raises(ConfigurationError, match=r"part-0 does not say what is in it"):
        rows_of(tmp_path)
    assert rows_of(tmp_path, format="csv") == [{"n": 1}]


def test_rows_of_any_type_travel_as_json() -> None:
    row = {
        "day": datetime.date(2024, 5, 1),
        "at": datetime.datetime(2024, 5, 1, 12, 30, tzinfo=datetime.UTC),
        "price": Decimal("1.10"),
        "bytes": b"\xff",
        "nan": float("nan"),
        "low": [float("-inf")],
        "name": "é",
    }
    codec = RowCodec()
    assert codec.decode(codec.encode(row)) == {
        "day": "2024-05-01",
        "at": "2024-05-01T12:30:00+00:00",
        "price": "1.10",
        "bytes": "/w==",
        "nan": "NaN",
        "low": ["-Infinity"],
        "name": "é",
    }
    with pytest.raises(ConfigurationError, match="a set"):
        codec.encode({"n": {1}})
    with pytest.raises(PenstockError):
        codec.decode(b"{")


def test_batches_travel_as_arrow_streams() -> None:
    codec, batch = BatchCodec(), pa.RecordBatch.from_pylist(ROWS[:10])
    assert codec.decode(codec.encode(batch.slice(3, 4))).to_pylist() == ROWS[3:7]
    with pytest.raises(ConfigurationError, match="RecordBatch"):
        codec.encode({"n": 1})
    with pytest.raises(PenstockError):
        codec.decode(b"no stream")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "avro"}, "must be one of csv, json, parquet"),
        ({"schema": {"n": int}}, "pyarrow.Schema"),
        ({"columns": "n"}, "columns"),
        ({"schema": pa.schema([("n", pa.int64())]), "columns": ["m"]}, "no column m"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"split_bytes": 0}, "split_bytes"),
        ({"csv": {"delimiter": ";"}}, "csv options"),
        ({"columns": ["n"], "csv": {"convert_options": pa_csv.ConvertOptions()}}, "overwrite convert_options"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Files("/in").read(**options)
