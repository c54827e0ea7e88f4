"""Bounds on users' Avro: how deep schemas and values nest, and how many values a payload holds.

An Avro library follows a schema without asking how far. A few bytes can nest values until the process's stack ends,
and an array of nulls takes no bytes at all: a count of 2^40 is enough to fill the memory. So schemas are looked at
once. A payload is looked at, before it is decoded, only if its schema allows one that is out of bounds: a recursive
schema, one whose values may take no bytes, one with decimals of any length, or another one than the reader's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from .errors import ConfigurationError

DEPTH_MAX = 100
"""Records, arrays and maps within one another: in the text of a schema, in its types, and in a value."""
VALUES_MAX = 65_536
"""Values in one payload, beside ``VALUES_PER_BYTE`` for each of its bytes."""
VALUES_PER_BYTE = 16
USES_MAX = 1_000_000
"""Of the parts of one value, where it uses the same ones again and again."""
DECIMAL_BYTES_MAX = 1_024
"""Of the number in one decimal of type ``bytes``: reading a number takes time with the square of its length."""

LIST_INSTEAD = "use an array in place of a chain"

_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINT_BYTES_MAX = 10


class OutOfBounds(ValueError):
    """A schema, a value or a payload beyond the bounds, or a payload that is none. Callers raise a declared error."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A schema as the Avro library takes it."""

    schema: Any
    """With every name in full."""
    named: Mapping[str, Any]
    """Its named types."""
    bounds: PayloadBounds


def parse(schema: Any) -> Parsed:
    """Parse a schema as JSON gives it. Raise ConfigurationError for one that is none, or that is out of bounds."""
    named: dict[str, Any] = {}
    try:
        require_shallow(schema, "the schema", "name its inner types, and define each where it is used first")
        parsed = fastavro.parse_schema(dict(schema) if isinstance(schema, Mapping) else schema, named)
        return Parsed(parsed, named, PayloadBounds(parsed, named))
    except OutOfBounds as error:
        raise ConfigurationError(f"an Avro schema that cannot be used: {error}") from error
    except Exception as error:  # whatever a schema can be wrong in
        raise ConfigurationError(f"not an Avro schema: {error!r}") from error


def require_shallow(value: Any, what: str, way_out: str) -> None:
    """Raise OutOfBounds if containers nest deeper than ``DEPTH_MAX`` in ``value``, or contain themselves.

    So too if a few containers that are used again and again come to very many: each use is written out.
    """
    level, depth, different, uses = [(value, 1)] if _is_container(value) else [], 0, 0, 0
    while level:
        if depth > DEPTH_MAX:
            raise OutOfBounds(f"{what} nests more than {DEPTH_MAX} deep; {way_out}")
        inner: dict[int, tuple[Any, int]] = {}
        for each, times in level:
            different, uses = different + 1, uses + times
            children: Iterable[Any] = each.values() if isinstance(each, Mapping) else each
            for child in children:
                if _is_container(child):
                    inner[id(child)] = child, inner.get(id(child), (child, 0))[1] + times
        if uses > USES_MAX and uses > VALUES_PER_BYTE * different:
            raise OutOfBounds(f"{what} uses {different} parts more than {USES_MAX} times; {way_out}")
        level, depth = list(inner.values()), depth + 1


def _is_container(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray | memoryview)


