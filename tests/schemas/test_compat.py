"""What one Avro schema can read of another, by its rules and by what the Avro library then does."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.schemas.compat import incompatibilities
from penstock.schemas.errors import ConfigurationError


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Ride", "namespace": "n", "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def told(reader: Any, writer: Any) -> list[str]:
    return [str(problem) for problem in incompatibilities(reader, writer)]


NODE = record(field("next", ["null", "n.Ride"], default=None), field("n", "int"))

REFUSED = [
    ("int", "long", ["/: long cannot be read as int"]),
    ("string", "bytes", ["/: bytes cannot be read as string (not all bytes are text)"]),
    ("boolean", "int", ["/: int cannot be read as boolean"]),
    (array("int"), {"type": "map", "values": "int"}, ["/: map cannot be read as array"]),
    (array("int"), array("string"), ["/*: string cannot be read as int"]),
    (
        record(field("p", record(field("age", "string"), name="P"))),
        record(field("p", record(field("age", "int"), name="P"))),
        ["/p/age: int cannot be read as string"],
    ),
    (
        record(field("a", "int"), field("b", "int")),
        record(field("c", "int")),
        [
            "/a: the writer does not have this field, and it has no default",
            "/b: the writer does not have this field, and it has no default",
        ],
    ),
    (
        record(name="Trip"),
        record(),
        ["/: record n.Ride cannot be read as record n.Trip (an alias on the new name would do)"],
    ),
    (
        record(field("x", "int", aliases=["y"])),
        record(field("x", "int"), field("y", "int")),
        ["/x: the writer has x and y, and an alias makes one field of them"],
    ),
    (enum("A"), enum("A", "B", "C"), ["/: B, C of enum E is gone, and it has no default"]),
    (fixed(4), fixed(5), ["/: fixed F of 5 bytes cannot be read as fixed F of 4 bytes"]),
    ("int", ["null", "int"], ["/: null cannot be read as int"]),
    (["null", "string"], "int", ["/: int is not in the union [null, string]"]),
    (["string", "bytes"], "bytes", ["/: bytes cannot be read as string (not all bytes are text)"]),
    (["null", "int"], ["null", "int", "string"], ["/: string is not in the union [null, int]"]),
    (
        record(field("next", ["null", "n.Ride"], default=None), field("n", "string")),
        NODE,
        ["/n: int cannot be read as string"],
    ),
    (
        logical("bytes", "decimal", precision=6, scale=3),
        logical("bytes", "decimal", precision=6, scale=2),
        ["/: was decimal(6, 2) and is decimal(6, 3): the same bytes would mean another value"],
    ),
    (
        logical("bytes", "decimal", precision=8, scale=2),
        logical("bytes", "decimal", precision=6, scale=2),
        ["/: was decimal(6, 2) and is decimal(8, 2): the same bytes would mean another value"],
    ),
    (
        logical("long", "timestamp-micros"),
        logical("long", "timestamp-millis"),
        ["/: was timestamp-millis and is timestamp-micros: the same bytes would mean another value"],
    ),
    (
        logical("int", "date"),
        "int",
        ["/: was int and is date: the same bytes would mean another value"],
    ),
]  # fmt: skip

ACCEPTED = [
    ("long", "int"),
    ("double", "float"),
    ("bytes", "string"),
    (["null", "long"], "int"),
    (["string", "double"], "int"),
    ("int", ["int"]),
    (record(field("a", "int"), field("b", "string", default="")), record(field("a", "int"))),
    (record(), record(field("gone", array(NODE | {"name": "N", "fields": [field("n", "int")]})))),
    (record(field("years", "long", aliases=["age"])), record(field("age", "int"))),
    (record(name="Trip", aliases=["Ride"]), record()),
    (record(name="Trip", aliases=["m.Ride"]), record(namespace="m")),
    (record(namespace="other"), record()),
    (enum("A", default="A"), enum("A", "B")),
    (enum("A", "B", "C"), enum("A", "B")),
    (NODE, NODE),
    (record(*NODE["fields"], field("m", "int", default=0)), NODE),
    (logical("bytes", "decimal", precision=6, scale=2), logical("bytes", "decimal", precision=6, scale=2)),
    (logical("string", "own-kind"), "string"),
]


@pytest.mark.parametrize(("reader", "writer", "problems"), REFUSED)
def test_every_place_that_cannot_be_read_is_named_with_its_reason(
    reader: Any, writer: Any, problems: list[str]
) -> None:
    assert told(reader, writer) == problems


@pytest.mark.parametrize(("reader", "writer"), ACCEPTED)
def test_what_avro_resolves_is_compatible(reader: Any, writer: Any) -> None:
    assert told(reader, writer) == []


def test_a_recursive_record_is_told_of_once() -> None:
    tree = record(field("children", array("n.Ride")), field("n", "int"))
    other = record(field("children", array("n.Ride")), field("n", "string"))
    assert told(tree, other) == ["/n: string cannot be read as int"]


def test_an_alias_with_a_namespace_means_exactly_that_name() -> None:
    assert told(record(name="Trip", aliases=["k.Ride"]), record()) != []


@pytest.mark.parametrize("schema", ["nonsense", {"type": "record"}, 3, {"type": "array"}])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="not an Avro schema"):
        incompatibilities(schema, "int")


# ---- against the library: what is said must be what happens


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
SYMBOLS = st.lists(st.sampled_from("ABC"), min_size=1, max_size=3, unique=True)


@st.composite
def named(draw: st.DrawFn, depth: int, used: set[str]) -> Any:
    """An enum, a fixed or a record under a name of its own; names repeat between reader and writer, not within."""
    kind = draw(st.sampled_from(["enum", "fixed", "record"]))
    name = f"{kind}{draw(st.sampled_from(['N', 'M']))}{len(used)}"  # by kind: the library reads a fixed as an enum
    used.add(name)
    if kind == "enum":
        symbols = draw(SYMBOLS)
        more = {"default": symbols[0]} if draw(st.booleans()) else {}
        return {"type": "enum", "name": name, "symbols": symbols, **more}
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": draw(st.integers(1, 2))}
    fields = []
    for each in draw(st.lists(st.sampled_from("xyz"), max_size=3, unique=True)):
        made = field(each, draw(schemas(depth - 1, used)))
        if made["type"] in ("int", "long") and draw(st.booleans()):
            made["default"] = 7
        if draw(st.integers(0, 3)) == 0:
            made["aliases"] = [draw(st.sampled_from("xyzw"))]
        fields.append(made)
    return {"type": "record", "name": name, "fields": fields}


@st.composite
def schemas(draw: st.DrawFn, depth: int, used: set[str]) -> Any:
    kind = draw(st.sampled_from(["primitive", "named", "array", "map", "union"])) if depth else "primitive"
    match kind:
        case "named":
            return draw(named(depth, used))
        case "array":
            return array(draw(schemas(depth - 1, used)))
        case "map":
            return {"type": "map", "values": draw(schemas(depth - 1, used))}
        case "union":
            kinds = st.sampled_from([kind for kind in PRIMITIVES if kind != "float"])  # a value cannot say which
            branches = draw(st.lists(kinds, min_size=1, max_size=3, unique=True))
            return [*branches, *([draw(named(depth - 1, used))] if depth > 1 and draw(st.booleans()) else [])]
        case _:
            return draw(st.sampled_from(PRIMITIVES))


@st.composite
def changed(draw: st.DrawFn, schema: Any) -> Any:
    """The schema with a few things changed, as its next version might have it."""
    if isinstance(schema, list):
        kept = [draw(changed(branch)) if isinstance(branch, dict) else branch for branch in schema]
        return kept[: draw(st.integers(1, len(kept)))] if draw(st.integers(0, 3)) == 0 else kept
    if isinstance(schema, str):
        return (
            draw(st.sampled_from([schema, schema, schema, "long", "string", "double", ["null", schema]]))
            if (schema != "null")
            else schema
        )
    match schema["type"]:
        case "array":
            return array(draw(changed(schema["items"])))
        case "map":
            return {**schema, "values": draw(changed(schema["values"]))}
        case "record":
            fields = [{**f, "type": draw(changed(f["type"]))} for f in schema["fields"] if draw(st.integers(0, 4))]
            for each in fields:
                if "default" in each and each["type"] not in ("int", "long"):
                    del each["default"]
            if draw(st.booleans()):
                fields.append(field("added", "int", **({"default": 1} if draw(st.booleans()) else {})))
            return {**schema, "fields": fields}
        case "enum":
            return {**schema, "symbols": draw(SYMBOLS)} if draw(st.booleans()) and "default" not in schema else schema
        case _:
            return schema


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    writer = draw(schemas(3, set()))
    reader = draw(changed(writer)) if draw(st.integers(0, 3)) else draw(schemas(3, set()))
    return reader, writer


def values(schema: Any, named_types: dict[str, Any], depth: int = 0) -> list[Any]:
    """Values that together reach every branch, symbol and field of the schema, and bytes that are no text."""
    if isinstance(schema, list):
        return [v for branch in schema for v in _tagged(branch, named_types)]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return values(kind, named_types)
    match kind:
        case "null":
            return [None]
        case "boolean":
            return [True]
        case "int":
            return [5]
        case "long":
            return [2**40]
        case "float" | "double":
            return [0.5]
        case "bytes":
            return [b"text", b"\xff"]
        case "string":
            return ["text"]
        case "fixed":
            return [b"\x01" * schema["size"]]
        case "enum":
            return list(schema["symbols"])
        case "array":
            return [[v] for v in values(schema["items"], named_types)]
        case "map":
            return [{"key": v} for v in values(schema["values"], named_types)]
        case _:
            each = {f["name"]: values(f["type"], named_types) for f in schema["fields"]}
            most = max((len(v) for v in each.values()), default=1)
            return [{name: v[min(i, len(v) - 1)] for name, v in each.items()} for i in range(most)]


def _tagged(branch: Any, named_types: dict[str, Any]) -> list[Any]:
    """Values of one branch of a union, said to be that branch's where the library would have to guess."""
    found = values(branch, named_types)
    if isinstance(branch, dict) and "name" in branch:
        return [(branch["name"], v) for v in found]
    return found


def reads(reader: Any, writer: Any, value: Any) -> bool:
    written, read = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, written, value)
    body.seek(0)
    try:
        fastavro.schemaless_reader(body, written, read)
    except Exception:
        return False
    return body.tell() == len(body.getvalue())


@settings(max_examples=500, deadline=None)
@given(pairs())
def test_what_is_said_compatible_decodes_and_what_is_said_incompatible_fails_for_some_value(
    pair: tuple[Any, Any],
) -> None:
    reader, writer = pair
    problems = incompatibilities(reader, writer)
    assume(not any("an alias makes one" in p.reason for p in problems))  # the library takes one of the two, silently
    outcomes = [reads(reader, writer, value) for value in values(writer, {})]
    assert all(outcomes) == (problems == []), f"{[str(p) for p in problems]}"
