"""Avro schemas from dataclasses: one source for fields, types and their doc sentences."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from .errors import ConfigurationError

_PRIMITIVES: Mapping[Any, str] = {int: "long", str: "string", bytes: "bytes", bool: "boolean", float: "double"}


def avro_schema(cls: type, namespace: str) -> dict[str, Any]:
    """The Avro record schema of a dataclass.

    A field is ``int`` (long), ``float`` (double), ``bool``, ``str``, ``bytes``, a string enum, a dataclass,
    ``tuple[X, ...]`` or ``list[X]`` (array), ``dict[str, X]`` (map) or ``X | None``; ``Annotated[X, "sentence"]``
    documents it. Anything else is a :class:`ConfigurationError` that names the field.
    """
    return _record(cls, namespace, set())


def _record(cls: type, namespace: str, seen: set[str]) -> dict[str, Any]:
    if not dataclasses.is_dataclass(cls):
        raise ConfigurationError(f"{cls!r} is not a dataclass, so no Avro schema can be derived from it")
    seen.add(cls.__name__)
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = []
    for f in dataclasses.fields(cls):
        hint, doc = hints[f.name], None
        if typing.get_origin(hint) is typing.Annotated:
            hint, doc = typing.get_args(hint)[0], typing.get_args(hint)[1]
        entry: dict[str, Any] = {"name": f.name, "type": _type(hint, namespace, seen, f"{cls.__name__}.{f.name}")}
        if isinstance(doc, str):
            entry["doc"] = doc
        if f.default is not dataclasses.MISSING and isinstance(f.default, int | float | str | bool | None):
            entry["default"] = f.default
        elif (f.default_factory is not dataclasses.MISSING and f.default_factory in (tuple, list)) or f.default == ():
            entry["default"] = []
        elif f.default_factory is dict:
            entry["default"] = {}
        fields.append(entry)
    schema: dict[str, Any] = {"type": "record", "name": cls.__name__, "namespace": namespace, "fields": fields}
    if cls.__doc__ and not cls.__doc__.startswith(cls.__name__ + "("):
        schema["doc"] = " ".join(cls.__doc__.split())
    return schema


def _type(hint: Any, namespace: str, seen: set[str], where: str) -> Any:
    if hint in _PRIMITIVES:
        return _PRIMITIVES[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType) and type(None) in args and len(args) == 2:
        inner = args[0] if args[1] is type(None) else args[1]
        return ["null", _type(inner, namespace, seen, where)]
    if origin in (tuple, list) and (origin is list or (len(args) == 2 and args[1] is Ellipsis)):
        return {"type": "array", "items": _type(args[0], namespace, seen, where)}
    if origin is dict and args[0] is str:
        return {"type": "map", "values": _type(args[1], namespace, seen, where)}
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, enum.Enum)):
        if hint.__name__ in seen:
            return f"{namespace}.{hint.__name__}"
        if dataclasses.is_dataclass(hint):
            return _record(hint, namespace, seen)
        seen.add(hint.__name__)
        symbols = [member.value for member in hint]
        return {"type": "enum", "name": hint.__name__, "namespace": namespace, "symbols": symbols}
    raise ConfigurationError(f"{where}: no Avro type stands for {hint!r}; use int, float, bool, str, bytes, a string"
                             " enum, a dataclass, tuple[X, ...], dict[str, X] or X | None")  # fmt: skip


class Mapper:
    """Between instances of one dataclass and the plain values that an Avro library takes and gives."""

    def __init__(self, cls: type, known: dict[type, Mapper] | None = None) -> None:
        known = {} if known is None else known
        known[cls] = self  # before its fields: one of them may be of this class again
        hints = typing.get_type_hints(cls)
        self.cls = cls
        self._fields = [(f.name, *_converters(hints[f.name], known)) for f in dataclasses.fields(cls)]
        self._flat = all(down is None for _, down, _ in self._fields)
        self._names = [name for name, _, _ in self._fields]

    def to_plain(self, value: Any) -> dict[str, Any]:
        if self._flat:
            return {name: getattr(value, name) for name in self._names}
        return {
            name: getattr(value, name) if down is None else down(getattr(value, name)) for name, down, _ in self._fields
        }

    def from_plain(self, plain: dict[str, Any]) -> Any:
        if self._flat:
            return self.cls(**plain)
        return self.cls(**{name: plain[name] if up is None else up(plain[name]) for name, _, up in self._fields})


def _converters(hint: Any, known: dict[type, Mapper]) -> tuple[Any, Any]:
    """How a field's value goes to plain and comes back; None where it is plain already."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = args[0] if args[1] is type(None) else args[1]
        down, up = _converters(inner, known)
        if down is None:
            return None, None
        return (lambda v: None if v is None else down(v)), (lambda v: None if v is None else up(v))
    if origin in (tuple, list):
        down, up = _converters(args[0], known)
        return (
            list if down is None else (lambda v: [down(x) for x in v]),
            origin if up is None else (lambda v: origin(up(x) for x in v)),
        )
    if origin is dict:
        down, up = _converters(args[1], known)
        if down is None:
            return None, None
        return (lambda v: {k: down(x) for k, x in v.items()}), (lambda v: {k: up(x) for k, x in v.items()})
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        mapper = known.get(hint) or Mapper(hint, known)
        return mapper.to_plain, mapper.from_plain
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return (lambda v: v.value), hint
    return None, None
