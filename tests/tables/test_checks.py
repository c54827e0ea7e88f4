"""A table that rows must not be appended to is refused by name; one that lacks columns may get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.testing import LocalJob

from .driving import Driven, written
from .jobs import PATIENCE_S, SCHEMA, Place, rows_job

WIDER = pa.schema([*SCHEMA, pa.field("extra", pa.int64())])


def prepare(place: Place, schema: pa.Schema = SCHEMA, **options: Any) -> None:
    place.table(schema, **options).connect().prepare()


def test_a_table_that_lacks_columns_is_refused_by_their_names_or_gets_them(place: Place) -> None:
    written(place.table(), {"n": 1, "letter": "a"})
    with pytest.raises(ConfigurationError, match=r"lacks the columns \['extra'\]: with schema_mode='merge'"):
        prepare(place, WIDER)
    written(place.table(WIDER, schema_mode="merge"), {"n": 2, "letter": "b", "extra": 7}, checkpoint_id=2)
    by_number = {row["n"]: row.get("extra") for row in place.read().rows}
    assert by_number == {1: None, 2: 7}
    # A column that the sink lacks, and that may be null, is left out.
    assert written(place.table(), {"n": 3}, checkpoint_id=3) == 1
    assert place.numbers() == [1, 2, 3]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([pa.field("n", pa.int32(), nullable=False), ("letter", pa.string())]), "the column 'n' of"),
        (pa.schema([("n", pa.int64()), ("letter", pa.string())]), "'n' of .* takes no null: .*nullable=False"),
        (pa.schema([("letter", pa.string())]), "a column 'n' that takes no null"),
        (pa.schema([*SCHEMA, pa.field("e", pa.int64(), nullable=False)]), r"\['e'\] cannot be added"),
    ],
)
def test_a_schema_that_does_not_fit_the_table_is_refused(place: Place, schema: pa.Schema, said: str) -> None:
    prepare(place)
    with pytest.raises(ConfigurationError, match=said):
        prepare(place, schema, schema_mode="merge")


def test_another_partitioning_is_refused(place: Place) -> None:
    prepare(place)
    with pytest.raises(ConfigurationError, match=r"is partitioned by \[\], and the sink was told \['letter'\]"):
        prepare(place, partition_by=["letter"])


def test_a_table_that_is_not_there_is_created_only_where_that_is_allowed(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="there is no"):
        prepare(place, create=False)
    prepare(place)
    prepare(place, create=False)


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"delta.columnMapping.mode": "name"}, "has column mapping"),
        ({"delta.enableInCommitTimestamps": "true"}, "has in-commit timestamps"),
        ({"delta.enableRowTracking": "true"}, "has row tracking"),
    ],
)
def test_a_delta_table_with_a_setting_that_the_writer_does_not_support_is_refused_by_name(
    tmp_path: Path, configuration: dict[str, str], said: str
) -> None:
    place = Place("delta", tmp_path)
    prepare(place)
    change_log(tmp_path / "table", configuration=configuration)
    with pytest.raises(ConfigurationError, match=said):
        prepare(place)


def test_a_delta_table_with_an_unknown_writer_feature_is_refused(tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    prepare(place)
    features = {"readerFeatures": [], "writerFeatures": ["collations"]}
    change_log(tmp_path / "table", protocol={"minReaderVersion": 3, "minWriterVersion": 7, **features})
    with pytest.raises(Exception, match="collations"):
        prepare(place, commit_timeout=0.1)


def test_a_constraint_that_another_writer_adds_is_refused_at_the_next_commit(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    place = Place("delta", tmp_path)
    driven = Driven(place.table())
    driven.writer.write({"n": 1})
    driven.commit()
    connection = place.table().connect()
    connection.prepare()
    DeltaTable(str(tmp_path / "table")).alter.add_constraint({"positive": "n > 0"})
    driven.writer.write({"n": 2})
    driven.writer.snapshot_state(2)
    with pytest.raises(ConfigurationError, match=r"the constraint delta.constraints.positive"):
        connection.commit("penstock/rows/out/x", 2, {2: driven.files})


def test_columns_that_another_writer_adds_do_not_disturb(place: Place) -> None:
    connection = place.table().connect()
    connection.prepare()
    prepare(place, WIDER, schema_mode="merge")
    driven = Driven(place.table())
    driven.writer.write({"n": 2})
    driven.writer.snapshot_state(2)
    assert connection.commit("penstock/rows/out/x", 2, {2: driven.files}) == 1
    assert place.numbers() == [2]


def test_an_iceberg_spec_that_changes_while_files_wait_is_refused_by_name(tmp_path: Path) -> None:
    from penstock.errors import StateError

    place = Place("iceberg", tmp_path)
    driven = Driven(place.table())
    driven.writer.write({"n": 2, "letter": "a"})
    driven.writer.snapshot_state(2)
    with place.table().load_catalog().load_table("db.rows").update_spec() as update:  # type: ignore[attr-defined]
        update.add_identity("letter")
    with pytest.raises(StateError, match=r"the partition spec of .* has changed from 0 to 1"):
        place.table().connect(check=False).commit("penstock/rows/out/x", 2, {2: driven.files})


def test_a_job_with_a_table_that_does_not_fit_fails_and_names_the_column(place: Place) -> None:
    prepare(place, pa.schema([("n", pa.string()), ("letter", pa.string())]))
    with LocalJob(rows_job(place.table().sink(), restarts=1)) as running:
        outcome = running.wait(PATIENCE_S)
    assert outcome.ending.value == "failed"
    assert "the column 'n' of" in outcome.cause


def change_log(folder: Path, **actions: Any) -> None:
    """Append a version that no library here would write."""
    import json

    log = folder / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    lines = []
    if (configuration := actions.get("configuration")) is not None:
        metadata = next(each["metaData"] for each in first if "metaData" in each)
        lines.append({"metaData": {**metadata, "configuration": configuration}})
    if (protocol := actions.get("protocol")) is not None:
        lines.append({"protocol": protocol})
    lines.append({"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}})
    (log / f"{1:020}.json").write_text("\n".join(json.dumps(line) for line in lines))
