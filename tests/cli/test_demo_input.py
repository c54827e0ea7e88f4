"""The demo's input: what is asked, and the sums that it is checked by, also on what is wrong."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli.demo.inputs import InputError, Question, Totals, question, totals_of
from penstock.cli.demo.report import natural_order
from penstock.cli.exits import UsageError

CSV = (
    "\ufeffcarrier,note,delay\r\n"
    'UA,plain,2\r\nUA,"two\nlines, and a ""quote""",-0.10\r\nAA,,NA\r\n\r\nAA,5" pipe,1e-3\r\nB6,x,\r\n'
    '"UA",y,12345678901234567890.5'
)


def test_csv_with_quotes_line_ends_and_missing_values_is_summed_exactly(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV.encode())
    expected = {
        ("UA",): Decimal("12345678901234567892.40"),
        ("AA",): Decimal("0.001"),
        ("B6",): Decimal(0),
    }
    assert totals_of(Question(str(tmp_path), ".csv", ("carrier",), "delay")) == Totals(expected, 4, 2)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_kind_of_file_has_the_same_sums(tmp_path: Path, suffix: str) -> None:
    records = [{"k": f"g{n % 3}", "m": n % 2, "v": n / 10, "note": "\u2028 not a line end"} for n in range(40)]
    file, separator = tmp_path / f"a{suffix}", "\t" if suffix == ".tsv" else ","
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), file, row_group_size=7)
    elif suffix == ".jsonl":
        file.write_text("\n\n".join(json.dumps(r, ensure_ascii=False) for r in records))
    else:
        lines = [
            separator.join(("m", "k", "v")),
            *(separator.join(map(str, (r["m"], r["k"], r["v"]))) for r in records),
        ]
        file.write_text("\n".join(lines))
    (tmp_path / f"_SUCCESS{suffix}").write_text("not data")
    (tmp_path / f".hidden{suffix}").write_text("not data")
    asked = question(tmp_path, tmp_path, "k,m", "v")
    totals = totals_of(asked)
    assert asked.files() == [file]
    assert sum(totals.sums.values()) == Decimal("78.0")
    assert (len(totals.sums), totals.values, totals.missing) == (6, 40, 0)


@pytest.mark.parametrize("value", [None, "", " NA ", "n/a", "NaN", "null", "None", math.nan, Decimal("NaN")])
def test_missing_values_are_missing(value: object) -> None:
    assert Question("", ".csv", ("g",), "v").number({"v": value}) is None


@pytest.mark.parametrize("value", ["x", "1,5", "0x10", "inf", math.inf, True, [], "1e9999", "--1"])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="is no number"):
        Question("", ".csv", ("g",), "v").number({"v": value})


@pytest.mark.parametrize(
    ("text", "number"),
    [(" 12 ", "12"), ("-.5", "-0.5"), ("+1.50", "1.50"), (0.1, "0.1"), (7, "7"), ("2e3", "2000"), ("5.", "5")],
)
def test_numbers_are_exact(text: object, number: str) -> None:
    assert Question("", ".csv", ("g",), "v").number({"v": text}) == Decimal(number)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "g,v\nx,1\ny,two\n", "a.csv, record 2: column 'v': 'two' is no number"),
        ("a.csv", "g,w\nx,1\n", "a.csv, record 1: there is no column 'v'; there are: g, w"),
        ("a.csv", "g,v\n", "the input has no records"),
        ("a.csv", "", "the input has no records"),
        ("a.jsonl", '{"g": "x", "v": 1}\n{"g": "x", "v": {}}\n', "a.jsonl, record 2: column 'v': {} is no number"),
        ("a.json", "[\n1]\n", "a.json cannot be read as json behind record 0"),
        ("a.jsonl", '{"g": ' + "[" * 5_000 + "]" * 5_000 + "}\n", "a.jsonl cannot be read as json behind record 0"),
        ("a.parquet", "no parquet", "a.parquet cannot be read as parquet"),
    ],
)
def test_what_cannot_be_summed_is_told_by_file_record_column_and_value(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as raised:
        totals_of(question(tmp_path, tmp_path / name, "g", "v"))
    assert said in str(raised.value)


def test_a_file_in_another_encoding_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("g,v\nä,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.csv cannot be read as csv behind record 0"):
        totals_of(question(tmp_path, tmp_path / "a.csv", "g", "v"))


@pytest.mark.parametrize(
    ("path", "group_by", "sum_column", "said"),
    [
        ("missing.csv", "g", "v", "there is no such file or folder"),
        ("empty", "g", "v", "no file of a known kind"),
        ("a.xlsx", "g", "v", "All names must end with the same of .csv"),
        ("mixed", "g", "v", "files of several kinds: .csv, .jsonl"),
        ("a.csv", None, "v", "--group-by"),
        ("a.csv", "g", None, "--sum"),
        ("a.csv", "g,,h", "v", "--group-by 'g,,h'"),
        ("a.csv", "v", "v", "different column names"),
    ],
)
def test_wrong_options_are_usage_errors(
    tmp_path: Path, path: str, group_by: str | None, sum_column: str | None, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    for name in ("a.csv", "mixed/a.csv", "mixed/b.jsonl"):
        (tmp_path / name).write_text("g,v\nx,1\n")
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises(UsageError) as raised:
        question(tmp_path, tmp_path / path, group_by, sum_column)
    assert said in str(raised.value)


def test_the_flights_are_all_there(tmp_path: Path) -> None:
    asked = question(tmp_path, None, None, None)
    totals = totals_of(asked)
    assert totals.values + totals.missing == 336_776
    assert (len(totals.sums), len(asked.files())) == (185, 64)


def test_groups_are_in_an_order_that_people_expect() -> None:
    groups = [("AA", "10"), ("AA", "9"), ("9E", "2"), ("AA", "x")]
    assert sorted(groups, key=natural_order) == [("9E", "2"), ("AA", "9"), ("AA", "10"), ("AA", "x")]
