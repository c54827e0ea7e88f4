"""What a cell of the input means: a number (exactly), nothing, or a mistake; and what a group is called."""

from __future__ import annotations

import decimal
import json
import math
import re
from decimal import Decimal
from typing import Any

from ...schemas.errors import ConfigurationError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Spellings, in lower case, of a value that is not there: it is skipped and counted."""

EXACT = decimal.Context(prec=5_000, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])
"""Adds without ever rounding: what would be rounded raises instead."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_LENGTH_MAX = 400
_EXPONENT_MAX = 400


class InputError(ConfigurationError):
    """The input cannot be summed; names the file, the line, the column and the value."""


def number_of(value: Any) -> Decimal | None:
    """The exact number, or None where the cell is missing. Raises ValueError for anything else.

    A binary float counts as the decimal number that it is shown as.
    """
    match value:
        case None:
            return None
        case bool():
            raise ValueError("a truth value")
        case Decimal():
            found = value
        case int():
            found = Decimal(value)
        case float():
            if math.isnan(value):
                return None
            found = Decimal(repr(value))
        case str():
            text = value.strip()
            if text.lower() in MISSING:
                return None
            if len(text) > _LENGTH_MAX or not _NUMBER.fullmatch(text):
                raise ValueError("not a number")
            found = Decimal(text)
        case _:
            raise ValueError(f"a {type(value).__name__}")
    if found.is_nan():
        return None
    if not found.is_finite() or (found and abs(found.adjusted()) > _EXPONENT_MAX):
        raise ValueError("not a finite number of reasonable size")
    return found


def group_text(value: Any) -> str:
    """What a group's column shows."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case list() | dict():
            return json.dumps(value, default=str, sort_keys=True)
        case _:
            return str(value)


def natural_order(key: tuple[str, ...]) -> tuple[Any, ...]:
    """Sorts 2 before 10, and numbers before words."""
    return tuple((0, Decimal(text), text) if _NUMBER.fullmatch(text) else (1, Decimal(0), text) for text in key)


def shown(value: Any) -> str:
    """A value in an error message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
