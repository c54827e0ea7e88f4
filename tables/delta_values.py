"""Values as Delta's log holds them: partition values, and the statistics of a file."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

from ..errors import ConfigurationError

COLUMNS_MAX = 32
"""How many columns of a file get statistics, as Delta's writers do."""
TEXT_MAX = 256
"""A longer text gets no minimum and maximum."""


def partition_value(field: Any, value: Any, where: str) -> str | None:
    """Return a partition value as the log holds it. Raises :class:`ConfigurationError` for a type that it cannot."""
    import pyarrow as pa

    kind = field.type
    known = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_boolean, pa.types.is_timestamp)
    if not any(is_of(kind) for is_of in known):
        raise ConfigurationError(
            f"{where} cannot be partitioned by {field.name!r} of type {kind}: use an integer, a string, a date, a"
            " timestamp or a bool"
        )
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case "":
            raise ConfigurationError(
                f"a row for {where} has an empty text in the partition column {field.name!r}, which Delta reads as"
                " null: write null, or another text"
            )
        case datetime.datetime():
            if value.tzinfo is not None:
                value = value.astimezone(datetime.UTC).replace(tzinfo=None)
            return str(value.isoformat(" ", "microseconds"))
        case datetime.date():
            return str(value.isoformat())
        case _:
            return str(value)


def file_statistics(metadata: Any, with_nan: frozenset[str]) -> str:
    """Return a file's statistics, as JSON, from its Parquet footer: they cost no look at the rows.

    A column that cannot be judged by its footer (a nested one, a long text, one with NaN) has no minimum and maximum.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = min(metadata.num_columns, COLUMNS_MAX) if metadata.num_row_groups else 0
    for index in range(columns):
        column = metadata.schema.column(index)
        if (name := column.path) != column.name or "." in name:  # within a struct, a list or a map
            continue
        found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.num_values]  # without the nulls
        if name in with_nan or not bounds or not all(each.has_min_max for each in bounds):
            continue
        low, high = _plain(min(each.min for each in bounds)), _plain(max(each.max for each in bounds))
        if low is not None and high is not None:
            lows[name], highs[name] = low, high
    return json.dumps({"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


def _plain(value: Any) -> Any:
    """Return a bound as the log's JSON holds it; None where it has none."""
    match value:
        case bool() | bytes() | decimal.Decimal():
            return None
        case int():
            return value
        case float():
            return value if value - value == 0 else None  # JSON has no infinity
        case str():
            return value if len(value) <= TEXT_MAX else None
        case datetime.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return f"{text}Z" if value.tzinfo is not None else text
        case datetime.date():
            return value.isoformat()
        case _:
            return None