class PayloadBounds:
    """Which payloads of a schema have to be looked at before they are decoded, and the look.

    ``schema`` is as the Avro library parses it, ``named`` its named types. Raises OutOfBounds for a schema whose types
    nest too deep, or whose records contain themselves without end.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._schema, self._named = schema, named
        analysis = _Analysis(named)
        depth, excess = analysis.of(schema, 0)
        if depth > DEPTH_MAX:
            raise OutOfBounds(_TOO_DEEP)
        self.recursive = analysis.recursive
        """Whether values nest as deep as their bytes say."""
        if self.recursive:
            _require_ending_defaults(named)
        self._always = self.recursive or analysis.may_take_no_bytes or excess > VALUES_MAX
        self._repeats, self._decimals = analysis.repeats, analysis.has_decimals

    def check(self, payload: bytes, begin: int, *, resolved: bool = False) -> None:
        """Raise OutOfBounds if what begins there cannot be decoded in bounded memory and on a bounded stack.

        ``resolved``: it is read into another schema. Where that lacks a field, the Avro library steps over as many
        items as a count says, and does not notice the end of the payload.
        """
        if (
            self._always
            or (self._decimals and len(payload) - begin > DECIMAL_BYTES_MAX)
            or (resolved and self._repeats)
        ):
            end = _Scan(payload, begin, self._named).skip(self._schema, 0)
            if end != len(payload):
                raise OutOfBounds(f"{len(payload) - end} bytes behind the value")


_TOO_DEEP = f"the schema's types nest more than {DEPTH_MAX} deep; use fewer levels of types"


def _require_ending_defaults(named: Mapping[str, Any]) -> None:
    """Raise OutOfBounds for a default that holds a record: its missing fields have defaults, and so on for ever."""
    for name, schema in named.items():
        for field in schema.get("fields", ()):
            default = field.get("default")
            if not _is_container(default):
                continue
            kind = field["type"]["type"] if isinstance(field["type"], Mapping) else None
            items = default.values() if isinstance(default, Mapping) else default
            if (isinstance(default, Mapping) and kind != "map") or any(map(_is_container, items)):
                raise OutOfBounds(
                    f"the default of field {field['name']} of {name} may hold a record, and the schema is recursive;"
                    " use null, or an empty array or map"
                )


class _Analysis:
    """Walks the types once. A type that is being walked when it is met again is recursive."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._known: dict[str, tuple[int, int]] = {}
        self._open: dict[str, int] = {}
        """Named types on the path, with the number of bytes-taking steps before them."""
        self._steps = 0
        """Unions, arrays and maps on the path: each takes a byte or more."""
        self.recursive = self.may_take_no_bytes = self.has_decimals = self.repeats = False

    def of(self, schema: Any, depth: int) -> tuple[int, int]:
        """Return the depth of the type, and its excess: values beyond those that its own bytes allow, arrays apart."""
        if depth > DEPTH_MAX:
            raise OutOfBounds(_TOO_DEEP)
        if isinstance(schema, list):
            self._steps += 1
            inner = [self.of(branch, depth) for branch in schema]
            self._steps -= 1
            return max((d for d, _ in inner), default=0), max((e for _, e in inner), default=0) - VALUES_PER_BYTE
        if not isinstance(schema, Mapping):
            return self._of_name(str(schema), depth)
        kind = schema["type"]
        if isinstance(kind, Mapping | list):
            return self.of(kind, depth)
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_name(schema["name"], depth)
        if kind in ("array", "map"):
            self._steps += 1
            inner_depth, excess = self.of(schema["items" if kind == "array" else "values"], depth + 1)
            self._steps -= 1
            self.repeats = True
            key = VALUES_PER_BYTE if kind == "map" else 0
            self.may_take_no_bytes = self.may_take_no_bytes or excess > key
            return 1 + inner_depth, 1 - VALUES_PER_BYTE
        self.has_decimals = self.has_decimals or (kind == "bytes" and schema.get("logicalType") == "decimal")
        return self._of_name(str(kind), depth)

    def _of_name(self, name: str, depth: int) -> tuple[int, int]:
        schema = self._named.get(name)
        if schema is None:
            return 0, 1 - VALUES_PER_BYTE * _FIXED_SIZES.get(name, 1)
        if schema["type"] == "fixed":
            if not isinstance(schema["size"], int) or schema["size"] < 0:
                raise OutOfBounds(f"fixed {name} has the size {schema['size']!r}; it must be a number of bytes")
            return 0, 1 - VALUES_PER_BYTE * schema["size"]
        if schema["type"] == "enum":
            return 0, 1 - VALUES_PER_BYTE
        if name in self._open:
            if self._open[name] == self._steps:
                raise OutOfBounds(f"record {name} contains itself in every value; put a union with null between")
            self.recursive = True
            return 0, 0
        if name not in self._known:
            self._open[name] = self._steps
            fields = [self.of(field["type"], depth + 1) for field in schema["fields"]]
            del self._open[name]
            self._known[name] = 1 + max((d for d, _ in fields), default=0), 1 + sum(e for _, e in fields)
        return self._known[name]


