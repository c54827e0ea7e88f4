"""A process of its own that appends to a table and compacts it, as maintenance does, until a file appears.

    python -m tests.tables.second_writer delta FOLDER STOP_FILE

It prints how many appends stand as JSON. Its rows are numbered from OTHERS on.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from .jobs import OTHERS, SCHEMA, Place


def append_and_compact(place: Place, appended: int) -> int:
    """Append one row, and every third time compact; return how many rows stand."""
    rows = pa.Table.from_pylist([{"n": OTHERS + appended, "letter": "other"}], schema=SCHEMA)
    if place.kind == "delta":
        from deltalake import DeltaTable, write_deltalake

        uri = str(place.folder / "table")
        write_deltalake(uri, rows, mode="append")
        if appended % 3 == 2:
            table = DeltaTable(uri)
            try:
                table.optimize.compact()
            except Exception as error:
                print(f"compaction: {type(error).__name__}", file=sys.stderr)
            table.vacuum(dry_run=False, full=True)
            table.create_checkpoint()
        return appended + 1
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    properties = place.catalog
    catalog = load_catalog(properties.pop("name"), **properties)
    while True:
        try:
            catalog.load_table("db.rows").append(rows)
            break
        except CommitFailedException:
            time.sleep(0.01)
    if appended % 3 == 2:
        table = catalog.load_table("db.rows")
        try:
            table.overwrite(table.scan().to_arrow())  # as one snapshot sees it
            table = catalog.load_table("db.rows")
            table.maintenance.expire_snapshots().older_than(datetime.now() - timedelta(milliseconds=1)).commit()
        except (CommitFailedException, ValidationException) as error:
            print(f"compaction: {type(error).__name__}", file=sys.stderr)
    return appended + 1


def main(kind: str, folder: str, stop: str) -> None:
    place, appended = Place(kind, Path(folder)), 0
    while not Path(stop).exists():
        appended = append_and_compact(place, appended)
    print(json.dumps({"appended": appended}))


if __name__ == "__main__":
    main(*sys.argv[1:])
