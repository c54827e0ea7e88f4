"""Whether what was written under one Avro schema can be read under another, and if not: where, and why.

The rules are Avro's rules of schema resolution, as the reader that Penstock decodes with follows them, and stricter in
two places, where a resolved value would be no error and yet a wrong one: ``bytes`` do not become a ``string`` (not all
bytes are text), and a logical type stays what it is (the same number would be another time, another amount).

A path names the place in the reader's words: ``/passenger/age`` is a field, ``/legs/*`` an array's items or a map's
values, ``/`` the value itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .bounds import parse

_WIDENED: Mapping[str, frozenset[str]] = {
    "int": frozenset({"int", "long", "float", "double"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "string": frozenset({"string", "bytes"}),
    "bytes": frozenset({"bytes", "string"}),
}
_NAMED = ("record", "error", "enum", "fixed")
_LOGICAL = frozenset({
    "decimal", "uuid", "date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros",
    "local-timestamp-millis", "local-timestamp-micros",
})  # fmt: skip
"""Those that change what a value is when it is read; others are ignored, as Avro says."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One place where some value of the writer's cannot be read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def incompatibilities(reader: Any, writer: Any) -> list[Incompatibility]:
    """Why some value written under ``writer`` cannot be read under ``reader``; empty: all can.

    Both are schemas as JSON gives them. Raises :class:`ConfigurationError` where one is none.
    """
    read, written = parse(reader), parse(writer)
    if read.schema == written.schema:
        return []  # nothing is resolved then
    compared = _Comparison(read.named, written.named)
    return list(compared.problems(read.schema, written.schema, ""))


class _Comparison:
    def __init__(self, readers: Mapping[str, Any], writers: Mapping[str, Any]) -> None:
        self._readers, self._writers = readers, writers
        self._compared: set[tuple[str, str]] = set()
        """Pairs of records that are told of where they were met first, so that a recursion ends."""

    def problems(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        reader, writer = _resolved(reader, self._readers), _resolved(writer, self._writers)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.problems(reader, branch, path)
        elif isinstance(reader, list):
            # The first branch that looks like it is the one that is read into, even where a later one would do.
            branch = next((b for b in reader if self._looks_like(b, writer)), None)
            if branch is None:
                kinds = ", ".join(_told(_resolved(b, self._readers)) for b in reader)
                yield _at(path, f"{_told(writer)} is not in the union [{kinds}]")
            else:
                yield from self.problems(branch, writer, path)
        elif not self._looks_like(reader, writer, deep=False) or (_kind(reader), _kind(writer)) == ("string", "bytes"):
            yield _at(path, f"{_told(writer)} cannot be read as {_told(reader)}{_hint(reader, writer)}")
        else:
            yield from _logical_problems(reader, writer, path)
            yield from self._inner_problems(reader, writer, path)

    def _inner_problems(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        match _kind(reader):
            case "array":
                yield from self.problems(reader["items"], writer["items"], f"{path}/*")
            case "map":
                yield from self.problems(reader["values"], writer["values"], f"{path}/*")
            case "enum" if "default" not in reader:
                gone = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
                if gone:
                    yield _at(path, f"{', '.join(gone)} of enum {writer['name']} is gone, and it has no default")
            case "record" | "error":
                yield from self._record_problems(reader, writer, path)

    def _record_problems(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        pair = reader["name"], writer["name"]
        if pair in self._compared:
            return
        self._compared.add(pair)
        read_from = _read_from(reader, writer)
        for field in reader["fields"]:
            name, sources = field["name"], read_from[field["name"]]
            if len(sources) > 1:
                both = " and ".join(source["name"] for source in sources)
                yield _at(f"{path}/{name}", f"the writer has {both}, and an alias makes one field of them")
            elif sources:
                yield from self.problems(field["type"], sources[0]["type"], f"{path}/{name}")
            elif "default" not in field:
                yield _at(f"{path}/{name}", "the writer does not have this field, and it has no default")

    def _looks_like(self, reader: Any, writer: Any, deep: bool = True) -> bool:
        """Whether Avro would try to read the one as the other; ``deep``: looking into arrays and maps too."""
        reader, writer = _resolved(reader, self._readers), _resolved(writer, self._writers)
        if isinstance(reader, list) or isinstance(writer, list):
            return True
        r, w = _kind(reader), _kind(writer)
        if r in _NAMED and w in _NAMED:
            same = r == w or {r, w} == {"record", "error"}
            return same and _is_called(reader, writer["name"]) and (r != "fixed" or reader["size"] == writer["size"])
        if r == w and r in ("array", "map"):
            inner = "items" if r == "array" else "values"
            return not deep or self._looks_like(reader[inner], writer[inner])
        return r in _WIDENED.get(w, {w})


def _read_from(reader: Any, writer: Any) -> dict[str, list[Any]]:
    """The writer's fields that each of the reader's takes its value from."""
    by_name: dict[str, list[Any]] = {field["name"]: [] for field in reader["fields"]}
    by_alias = {alias: field["name"] for field in reader["fields"] for alias in field.get("aliases", ())}
    for field in writer["fields"]:
        target = field["name"] if field["name"] in by_name else by_alias.get(field["name"])
        if target is not None:
            by_name[target].append(field)
    return by_name


def _is_called(reader: Any, name: str) -> bool:
    """Names are compared without their namespace, as Avro does; an alias with one means exactly that."""
    short = name.rsplit(".", 1)[-1]
    aliases = reader.get("aliases", ())
    return reader["name"].rsplit(".", 1)[-1] == short or name in aliases or short in aliases


def _logical_problems(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    r, w = _logical(reader), _logical(writer)
    if r != w:
        yield _at(
            path, f"was {w or _told(writer)} and is {r or _told(reader)}: the same bytes would mean another value"
        )


def _logical(schema: Any) -> str:
    """The logical type with all that its value depends on; empty: none."""
    name = schema.get("logicalType") if isinstance(schema, Mapping) else None
    if name not in _LOGICAL:
        return ""
    if name != "decimal":
        return str(name)
    return f"decimal({schema.get('precision')}, {schema.get('scale', 0)})"


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, Mapping) else str(schema)


def _told(schema: Any) -> str:
    if isinstance(schema, list):
        return "a union"
    kind = _kind(schema)
    if kind == "fixed":
        return f"fixed {schema['name']} of {schema['size']} bytes"
    return f"{kind} {schema['name']}" if kind in _NAMED else kind


def _hint(reader: Any, writer: Any) -> str:
    r, w = _kind(reader), _kind(writer)
    if r == w and r in _NAMED and not _is_called(reader, writer["name"]):
        return " (an alias on the new name would do)"
    if (r, w) == ("string", "bytes"):
        return " (not all bytes are text)"
    return ""


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """Names replaced by what they stand for, and types that only wrap another one by that."""
    while True:
        if isinstance(schema, str) and schema in named:
            schema = named[schema]
        elif isinstance(schema, Mapping) and not isinstance(schema["type"], str):
            schema = schema["type"]
        elif isinstance(schema, Mapping) and schema["type"] in named and "name" not in schema:
            schema = named[schema["type"]]
        else:
            return schema


def _at(path: str, reason: str) -> Incompatibility:
    return Incompatibility(path or "/", reason)
