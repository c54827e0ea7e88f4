"""A job's settings, as its status has them in JSON: in lines, and the edges between its operators. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_DEPTH_MAX = 4
_SHOWN_MAX = 2_000
"""So many lines at most; a job of a hundred operators has some 1,200."""


@dataclass(frozen=True, slots=True)
class Edge:
    """All records from one operator to another."""

    sender: str
    receiver: str
    partitioning: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Names and values, in the order of the job's settings."""

    lines: tuple[tuple[str, str], ...] = ()
    edges: tuple[Edge, ...] = ()


def settings_of(text: str) -> Settings:
    """Return what a status tells; nothing where a forged record holds something else."""
    try:
        told = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return Settings()
    if not isinstance(told, dict):
        return Settings()
    lines = [line for _, line in zip(range(_SHOWN_MAX), _lines("", told, 0), strict=False)]
    return Settings(tuple(lines), tuple(_edges(told.get("operators"))))


def _lines(name: str, value: Any, depth: int) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and depth < _DEPTH_MAX:
        for key, each in value.items():
            yield from _lines(f"{name}.{key}" if name else str(key), each, depth + 1)
    elif name == "operators" and isinstance(value, list):
        for operator in value:
            if isinstance(operator, dict):
                of = f"operator {operator.get('name', '?')}"
                yield from _lines(of, {k: v for k, v in operator.items() if k != "name"}, depth + 1)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _edges(operators: Any) -> Iterable[Edge]:
    for operator in operators if isinstance(operators, list) else ():
        inputs = operator.get("inputs") if isinstance(operator, dict) else None
        for given in inputs if isinstance(inputs, list) else ():
            if isinstance(given, dict):
                yield Edge(str(given.get("upstream")), str(operator.get("name")), str(given.get("partitioning")))
