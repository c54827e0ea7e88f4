"""What the formats write, read back by somebody else; what they refuse; what they need."""

from __future__ import annotations

import datetime
import functools
import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.schemas.errors import ConfigurationError, StateError, SubtaskError
from penstock.sinks import FileSink, Format, JsonLines, Parquet

from .driving import opened, records, restored, snapshot, visible, write

SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("delay", pa.int32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)


def row(delay: Any, **changes: Any) -> dict[str, Any]:
    return {"carrier": "ÜA", "delay": delay, "at": NOON, "tags": ["a", "b"], **changes}


def completed(sink: FileSink, n: int) -> None:
    snapshot(sink, n)
    sink.notify_checkpoint_complete(n)


def parquet_sink(folder: Path, attempt: int = 1, **options: Any) -> FileSink:
    return opened(folder, attempt, sink=FileSink(folder, Parquet(SCHEMA, **options)))


# ---- Parquet


def test_parquet_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    sink = parquet_sink(tmp_path)
    for n in (1, 2):
        write(sink, row(10 * n), row(None, tags=None), {"carrier": "B6"})
        completed(sink, n)
    write(sink, row(30))
    snapshot(sink, 3)
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".parquet"] * 2
    for path in tmp_path.glob("*.parquet"):
        assert pq.read_schema(path).equals(SCHEMA)
    read = ds.dataset(tmp_path, format="parquet").to_table().to_pylist()  # as readers do: hidden names are passed over
    empty = {"carrier": "B6", "delay": None, "at": None, "tags": None}
    one, two = [row(10), row(None, tags=None), empty], [row(20), row(None, tags=None), empty]
    assert read in (one + two, two + one)


def test_rows_are_written_in_groups_and_none_is_lost_between_them(tmp_path: Path) -> None:
    sink = parquet_sink(tmp_path, rows_per_group=3)
    write(sink, *(row(n) for n in range(8)))
    completed(sink, 1)
    (path,) = tmp_path.glob("*.parquet")
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [3, 3, 2]
    assert file.read().column("delay").to_pylist() == list(range(8))


def test_a_record_that_the_caller_changes_afterwards_stays_as_it_was_written(tmp_path: Path) -> None:
    sink = parquet_sink(tmp_path)
    reused = row(1)
    write(sink, reused)
    reused["delay"] = 2
    write(sink, reused)
    completed(sink, 1)
    assert pq.read_table(tmp_path).column("delay").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (row(1, colour="red"), "'colour', which is no column"),
        ({"delay": 1}, "no value for 'carrier'"),
        (row(1, carrier=None), "no value for 'carrier'"),
        ([1, 2], "dicts by column name, not a list"),
        (b"bytes", "dicts by column name, not a bytes"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_and_the_sink_goes_on(tmp_path: Path, record: Any, said: str) -> None:
    sink = parquet_sink(tmp_path)
    write(sink, row(1))
    with pytest.raises(ConfigurationError, match=rf"subtask out/1 of job 'flights': .*{said}"):
        write(sink, record)
    write(sink, row(2))
    completed(sink, 1)
    assert pq.read_table(tmp_path).column("delay").to_pylist() == [1, 2]


def test_a_value_of_another_type_fails_the_attempt_by_its_checkpoint_at_the_latest(tmp_path: Path) -> None:
    sink = parquet_sink(tmp_path, rows_per_group=2)
    write(sink, row("late"))
    with pytest.raises(SubtaskError, match="delay should be int32 and is 'late'"):
        write(sink, row(2))
    with pytest.raises(StateError, match="may be incomplete"):
        snapshot(sink, 1)
    sink = parquet_sink(tmp_path, attempt=2)
    write(sink, row(2**40))
    with pytest.raises(SubtaskError, match=f"delay should be int32 and is {2**40}"):
        snapshot(sink, 1)
    sink.close()
    assert not list(tmp_path.glob("*.parquet"))


def test_parquet_survives_a_crash_between_its_two_phases(tmp_path: Path) -> None:
    sink = parquet_sink(tmp_path)
    write(sink, row(1))
    state = snapshot(sink, 1)
    write(sink, row(2))
    again = FileSink(tmp_path, Parquet(SCHEMA))
    opened(tmp_path, 2, sink=again)
    again.restore_state(1, state)
    assert pq.read_table(tmp_path).column("delay").to_pylist() == [1]


def test_without_pyarrow_the_error_says_what_to_install_and_json_lines_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = pickle.loads(pickle.dumps(functools.partial(FileSink, tmp_path, Parquet(SCHEMA))))
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="pip install pyarrow"):
        Parquet(SCHEMA)
    with pytest.raises(ConfigurationError, match="where its subtasks run"):  # a worker that lacks what the driver has
        write(opened(tmp_path, sink=declared()), row(1))
    sink = opened(tmp_path)
    write(sink, 1)
    completed(sink, 1)
    assert records(tmp_path) == [1]


@pytest.mark.parametrize("wrong", [{"rows_per_group": 0}, {"rows_per_group": 1.5}, {"schema": {"a": "int"}}])
def test_settings_that_cannot_be_are_refused_where_they_are_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Parquet(**{"schema": SCHEMA, **wrong})


def test_a_declared_sink_travels_to_its_subtasks(tmp_path: Path) -> None:
    make = pickle.loads(pickle.dumps(functools.partial(FileSink, folder=str(tmp_path), format=Parquet(SCHEMA))))
    sink = opened(tmp_path, sink=make())
    write(sink, row(1))
    completed(sink, 1)
    assert pq.read_table(tmp_path).num_rows == 1


# ---- JSON lines


def test_json_lines_hold_any_value_one_per_line(tmp_path: Path) -> None:
    values = [{"a": "line\nbreak", "ü": "\u2028"}, [1, 2.5, None, True], "text", 7, {}]
    sink = opened(tmp_path)
    write(sink, *values)
    completed(sink, 1)
    (path,) = tmp_path.glob("*.jsonl")
    assert path.read_bytes().count(b"\n") == len(values)
    assert list(visible(tmp_path).values()) == [values]


@pytest.mark.parametrize(
    "record",
    [b"bytes", {1, 2}, float("nan"), {"a": object()}, "\ud800"],
    ids=["bytes", "set", "nan", "object", "surrogate"],
)
def test_what_json_cannot_hold_is_refused_and_the_sink_goes_on(tmp_path: Path, record: Any) -> None:
    sink = opened(tmp_path)
    with pytest.raises(ConfigurationError, match=r"subtask out/1 of job 'flights': a \w+ that JSON cannot hold"):
        write(sink, record)
    write(sink, 1)
    completed(sink, 1)
    assert records(tmp_path) == [1]


# ---- one's own


def test_a_format_of_ones_own_needs_a_suffix_and_a_writer(tmp_path: Path) -> None:
    class Lines:
        suffix = ".txt"

        def open(self, path: Path) -> Any:
            self._file = path.open("x")
            return self

        def write(self, record: Any) -> None:
            self._file.write(f"{record}\n")

        def close(self) -> None:
            self._file.close()

    assert isinstance(Lines(), Format) and isinstance(JsonLines(), Format)
    sink = opened(tmp_path, sink=FileSink(tmp_path, Lines()))
    write(sink, "a", "b")
    restored(tmp_path, 1, snapshot(sink, 1), attempt=2)
    (path,) = tmp_path.glob("*.txt")
    assert path.read_text() == "a\nb\n"
