"""Independent readers of tables: they know the formats by their specifications, and neither library that writes them.

Delta: the JSON actions of the log, replayed in order, and DuckDB on the Parquet files of the active ``add`` actions.
Iceberg: the metadata JSON that the catalog's database names, the Avro manifests by fastavro, and DuckDB on their files.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import duckdb
import fastavro


@dataclass
class Seen:
    """A table's newest version."""

    rows: list[dict[str, Any]]
    files: list[str]
    """Paths that are active."""
    commits: list[tuple[str, int]] = field(default_factory=list)
    """(writer, checkpoint id) of Penstock's commits, in order."""
    ever: set[str] = field(default_factory=set)
    """Paths that any commit in the log named."""


def read_delta(folder: Path) -> Seen:
    """Read a Delta table whose log has no gap: versions from 0 on as JSON."""
    active: dict[str, dict[str, Any]] = {}
    commits, ever = [], set()
    logs = sorted((folder / "_delta_log").glob("*.json"))
    assert [int(log.stem) for log in logs] == list(range(len(logs)))
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if add := action.get("add"):
                path = unquote(add["path"])
                # An optimize may name a file again in no case; two commits of one file would show it twice.
                assert path not in active, f"version {log.stem} adds {path} a second time"
                active[path] = add
                ever.add(path)
            elif remove := action.get("remove"):
                del active[unquote(remove["path"])]
            elif (txn := action.get("txn")) and txn["appId"].startswith("penstock/"):
                commits.append((txn["appId"], txn["version"]))
    rows = []
    for path, add in active.items():
        assert (folder / path).stat().st_size == add["size"]
        part = _parquet(folder / path)
        stats = json.loads(add["stats"] or "{}")
        assert stats.get("numRecords", len(part)) == len(part)
        _check_bounds(part, stats)
        rows += [{**row, **add["partitionValues"]} for row in part]
    return Seen(rows, sorted(active), commits, ever)


def _check_bounds(rows: list[dict[str, Any]], stats: dict[str, Any]) -> None:
    for name, low in stats.get("minValues", {}).items():
        values = [row[name] for row in rows if row[name] is not None]
        if isinstance(low, int | float | str) and values and isinstance(values[0], type(low)):
            assert low <= min(values) and max(values) <= stats["maxValues"][name]
            assert stats["nullCount"][name] == sum(row[name] is None for row in rows)


def read_iceberg(database: Path, identifier: str) -> Seen:
    """Read the current snapshot of a table of pyiceberg's SQL catalog."""
    namespace, _, name = identifier.rpartition(".")
    with closing(sqlite3.connect(database)) as catalog:
        found = catalog.execute(
            "select metadata_location from iceberg_tables where table_namespace = ? and table_name = ?",
            (namespace, name),
        ).fetchone()
    if found is None:
        return Seen([], [])
    metadata = json.loads(_local(found[0]).read_text(encoding="utf-8"))
    snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", [])}
    rows, files = [], []
    current = snapshots.get(metadata.get("current-snapshot-id"))
    for manifest in _avro(current["manifest-list"]) if current else []:
        assert manifest["content"] == 0
        for entry in _avro(manifest["manifest_path"]):
            if entry["status"] == 2:  # deleted
                continue
            file = entry["data_file"]
            assert file["file_path"] not in files, f"{file['file_path']} is named twice"
            files.append(file["file_path"])
            part = _parquet(_local(file["file_path"]))
            assert len(part) == file["record_count"]
            assert _local(file["file_path"]).stat().st_size == file["file_size_in_bytes"]
            rows += part
    commits = []
    while current is not None:
        if writer := current["summary"].get("penstock.writer"):
            commits.append((writer, int(current["summary"]["penstock.checkpoint"])))
        current = snapshots.get(current.get("parent-snapshot-id"))
    return Seen(rows, files, commits[::-1])


def _avro(location: str) -> list[Any]:
    with _local(location).open("rb") as file:
        return list(fastavro.reader(file))


def _parquet(path: Path) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        found = connection.execute("select * from read_parquet(?, hive_partitioning = false)", [str(path)])
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _local(location: str) -> Path:
    return Path(urlparse(location).path if "://" in location else location)
