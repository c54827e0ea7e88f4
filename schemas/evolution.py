"""Whether what was written under one Avro schema can be read under another (Avro's rules of schema resolution)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WIDENED: Mapping[str, frozenset[str]] = {
    "int": frozenset({"int", "long", "float", "double"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "string": frozenset({"string", "bytes"}),
    "bytes": frozenset({"bytes", "string"}),
}
_COMPLEX = ("record", "error", "enum", "array", "map", "fixed")


def first_incompatibility(reader: Any, writer: Any) -> str | None:
    """Why some value written under ``writer`` cannot be read under ``reader``; None: all can."""
    return _Comparison(reader, writer).problem(reader, writer, "the value")


class _Comparison:
    def __init__(self, reader: Any, writer: Any) -> None:
        self._readers: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        _collect(reader, "", self._readers)
        _collect(writer, "", self._writers)
        self._under_way: set[tuple[str, str]] = set()

    def problem(self, reader: Any, writer: Any, where: str) -> str | None:
        reader, writer = _resolved(reader, self._readers), _resolved(writer, self._writers)
        if isinstance(writer, list):
            return next((p for branch in writer if (p := self.problem(reader, branch, where))), None)
        if isinstance(reader, list):
            if any(self.problem(branch, writer, where) is None for branch in reader):
                return None
            return f"{where} was a {_kind(writer)}, which the union of today does not hold"
        r, w = _kind(reader), _kind(writer)
        if r not in _COMPLEX and w not in _COMPLEX:
            return None if r in _WIDENED.get(w, {w}) else f"{where} was a {w} and is a {r} today"
        if r != w:
            return f"{where} was a {w} and is a {r} today"
        match r:
            case "array":
                return self.problem(reader["items"], writer["items"], f"an item of {where}")
            case "map":
                return self.problem(reader["values"], writer["values"], f"an entry of {where}")
            case "fixed":
                return None if reader["size"] == writer["size"] else f"{where} has another size today"
            case "enum":
                gone = [s for s in writer["symbols"] if s not in reader["symbols"]]
                return f"{where} may be {gone[0]!r}, which is gone" if gone and "default" not in reader else None
            case _:
                return self._record_problem(reader, writer)

    def _record_problem(self, reader: Any, writer: Any) -> str | None:
        pair = str(reader.get("name")), str(writer.get("name"))
        names = {pair[0].rsplit(".", 1)[-1], *(a.rsplit(".", 1)[-1] for a in reader.get("aliases", ()))}
        if pair[1].rsplit(".", 1)[-1] not in names:
            return f"record {pair[1]!r} is called {pair[0]!r} today"
        if pair in self._under_way:
            return None
        self._under_way.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            old = next((written[n] for n in (field["name"], *field.get("aliases", ())) if n in written), None)
            if old is None:
                if "default" not in field:
                    return f"field {field['name']!r} of {pair[0]!r} is new and has no default"
            elif problem := self.problem(field["type"], old["type"], f"field {field['name']!r} of {pair[0]!r}"):
                return problem
        return None


def _kind(schema: Any) -> str:
    if isinstance(schema, Mapping):
        inner = schema["type"]
        return inner if isinstance(inner, str) else _kind(inner)
    return str(schema)


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    while True:
        if isinstance(schema, str) and schema in named:
            return named[schema]
        if isinstance(schema, Mapping) and (schema["type"] in named or not isinstance(schema["type"], str)):
            schema = schema["type"]
        else:
            return schema


def _collect(schema: Any, namespace: str, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, namespace, named)
    elif isinstance(schema, Mapping):
        kind = schema.get("type")
        if "name" in schema and kind in ("record", "error", "enum", "fixed"):
            namespace = schema.get("namespace", namespace)
            name = schema["name"]
            named[name] = schema
            if namespace and "." not in name:
                named[f"{namespace}.{name}"] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], namespace, named)
        for inner in ("items", "values"):
            _collect(schema.get(inner), namespace, named)
        if not isinstance(kind, str):
            _collect(kind, namespace, named)
