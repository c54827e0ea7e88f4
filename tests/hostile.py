"""Hostile records: of every class, with fields that say what an honest one may say about as often as anything else."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from penstock.schemas.state import OPEN_END, Sender

NUMBERS = [0, 1, 2, 3, 7, -1, -2, OPEN_END, 2**31, 2**40, 2**63 - 1, -(2**63)]
TEXTS = [
    "", "op", "sink", "op/0", "op/1", "op/x", "x", "/", "run-1", "run-2", "task-1", "nonce-1", "first", "\u00e9" * 9,
]  # fmt: skip
BYTES = [b"", b"1", b"\x01\x00\x00\x00", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"a", b"ab" * 40]


@dataclass(frozen=True, slots=True)
class Known:
    """Records and state of the job under attack: values taken from them make hostile records count."""

    records: Sequence[Any] = ()
    senders: Sequence[Sender] = ()
    numbers: Sequence[int] = ()
    texts: Sequence[str] = ()
    layout: Mapping[str, int] = field(default_factory=dict)


@st.composite
def hostile(draw: st.DrawFn, known: Known, classes: Sequence[type]) -> Any:
    """A new record, one that stands already, or one like it."""
    if known.records and (how := draw(st.integers(0, 2))):
        record = draw(st.sampled_from(known.records))
        return record if how == 1 else _mangled(record, known, draw)
    return _anything(draw(st.sampled_from(classes)), known, draw)


def _anything(hint: Any, known: Known, draw: st.DrawFn) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        choices = [a for a in args if a is not type(None)]
        return None if draw(st.booleans()) else _anything(choices[0], known, draw)
    if origin is tuple:
        return tuple(_anything(args[0], known, draw) for _ in range(draw(st.integers(0, 2))))
    if origin is dict:
        if known.layout and args[1] is int and draw(st.booleans()):
            return dict(known.layout)
        return {draw(st.sampled_from(TEXTS)): _anything(args[1], known, draw) for _ in range(draw(st.integers(0, 2)))}
    if hint is Sender and known.senders and draw(st.integers(0, 3)):
        return draw(st.sampled_from(known.senders))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{f.name: _anything(hints[f.name], known, draw) for f in dataclasses.fields(hint)})
    if issubclass(hint, enum.Enum):
        return draw(st.sampled_from(hint))
    said = {
        bool: [False, True],
        int: [*NUMBERS, *known.numbers],
        float: [0.0, -1.0, 1e300],
        str: [*TEXTS, *known.texts],
        bytes: BYTES,
    }
    return draw(st.sampled_from(said[hint]))


def _mangled(record: Any, known: Known, draw: st.DrawFn) -> Any:
    """An honest record in which one or two fields, of it or of what it holds, say something else."""
    hints = typing.get_type_hints(type(record))
    for _ in range(draw(st.integers(1, 2)) if hints else 0):
        name = draw(st.sampled_from([f.name for f in dataclasses.fields(record)]))
        was = getattr(record, name)
        if isinstance(was, tuple) and was and dataclasses.is_dataclass(was[0]) and draw(st.booleans()):
            value: Any = (_mangled(was[0], known, draw), *was[1:])
        else:
            value = _anything(hints[name], known, draw)
        record = dataclasses.replace(record, **{name: value})
    return record
