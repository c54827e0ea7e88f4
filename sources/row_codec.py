"""Rows as JSON, whatever types their columns have."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from ..errors import ConfigurationError, UnreadableRecord


class RowCodec:
    """JSON in UTF-8 that also takes what JSON has not, as Spark's ``to_json`` does, but for decimals.

    Dates, times and timestamps become ISO 8601 strings, durations seconds, decimals strings with all their digits,
    bytes base64, and floats that are no numbers "NaN", "Infinity" or "-Infinity". Receivers get what JSON holds.
    """

    def encode(self, value: Any, /) -> bytes:
        try:
            try:
                return _dumps(value)
            except ValueError:  # a float that is no number
                return _dumps(_with_named_floats(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"a {type(value).__name__} that JSON cannot hold: {error}; use plain values, or another output_codec"
            ) from error

    def decode(self, data: bytes, /) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UnreadableRecord(f"expected a row in JSON, found {data[:100]!r}: {error}") from error

    def __repr__(self) -> str:
        return "RowCodec()"


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal() | UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case _:
            raise TypeError(f"there is a {type(value).__name__} in it")


def _with_named_floats(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {key: _with_named_floats(each) for key, each in value.items()}
        case list() | tuple():
            return [_with_named_floats(each) for each in value]
        case _:
            return value
