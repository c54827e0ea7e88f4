"""Values of every record class: one fixed example in which each field differs, and arbitrary ones for properties."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
import zlib
from typing import Any

from hypothesis import strategies as st

INT64 = st.integers(-(2**63), 2**63 - 1)


def example(cls: type) -> Any:
    """An instance with every optional part present, two items in every array, and no two numbers alike.

    Each value follows from the field's name alone, so that a field added later leaves the others as they were.
    """
    return _example(cls, cls.__name__)


def _example(hint: Any, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    number = zlib.crc32(path.encode())
    if origin in (typing.Union, types.UnionType):
        return _example(next(a for a in args if a is not type(None)), path)
    if origin in (tuple, list):
        return origin(_example(args[0], f"{path}[{i}]") for i in range(2))
    if origin is dict:
        return {f"key-{i}": _example(args[1], f"{path}[{i}]") for i in range(2)}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{f.name: _example(hints[f.name], f"{path}.{f.name}") for f in dataclasses.fields(hint)})
    if issubclass(hint, enum.Enum):
        return list(hint)[-1]
    return {bool: True, int: number, float: number / 8, str: f"{path} é", bytes: number.to_bytes(4, "big")}[hint]


def instances(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type, or a record of this class, can hold."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.none() | instances(next(a for a in args if a is not type(None)))
    if origin in (tuple, list):
        return st.lists(instances(args[0]), max_size=3).map(origin)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), instances(args[1]), max_size=3)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{f.name: instances(hints[f.name]) for f in dataclasses.fields(hint)})
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return {
        bool: st.booleans(),
        int: INT64,
        float: st.floats(allow_nan=False),
        str: st.text(max_size=20),
        bytes: st.binary(max_size=20),
    }[hint]


def plain(value: Any) -> Any:
    """A record as JSON can hold it; independent of the product's own mapping."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.value if isinstance(value, enum.Enum) else value


def zigzag(number: int) -> bytes:
    """Return the bytes of an Avro long."""
    rest, out = ((number << 1) ^ (number >> 63)) & (2**64 - 1), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
