"""What rows become in a table: types, partitions, statistics, file sizes; and what is refused, by name."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.tables import Delta, Iceberg

from .driving import Driven, written
from .jobs import SCHEMA, Place

UTC = datetime.UTC
WHEN = datetime.datetime(2013, 1, 31, 23, 59, 59, 123456)
TYPES = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("small", pa.int32()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("yes", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("money", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("list", pa.list_(pa.int32())),
        ("struct", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
ROW: dict[str, Any] = {
    "n": 1, "small": -3, "real": 0.5, "text": "ä b/%", "yes": True, "day": WHEN.date(), "at": WHEN.replace(tzinfo=UTC),
    "local": WHEN, "money": decimal.Decimal("12.30"), "raw": b"\0\1", "list": [1, None], "struct": {"x": 1, "y": "z"},
}  # fmt: skip


def rows_by_the_library(place: Place) -> list[dict[str, Any]]:
    if place.kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(place.folder / "table")).to_pyarrow_table()
    else:
        found = place.table().load_catalog().load_table("db.rows").scan().to_arrow()  # type: ignore[attr-defined]
    return sorted(found.to_pylist(), key=lambda row: row["n"])


def test_every_type_comes_back_as_it_was(place: Place) -> None:
    written(place.table(TYPES), ROW, {"n": 2})
    first, second = rows_by_the_library(place)
    assert first == ROW
    assert second == {"n": 2} | dict.fromkeys(TYPES.names[1:])
    assert len(place.read().rows) == 2


def test_batches_and_dicts_go_into_one_file_in_their_order(place: Place) -> None:
    batch = pa.RecordBatch.from_pylist([{"letter": "b", "n": 2}, {"letter": "c", "n": 3}])
    driven = Driven(place.table())
    driven.writer.process({"n": 1, "letter": "a"}, "numbers")
    driven.writer.process(batch, "numbers")
    driven.writer.process_rows(pa.RecordBatch.from_pylist([{"n": pa.scalar(4, pa.int32())}]))
    driven.writer.process(pa.table({"n": [5]}), "numbers")
    assert driven.commit() == 5
    seen = place.read()
    assert [(row["n"], row["letter"]) for row in seen.rows] == [(1, "a"), (2, "b"), (3, "c"), (4, None), (5, None)]
    assert len(seen.files) == 1


def test_encode_says_what_the_table_holds_for_a_record(place: Place) -> None:
    driven = Driven(place.table(), lambda record: {"n": record[0], "letter": record[1]})
    driven.writer.process((1, "a"), "numbers")
    assert driven.commit() == 1
    assert place.numbers() == [1]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"n": 1, "lettre": "a"}, r"fields \['lettre'\], which the sink's schema lacks.*schema_mode='merge'"),
        ({"n": "one"}, "a value does not fit the field 'n' of type int64"),
        ({"letter": "a"}, "1 rows have no value for the field 'n', which is not nullable"),
        (pa.table({"n": [1], "x": [2]}), r"fields \['x'\]"),
        (pa.table({"n": ["one"]}), "a value does not fit the field 'n'"),
        (pa.table({"letter": ["a"]}), "1 rows have no value for the field 'n'"),
        ([1], "must be a dict, or a pyarrow RecordBatch or Table, not list.*encode="),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_name(tmp_path: Path, rows: Any, said: str) -> None:
    driven = Driven(Place("delta", tmp_path).table())
    with pytest.raises(ConfigurationError, match=rf"subtask out/1 of job 'rows': .*{said}"):
        driven.write(rows)


# ---- partitions


PARTITIONED = pa.schema([("n", pa.int64()), ("carrier", pa.string()), ("day", pa.date32()), ("yes", pa.bool_())])


def test_a_partitioned_delta_table_has_the_values_in_its_log(tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    day = datetime.date(2013, 1, 1)
    rows = [
        {"n": 1, "carrier": "UA", "day": day, "yes": True},
        {"n": 2, "carrier": "ä b/%=?", "day": day, "yes": None},
        {"n": 3, "carrier": None, "day": None, "yes": False},
        {"n": 4, "carrier": "UA", "day": day, "yes": True},
    ]
    written(place.table(PARTITIONED, partition_by=["carrier", "day", "yes"]), *rows)
    seen = place.read()
    by_number = {row["n"]: (row["carrier"], row["day"], row["yes"]) for row in seen.rows}
    assert by_number == {
        1: ("UA", "2013-01-01", "true"),
        2: ("ä b/%=?", "2013-01-01", None),
        3: (None, None, "false"),
        4: ("UA", "2013-01-01", "true"),
    }
    assert len(seen.files) == 3
    assert any(path.startswith("carrier=UA/day=2013-01-01/yes=true/rows.out.1.e2.a17.") for path in seen.files)
    assert rows_by_the_library(place) == rows


def test_a_partition_by_time_is_the_same_instant_again(tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us"))])
    row = {"n": 1, "at": WHEN.replace(tzinfo=UTC), "local": WHEN}
    written(place.table(schema, partition_by=["at", "local"]), row)
    assert rows_by_the_library(place) == [row]


def test_a_partitioned_iceberg_table_is_written_by_its_transforms(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path)
    schema = pa.schema([("n", pa.int64()), ("carrier", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    table = place.table(schema, partition_by=["carrier", "days(at)", "bucket(4, n)"])
    at = WHEN.replace(tzinfo=UTC)
    rows = [{"n": n, "carrier": "UA" if n % 2 else None, "at": at} for n in range(20)]
    written(table, *rows)
    assert rows_by_the_library(place) == rows
    scan = table.load_catalog().load_table("db.rows")  # type: ignore[attr-defined]
    assert [str(each.transform) for each in scan.spec().fields] == ["identity", "day", "bucket[4]"]
    found = scan.scan(row_filter="carrier = 'UA' and n = 7").to_arrow().to_pylist()
    assert [row["n"] for row in found] == [7]
    assert len(list(scan.scan(row_filter="n = 7").plan_files())) < len(place.read().files)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition_by": ["x"]}, "names 'x', which its schema lacks"),
        ({"partition_by": ["n", "n"]}, "each column once"),
        ({"partition_by": ["n", "letter"]}, "leave one for the files"),
        ({"schema_mode": "overwrite"}, "schema_mode of .* must be 'merge' or None"),
        ({"target_file_size": 0}, "target_file_size of .* must be a number above 0"),
        ({"schema": pa.schema([("d", pa.duration("s"))])}, "no type for the field 'd'"),
        ({"schema": pa.schema([("d", pa.null())])}, "'d'.*needs a type"),
        ({"schema": {"n": int}}, "must be a pyarrow.Schema"),
        ({"schema": pa.schema([("n", pa.int64()), ("n", pa.int64())])}, "two fields 'n'"),
        ({"schema": pa.schema([("n", pa.int64()), ("x", pa.float64())]), "partition_by": "x"}, "cannot be partitioned"),
    ],
)
def test_options_of_a_delta_table_are_checked_where_they_are_given(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Delta("/data/table", **{"schema": SCHEMA, **options})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("c", "rows", SCHEMA), "is like 'db.flights'"),
        ((7, "db.rows", SCHEMA), "must be a name, a mapping of properties or a pyiceberg Catalog, not int"),
        (("c", "db.rows", SCHEMA, "days(x)"), "names 'x', which its schema lacks"),
        (("c", "db.rows", SCHEMA, "days(n"), r"has 'days\(n'"),
    ],
)
def test_options_of_an_iceberg_table_are_checked_where_they_are_given(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Iceberg(*arguments[:3], partition_by=arguments[3:])


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="absolute path or a URL, not 'table'"):
        Delta("table", SCHEMA)


def test_an_empty_text_in_a_partition_column_is_refused_since_delta_reads_it_as_null(tmp_path: Path) -> None:
    driven = Driven(Place("delta", tmp_path).table(partition_by=["letter"]))
    with pytest.raises(ConfigurationError, match="empty text in the partition column 'letter'"):
        driven.write({"n": 1, "letter": ""})


# ---- files


def test_a_file_is_closed_and_announced_when_it_reaches_its_target_size(place: Place) -> None:
    driven = Driven(place.table(target_file_size=20_000, buffer_bytes=10_000))
    for begin in range(0, 50_000, 1000):
        numbers = pa.array([(n * 2654435761) % 2**62 for n in range(begin, begin + 1000)])
        driven.writer.write(pa.table({"n": numbers}))
    announced = len(driven.files)
    assert announced > 5
    assert all(20_000 <= file["size"] < 60_000 for file in driven.files)
    assert driven.commit() == 50_000
    assert len(place.read().rows) == 50_000


def test_more_partitions_than_may_be_open_close_files_early_and_lose_nothing(tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    driven = Driven(place.table(partition_by=["letter"], buffer_bytes=100))
    for n in range(300):
        driven.writer.write(pa.table({"n": [n], "letter": [f"l{n % 100}"]}))
    assert driven.commit() == 300
    place.check(list(range(300)))


def test_an_attempt_that_is_closed_leaves_no_open_file(place: Place) -> None:
    driven = Driven(place.table(buffer_bytes=1))
    driven.writer.write(pa.table({"n": [1]}))
    driven.writer.close()
    assert driven.files == []
    assert place.data_files() == set()


# ---- statistics


def test_delta_statistics_are_bounds_and_leave_out_what_they_cannot_say(tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    table = place.table(TYPES, buffer_bytes=1)
    rows = [
        ROW | {"n": 1, "real": 1.5, "text": "b"},
        ROW | {"n": 7, "real": math.nan, "text": "a"},
        {"n": 3},
    ]
    driven = Driven(table)
    for row in rows:  # a row group each
        driven.writer.write(pa.Table.from_pylist([row], schema=TYPES))
    driven.writer.snapshot_state(1)
    (stats,) = [json.loads(file["stats"]) for file in driven.files]
    assert stats["numRecords"] == 3
    assert (stats["minValues"]["n"], stats["maxValues"]["n"]) == (1, 7)
    assert (stats["minValues"]["text"], stats["maxValues"]["text"]) == ("a", "b")
    assert stats["maxValues"]["day"] == "2013-01-31"
    assert stats["maxValues"]["at"] == "2013-01-31T23:59:59.123456Z"
    assert stats["maxValues"]["local"] == "2013-01-31T23:59:59.123456"
    assert not {"real", "struct.x", "list", "raw"} & stats["maxValues"].keys()
    assert {name: stats["nullCount"][name] for name in ("n", "real", "text")} == {"n": 0, "real": 1, "text": 1}
    driven.commit()
    from deltalake import DeltaTable

    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_dataset()
    import pyarrow.compute as pc

    assert found.to_table(filter=pc.field("n") == 7).num_rows == 1
    assert found.to_table(filter=pc.field("at") == pa.scalar(WHEN.replace(tzinfo=UTC))).num_rows == 2


# ---- what travels


def test_a_sink_travels_by_pickle_and_importing_it_loads_no_library(place: Place) -> None:
    assert pickle.loads(pickle.dumps(place.table().sink())).keys() == place.table().sink().keys()
    code = (
        "import sys, penstock.tables\n"
        "found = {'pyarrow', 'deltalake', 'pyiceberg', 'pyspark'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("library", "extra"), [("deltalake", "delta"), ("pyiceberg", "iceberg"), ("pyarrow", "parquet")]
)
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    place = Place("iceberg" if extra == "iceberg" else "delta", tmp_path)
    with pytest.raises(ConfigurationError, match=rf"penstock-spark\[{extra}\]"):
        place.table().layout()