class _Scan:
    """Steps over one payload as a decoder would, and keeps nothing of it."""

    def __init__(self, payload: bytes, begin: int, named: Mapping[str, Any]) -> None:
        self._bytes, self._at, self._named = payload, begin, named
        self._left = VALUES_MAX + VALUES_PER_BYTE * (len(payload) - begin)

    def skip(self, schema: Any, depth: int) -> int:
        """The position behind a value of this type."""
        self._spend(1)
        if depth > DEPTH_MAX:
            raise OutOfBounds(f"the value nests more than {DEPTH_MAX} deep; {LIST_INSTEAD}")
        if isinstance(schema, list):
            return self.skip(schema[self._index(len(schema), "branch of a union")], depth)
        if isinstance(schema, Mapping):
            kind = schema["type"]
            if isinstance(kind, Mapping | list):
                return self.skip(kind, depth)
        else:
            schema = self._named.get(schema, schema)
            kind = schema["type"] if isinstance(schema, Mapping) else schema
        match kind:
            case "record" | "error":
                for field in schema["fields"]:
                    self.skip(field["type"], depth + 1)
            case "array":
                self._skip_blocks(schema["items"], False, depth)
            case "map":
                self._skip_blocks(schema["values"], True, depth)
            case "string" | "bytes":
                decimal = isinstance(schema, Mapping) and schema.get("logicalType") == "decimal"
                self._skip_text(DECIMAL_BYTES_MAX if decimal else len(self._bytes))
            case "int" | "long":
                self._long()
            case "enum":
                self._index(len(schema["symbols"]), "symbol of an enum")
            case "fixed":
                self._skip_bytes(schema["size"])
            case "null" | "boolean" | "float" | "double":
                self._skip_bytes(_FIXED_SIZES[kind])
            case _:
                return self.skip(self._named[kind], depth)
        return self._at

    def _spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise OutOfBounds(
                f"more values than {VALUES_MAX} and {VALUES_PER_BYTE} for each byte: an array of items that take no"
                " bytes; write its length in their place"
            )

    def _skip_blocks(self, items: Any, keyed: bool, depth: int) -> None:
        while (count := self._long()) != 0:
            size = None
            if count < 0:
                count, size = -count, self._long()
            begin = self._at
            for _ in range(count):
                left, at = self._left, self._at
                if keyed:
                    self._skip_text(len(self._bytes))
                self.skip(items, depth + 1)
                if self._at == at:  # it took no bytes, so all others are like it
                    self._spend((left - self._left) * (count - 1))
                    break
            if size is not None and self._at - begin != size:
                raise OutOfBounds(f"a block of {self._at - begin} bytes that says it has {size}")

    def _skip_text(self, bytes_max: int) -> None:
        size = self._long()
        if size > bytes_max:
            raise OutOfBounds(f"{size} bytes in one value, where at most {bytes_max} can be")
        self._skip_bytes(size)

    def _skip_bytes(self, size: int) -> None:
        if not 0 <= size <= len(self._bytes) - self._at:
            raise OutOfBounds(f"a value of {size} bytes, and {len(self._bytes) - self._at} are left")
        self._at += size

    def _index(self, count: int, what: str) -> int:
        index = self._long()
        if not 0 <= index < count:
            raise OutOfBounds(f"{what} number {index}, and there are {count}")
        return index

    def _long(self) -> int:
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            if self._at >= len(self._bytes):
                raise OutOfBounds("the payload ends within a number")
            byte = self._bytes[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise OutOfBounds(f"a number of more than {_VARINT_BYTES_MAX} bytes")
        if value >= 2**64:
            raise OutOfBounds("a number of more than 64 bits")
        return (value >> 1) ^ -(value & 1)
