"""The subtask of a table's sink: writes rows to data files, and tells the coordinator of each that is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import Context, Subtask
from .data_files import DataFiles
from .rows import Rows
from .table_format import TableLike


class TableWriter(Subtask):
    """Writes records, each a dict or many rows as a pyarrow RecordBatch or Table, to data files of a table.

    It has no state of its own: a closed file is an event to the coordinator, and belongs to the next checkpoint as the
    event does. A subclass may call :meth:`write` from wherever it works; where it overrides ``open``,
    ``snapshot_state`` or ``close`` it calls ``super()``.
    """

    def __init__(self, table: TableLike, encode: Callable[[Any], Any] | None = None) -> None:
        self._table = table
        self._encode = encode
        self._rows: Rows | None = None
        self._files: DataFiles | None = None

    def open(self, context: Context) -> None:
        token = context.fencing_token
        owner = f"{context.job}.{context.operator}.{context.subtask}.e{token.epoch}.a{token.attempt}"
        who = f"subtask {context.operator}/{context.subtask} of job {context.job!r}"
        layout = self._table.layout()

        def closed(file: Any) -> None:
            context.send_event_to_coordinator({"table": self._table.name, "files": [file]})

        self._files = DataFiles(layout, owner, self._table.target_file_size, self._table.buffer_bytes, closed)
        self._rows = Rows(layout.schema, who, self._files.add)

    def write(self, rows: Any) -> None:
        """Add a row (a dict), or many at once (a pyarrow RecordBatch or Table).

        Raises :class:`penstock.errors.ConfigurationError` for what the schema does not take; the attempt fails.
        """
        assert self._rows is not None, "call super().open(context) first"
        if isinstance(rows, Mapping):
            self._rows.add(rows)
        else:
            self._rows.add_many(rows)

    def process(self, record: Any, input: str) -> None:
        self.write(record if self._encode is None else self._encode(record))

    def snapshot_state(self, checkpoint_id: int) -> Any:
        assert self._rows is not None and self._files is not None, "call super().open(context) first"
        self._rows.flush()
        self._files.close_all()

    def close(self) -> None:
        if self._files is not None:
            self._files.abort()


class DataFrameWriter(TableWriter):
    """Writes the rows of a DataFrame that the operator is given."""

    def process_rows(self, batch: Any) -> None:
        self.write(batch if self._encode is None else self._encode(batch))
