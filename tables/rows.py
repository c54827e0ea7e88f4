"""Rows on their way to a table: dicts become Arrow tables, and all of them get the table's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..errors import ConfigurationError

ROWS_MAX, BYTES_MAX = 16_384, 8 * 1024 * 1024


class Rows:
    """Collects dicts up to a bound, and gives Arrow tables of one schema on."""

    def __init__(self, schema: Any, who: str, give: Callable[[Any], None]) -> None:
        self._schema, self._who, self._give = schema, who, give
        self._names = frozenset(schema.names)
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row; it is copied by :meth:`flush` at the latest."""
        if not row.keys() <= self._names:
            self._refuse_fields(row.keys() - self._names)
        self._rows.append(row)
        self._bytes += _weight(row)
        if len(self._rows) >= ROWS_MAX or self._bytes >= BYTES_MAX:
            self.flush()

    def add_many(self, rows: Any) -> None:
        """Add the rows of a RecordBatch or Table, behind those that were added before."""
        import pyarrow as pa

        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if not isinstance(rows, pa.Table):
            raise ConfigurationError(
                f"{self._who}: a record for a table must be a dict, or a pyarrow RecordBatch or Table, not"
                f" {type(rows).__name__}: {rows!r:.200}. Give the sink encode=, a function that makes one of a record"
            )
        self.flush()
        if unknown := set(rows.schema.names) - self._names:
            self._refuse_fields(unknown)
        columns = []
        for field in self._schema:
            if field.name not in rows.schema.names:
                columns.append(pa.nulls(len(rows), field.type))
                continue
            try:
                columns.append(rows.column(field.name).cast(field.type))
            except (pa.ArrowException, ValueError, TypeError) as error:
                self._refuse_value(field, error)
        self._hand_on(columns)

    def flush(self) -> None:
        """Give on what was added one by one."""
        import pyarrow as pa

        rows, self._rows, self._bytes = self._rows, [], 0
        if not rows:
            return
        columns = []
        for field in self._schema:
            values = [row.get(field.name) for row in rows]
            try:
                columns.append(pa.array(values, field.type))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                self._refuse_value(field, error)
        self._hand_on(columns)

    def _hand_on(self, columns: list[Any]) -> None:
        import pyarrow as pa

        for field, column in zip(self._schema, columns, strict=True):
            if not field.nullable and column.null_count:
                raise ConfigurationError(
                    f"{self._who}: {column.null_count} rows have no value for the field {field.name!r}, which is not"
                    " nullable"
                )
        table = pa.Table.from_arrays(columns, schema=self._schema)
        if len(table):
            self._give(table)

    def _refuse_fields(self, unknown: Any) -> NoReturn:
        raise ConfigurationError(
            f"{self._who}: a record has the fields {sorted(map(str, unknown))}, which the sink's schema lacks; it has"
            f" {sorted(self._names)}. Add them to the schema that the table is given (with schema_mode='merge' the"
            " table gets them too), or leave them out with encode="
        )

    def _refuse_value(self, field: Any, error: Exception) -> NoReturn:
        raise ConfigurationError(
            f"{self._who}: a value does not fit the field {field.name!r} of type {field.type}: {error}"
        ) from error


def _weight(row: Mapping[str, Any]) -> int:
    """About how many bytes the row takes: so that a few large ones do not fill the memory."""
    weight = 16 * len(row)
    for value in row.values():
        if isinstance(value, str | bytes):
            weight += len(value)
        elif isinstance(value, list | dict | tuple | set):
            weight += len(repr(value))
    return weight
