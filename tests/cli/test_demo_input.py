"""The demo's input: every record is in exactly one split, and both ways of reading agree, also on what is wrong."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli.demo.cells import EXACT, InputError, natural_order, number_of
from penstock.cli.demo.direct import Totals, totals_of
from penstock.cli.demo.inputs import Question, cut, files_of
from penstock.cli.demo.setup import set_up
from penstock.cli.demo.split_reader import SplitReader
from penstock.cli.exits import UsageError

CSV = (
    "\ufeffcarrier,note,delay\r\n"
    'UA,plain,2\r\nUA,"two\nlines, and a ""quote""",-0.10\r\nAA,,NA\r\n\r\nAA,5" pipe,1e-3\r\nB6,x,\r\n'
    '"UA",y,12345678901234567890.5'
)


def by_splits(question: Question, splits_wanted: int) -> Totals:
    reader, totals = SplitReader(question), Totals()
    for split in cut(question, splits_wanted):
        sums, values, missing = reader.sums(split)
        for group, amount in sums.items():
            totals.sums[group] = EXACT.add(totals.sums.get(group, Decimal(0)), amount)
        totals.values += values
        totals.missing += missing
    return totals


@pytest.mark.parametrize("splits_wanted", [1, 2, 3, 100])
def test_csv_with_quotes_line_ends_and_missing_values_is_summed_exactly(tmp_path: Path, splits_wanted: int) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(CSV.encode())
    question = Question((str(file),), ("carrier",), "delay")
    expected = {
        ("UA",): Decimal("12345678901234567892.40"),
        ("AA",): Decimal("0.001"),
        ("B6",): Decimal(0),
    }
    assert totals_of(question) == by_splits(question, splits_wanted) == Totals(expected, 4, 2)


@pytest.mark.parametrize("splits_wanted", [1, 3, 100])
def test_a_folder_of_kinds_is_one_input(tmp_path: Path, splits_wanted: int) -> None:
    records = [{"k": f"g{n % 3}", "m": n % 2, "v": n / 10, "note": "\u2028 not a line end"} for n in range(40)]
    (tmp_path / "a.csv").write_text("m,k,v\n" + "".join(f"{r['m']},{r['k']},{r['v']}\n" for r in records))
    (tmp_path / "b.tsv").write_text("v\tk\tm\n" + "".join(f"{r['v']}\t{r['k']}\t{r['m']}\n" for r in records))
    lines = [json.dumps(r, ensure_ascii=False) for r in records]
    (tmp_path / "c.jsonl").write_text("\n".join(lines[:20]) + "\n\n" + "\n".join(lines[20:]))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "d.parquet", row_group_size=7)
    (tmp_path / "_SUCCESS.csv").write_text("not data")
    (tmp_path / ".hidden.csv").write_text("not data")
    question = Question(files_of(tmp_path), ("k", "m"), "v")
    totals = totals_of(question)
    assert by_splits(question, splits_wanted) == totals
    assert len(question.files) == 4
    assert sum(totals.sums.values()) == 4 * Decimal("78.0")
    assert (totals.values, totals.missing) == (160, 0)


@pytest.mark.parametrize("value", [None, "", " NA ", "n/a", "NaN", "null", "None", math.nan, Decimal("NaN")])
def test_missing_values_are_missing(value: object) -> None:
    assert number_of(value) is None


@pytest.mark.parametrize(
    "value", ["x", "1,5", "1_000", "0x10", "inf", math.inf, True, [], "1e9999", "\u0663", "--1", "1" * 500]
)
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"number|a truth value|a list"):
        number_of(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [(" 12 ", "12"), ("-.5", "-0.5"), ("+1.50", "1.50"), (0.1, "0.1"), (7, "7"), ("2e3", "2000"), ("5.", "5")],
)
def test_numbers_are_exact(text: object, number: str) -> None:
    assert number_of(text) == Decimal(number)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "g,v\nx,1\ny,two\n", "a.csv, line 3, column 'v': 'two' is no number"),
        ("a.csv", "g,v\nx\n", "a.csv, line 2: the record has fewer fields than the header"),
        ("a.csv", "g,w\nx,1\n", "a.csv has no column 'v'; it has: g, w"),
        ("a.csv", "g,v,v\nx,1,2\n", "a.csv has 2 columns named 'v'"),
        ("a.csv", "g,v\n", "the input has no records"),
        ("a.csv", "", "a.csv has no column 'g'; it has: none"),
        ("a.jsonl", '{"g": "x", "v": 1}\n{"g": "x", "v": {}}\n', "a.jsonl, line 2, column 'v': {} is no number"),
        ("a.jsonl", '{"g": "x", "v": true}\n', "a.jsonl, line 1, column 'v': True is no number"),
        ("a.json", "[\n1]\n", "a.json, line 1: one JSON object is expected per line"),
        (
            "a.jsonl",
            '{"g": ' + "[" * 5_000 + "]" * 5_000 + "}\n",
            "a.jsonl, line 1: one JSON object is expected per line",
        ),
        ("a.jsonl", '{"g": "\\ud800", "v": 1}\n', "a.jsonl, line 1, column 'g': '\\ud800' is half a character"),
        ("a.jsonl", "[1]\n", "a.jsonl, line 1: a JSON object is expected, not [1]"),
        ("a.parquet", "no parquet", "a.parquet cannot be read as Parquet"),
    ],
)
def test_what_cannot_be_summed_is_told_by_file_line_column_and_value(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as raised:
        set_up(tmp_path, tmp_path / name, "g", "v", ())
    assert said in str(raised.value)


def test_a_file_in_another_encoding_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("g,v\nä,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.csv cannot be read as csv in UTF-8"):
        set_up(tmp_path, tmp_path / "a.csv", "g", "v", ())


@pytest.mark.parametrize(
    ("path", "group_by", "sum_column", "said"),
    [
        ("missing.csv", "g", "v", "there is no such file or folder"),
        ("empty", "g", "v", "no file in this folder"),
        ("a.xlsx", "g", "v", "its name must end with one of"),
        ("a.csv", None, "v", "--group-by"),
        ("a.csv", "g", None, "--sum"),
        ("a.csv", "g,,h", "v", "--group-by 'g,,h'"),
        ("a.csv", "v", "v", "--sum 'v' is one of the --group-by columns"),
    ],
)
def test_wrong_options_are_usage_errors(
    tmp_path: Path, path: str, group_by: str | None, sum_column: str | None, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").write_text("g,v\nx,1\n")
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises((UsageError, InputError)) as raised:
        set_up(tmp_path, tmp_path / path, group_by, sum_column, ())
    assert said in str(raised.value)


def test_the_flights_are_all_there(tmp_path: Path) -> None:
    work = set_up(tmp_path, None, None, None, ())
    assert work.expected.values + work.expected.missing == 336_776
    assert len(work.expected.sums) == 185
    assert work.splits[0].begin > 0
    assert all(a.end == b.begin for a, b in zip(work.splits, work.splits[1:], strict=False))


def test_groups_are_in_an_order_that_people_expect() -> None:
    groups = [("AA", "10"), ("AA", "9"), ("9E", "2"), ("AA", "x")]
    assert sorted(groups, key=natural_order) == [("9E", "2"), ("AA", "9"), ("AA", "10"), ("AA", "x")]
