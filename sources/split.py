"""A split: one piece of input that one subtask reads at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError

SPLIT_BYTES_MAX = 16 * 1024
"""Bytes of a split as JSON: it travels as an event, and is in the state of its subtask while it is open."""


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of input: a file, a range of keys, a table's partition.

    ``id`` names it, once within its source. ``payload`` is what a reader needs to find it, a JSON value. ``hosts`` are
    machines that read it best: a subtask on one of them is preferred, never waited for. ``weight`` is the work in it,
    in any unit: heavy splits are handed out before light ones that were listed at about the same time.

    Raises :class:`ConfigurationError` for a split that cannot travel: its JSON has at most 16 KiB.
    """

    id: str
    payload: Any = None
    hosts: Sequence[str] = ()
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ConfigurationError(f"the id of a split must be a string that is not empty, not {self.id!r}")
        if isinstance(self.hosts, str) or not all(isinstance(host, str) for host in self.hosts):
            raise ConfigurationError(f"the hosts of split {self.id!r} must be a list of names, not {self.hosts!r}")
        object.__setattr__(self, "hosts", tuple(self.hosts))
        number = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not number or not math.isfinite(self.weight) or self.weight < 0:
            raise ConfigurationError(f"the weight of split {self.id!r} must be a number, 0 or more: {self.weight!r}")

    def to_json(self) -> list[Any]:
        """Return the split as a JSON value: its fields in order, without trailing defaults."""
        fields: list[Any] = [self.id, self.payload, list(self.hosts), self.weight]
        defaults: list[Any] = [1.0, [], None]
        for default in defaults:
            if fields[-1] != default:
                break
            fields.pop()
        return fields

    @classmethod
    def from_json(cls, fields: list[Any]) -> Split:
        """Return the split that :meth:`to_json` was called on."""
        return cls(*fields)

    @property
    def prefers(self) -> bool:
        """Whether it matters to whom, or before which other one, it is handed out."""
        return bool(self.hosts) or self.weight != 1.0


def size_of(split: Split) -> int:
    """Return the bytes of a split as JSON. Raises ConfigurationError where it is too large, or no JSON value."""
    try:
        size = len(json.dumps(split.to_json(), separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the payload of split {split.id!r:.200} is no JSON value: {error}; use plain values"
        ) from error
    if size > SPLIT_BYTES_MAX:
        raise ConfigurationError(
            f"split {split.id!r:.200} has {size} bytes as JSON, at most {SPLIT_BYTES_MAX} can travel: give it a"
            " reference to the data, not the data"
        )
    return size
