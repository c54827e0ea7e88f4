"""Users' Avro that is deep or huge: refused with a declared error, in little time and memory.

Without the bounds most of these end the process, or fill its memory.
"""

from __future__ import annotations

import dataclasses
import io
import json
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from penstock.schemas.bounds import DECIMAL_BYTES_MAX, DEPTH_MAX, VALUES_MAX
from penstock.schemas.codec import header_of
from penstock.schemas.errors import ConfigurationError, UnreadableRecord
from penstock.schemas.user_codec import AvroCodec, DataclassCodec
from tests.schemas.values import zigzag

HARMLESS_BYTES = 64 * 1024 * 1024
HARMLESS_S = 30.0


@contextmanager
def harmless() -> Iterator[None]:
    tracemalloc.start()
    began = time.monotonic()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < HARMLESS_BYTES
        assert time.monotonic() - began < HARMLESS_S
    finally:
        tracemalloc.stop()


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


CHAIN = record("Link", field("next", ["null", "Link"]))
TREE = record("Tree", field("children", {"type": "array", "items": "Tree"}))
MAPS = record("Maps", field("inner", {"type": "map", "values": "Maps"}))
NULLS = {"type": "array", "items": "null"}


def chain(depth: int) -> Any:
    value = {"next": None}
    for _ in range(depth - 1):
        value = {"next": value}
    return value


def tree(depth: int, kind: type = list) -> Any:
    value: Any = {"children": kind()}
    for _ in range(depth - 1):
        value = {"children": kind([value])}
    return value


def maps(depth: int) -> Any:
    value: Any = {"inner": {}}
    for _ in range(depth - 1):
        value = {"inner": {"": value}}
    return value


NESTED = [
    pytest.param(CHAIN, chain, b"\x02", b"\x00", id="chain"),
    pytest.param(TREE, tree, b"\x02", b"\x00", id="tree"),
    pytest.param(MAPS, maps, b"\x02\x00", b"\x00", id="maps"),
]


@pytest.mark.parametrize(("schema", "value", "level", "end"), NESTED)
def test_a_payload_that_nests_too_deep_is_unreadable(schema: Any, value: Any, level: bytes, end: bytes) -> None:
    codec = AvroCodec(schema)
    for depth in (5_000, 200_000):
        with harmless(), pytest.raises(UnreadableRecord, match=f"nests more than {DEPTH_MAX} deep"):
            codec.decode(header_of(schema) + level * depth + end * depth)


@pytest.mark.parametrize(("schema", "value", "level", "end"), NESTED)
def test_a_value_that_nests_too_deep_is_refused_when_it_is_encoded(
    schema: Any, value: Any, level: bytes, end: bytes
) -> None:
    codec = AvroCodec(schema)
    for depth in (DEPTH_MAX + 2, 5_000):
        with harmless(), pytest.raises(ConfigurationError, match=f"nests more than {DEPTH_MAX} deep; use an array"):
            codec.encode(value(depth))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["next"] = loop
    with harmless(), pytest.raises(ConfigurationError, match="nests more than"):
        AvroCodec(CHAIN).encode(loop)


def test_a_value_of_few_parts_that_comes_to_very_many_is_refused() -> None:
    value: dict[str, Any] = {"children": []}
    for _ in range(60):
        value = {"children": [value, value]}
    with harmless(), pytest.raises(ConfigurationError, match=r"uses \d+ parts more than 1000000 times"):
        AvroCodec(TREE).encode(value)


def test_a_value_in_other_containers_is_looked_into_as_well() -> None:
    with harmless(), pytest.raises(ConfigurationError, match="nests more than"):
        AvroCodec(TREE).encode(tree(5_000, deque))


def test_what_nests_as_deep_as_it_may_comes_back() -> None:
    for schema, value in ((CHAIN, chain(DEPTH_MAX)), (TREE, tree(DEPTH_MAX // 2)), (MAPS, maps(DEPTH_MAX // 2))):
        codec = AvroCodec(schema)
        assert codec.decode(codec.encode(value)) == value


def test_the_widest_values_come_back() -> None:
    """Width is not bounded, where each value takes its bytes."""
    codec = AvroCodec(TREE)
    value = {"children": [{"children": []}] * 300_000}
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    "items",
    [
        "null",
        record("Empty"),
        {"type": "fixed", "name": "Nothing", "size": 0},
        record("Outer", field("a", record("Inner", field("b", "null"))), field("c", "Inner")),
        record("Wide", *(field(f"f{n}", "null") for n in range(100)), field("flag", "boolean")),
    ],
    ids=["null", "empty record", "empty fixed", "record of nulls", "a hundred nulls to a byte"],
)
@pytest.mark.parametrize("count", [2**40, 2**63 - 1, -(2**40)])
def test_an_array_of_items_that_take_no_bytes_is_unreadable(items: Any, count: int) -> None:
    schema = {"type": "array", "items": items}
    body = zigzag(count) + (zigzag(0) if count < 0 else b"") + zigzag(0) + b"\x00" * 10_000
    with harmless(), pytest.raises(UnreadableRecord, match=r"refused: (more values than|the payload ends|a value of)"):
        AvroCodec(schema).decode(header_of(schema) + body)


def test_so_many_items_of_no_bytes_are_refused_when_they_are_encoded() -> None:
    codec = AvroCodec(NULLS)
    few = [None] * VALUES_MAX
    assert codec.decode(codec.encode(few)) == few
    with pytest.raises(ConfigurationError, match="an array of items that take no bytes; write its length"):
        codec.encode([None] * 2 * VALUES_MAX)


def test_types_that_double_at_each_level_are_bounded_although_nothing_is_recursive() -> None:
    """A value of no bytes, and of 2^60 records."""
    schema = record("R0")
    for n in range(1, 30):
        schema = record(f"R{n}", field("a", schema), field("b", f"R{n - 1}"))
    with harmless(), pytest.raises(UnreadableRecord, match="more values than"):
        AvroCodec(schema).decode(header_of(schema))


def chained(types: int) -> dict[str, Any]:
    """Types that nest deep although their text does not."""
    fields = [field("f0", record("R0", field("x", "int")))]
    fields += [field(f"f{n}", record(f"R{n}", field("x", f"R{n - 1}"))) for n in range(1, types)]
    return record("Top", *fields)


def inline(depth: int) -> dict[str, Any]:
    schema: Any = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return record("Top", field("a", schema))


@pytest.mark.parametrize("schema", [chained(150), chained(3_000), inline(150), inline(100_000)])
def test_a_schema_whose_types_nest_too_deep_is_refused(schema: Any) -> None:
    with harmless(), pytest.raises(ConfigurationError, match=r"an Avro schema that cannot be used: .* nest.* deep; "):
        AvroCodec(schema)


def test_a_schema_whose_types_nest_as_deep_as_they_may_works() -> None:
    for schema, holds in ((chained(98), _of_chained(98)), (inline(97), {"a": []})):
        codec = AvroCodec(schema)
        assert codec.decode(codec.encode(holds)) == holds


def _of_chained(types: int) -> dict[str, Any]:
    values: list[Any] = [{"x": 7}]
    for _ in range(types - 1):
        values.append({"x": values[-1]})
    return {f"f{n}": value for n, value in enumerate(values)}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record("A", field("a", "A")), "contains itself in every value"),
        (record("A", field("b", record("B", field("a", "A")))), "contains itself in every value"),
        (record("A", field("a", ["A", "null"], default={})), "the default of field a of A may hold a record"),
        (record("A", field("a", {"type": "array", "items": "A"}, default=[{}])), "may hold a record"),
        (record("A", field("a", {"type": "map", "values": "A"}, default={"x": {}})), "may hold a record"),
        ({"type": "fixed", "name": "F", "size": -1}, "fixed F has the size -1"),
        ({"type": "fixed", "name": "F", "size": "x"}, "fixed F has the size 'x'"),
    ],
)
def test_a_schema_whose_values_have_no_end_or_no_size_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AvroCodec(schema)


def test_defaults_of_recursive_schemas_that_end_are_accepted() -> None:
    schema = record(
        "A",
        field("a", ["null", "A"], default=None),
        field("b", {"type": "array", "items": "A"}, default=[]),
        field("c", {"type": "map", "values": "A"}, default={}),
        field("d", {"type": "array", "items": "int"}, default=[1, 2]),
    )
    codec = AvroCodec(schema)
    assert codec.decode(codec.encode({})) == {"a": None, "b": [], "c": {}, "d": [1, 2]}


def test_a_decimal_of_very_many_digits_is_refused_before_it_becomes_a_number() -> None:
    schema = record("D", field("d", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}))
    codec = AvroCodec(schema)
    assert codec.decode(codec.encode({"d": Decimal("12.34")})) == {"d": Decimal("12.34")}
    size = 10_000_000
    with harmless(), pytest.raises(UnreadableRecord, match=f"at most {DECIMAL_BYTES_MAX} can be"):
        codec.decode(header_of(schema) + zigzag(size) + b"\x55" * size)


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node] = dataclasses.field(default_factory=list)
    next: Node | None = None


def test_a_dataclass_may_contain_itself_as_deep_as_any_value() -> None:
    codec = DataclassCodec(Node)
    value = Node("a", [Node("b"), Node("c", [Node("d")])], Node("e"))
    assert codec.decode(codec.encode(value)) == value
    for _ in range(DEPTH_MAX + 1):
        value = Node("f", next=value)
    with harmless(), pytest.raises(ConfigurationError):
        codec.encode(value)


def test_an_error_does_not_repeat_a_large_value() -> None:
    codec = AvroCodec(record("A", field("a", ["null", "long"])))
    with pytest.raises(ConfigurationError, match=r"does not fit the Avro schema 'A'") as raised:
        codec.encode({"a": "x" * 1_000_000})
    assert len(str(raised.value)) < 1_000


# ---- schemas that are learnt from a topic


@dataclasses.dataclass
class Split:
    path: str


SPLIT = DataclassCodec(Split).schema


def forged(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**SPLIT, "fields": [*SPLIT["fields"], *fields], **more}


def test_a_payload_under_a_learnt_schema_is_bounded_by_that_schema() -> None:
    """The class knows nothing of the field that is deep, and the decoder steps over it."""
    codec = DataclassCodec(Split)
    deep = forged(field("more", CHAIN), field("nulls", NULLS))
    assert codec.avro.learn(json.dumps(deep))
    for body in (b"\x02" * 200_000, b"\x00" + zigzag(2**40) + b"\x00"):
        with harmless(), pytest.raises(UnreadableRecord, match=r"refused: (the value nests|more values)"):
            codec.decode(header_of(deep) + b"\x02x" + body)
    assert codec.decode(header_of(deep) + b"\x02x" + b"\x00\x00") == Split("x")


@pytest.mark.parametrize("items", ["boolean", "float", "double", {"type": "fixed", "name": "F", "size": 16}])
@pytest.mark.parametrize("kind", ["array", "map"])
def test_items_that_are_not_there_are_not_stepped_over(kind: str, items: Any) -> None:
    """The class has no such field, so nothing of it is decoded."""
    codec = DataclassCodec(Split)
    wide = forged(field("more", {"type": kind, "items" if kind == "array" else "values": items}))
    assert codec.avro.learn(json.dumps(wide))
    with harmless(), pytest.raises(UnreadableRecord, match="refused: "):
        codec.decode(header_of(wide) + b"\x02x" + zigzag(2**40))
    assert codec.decode(header_of(wide) + b"\x02x" + b"\x00") == Split("x")


def test_a_block_that_lies_about_its_size_is_refused_where_it_would_be_skipped() -> None:
    """Skipped by its size, what follows it would be read from elsewhere than it was looked at."""
    codec = DataclassCodec(Split)
    deep = forged(field("nulls", NULLS))
    assert codec.avro.learn(json.dumps(deep))
    with pytest.raises(UnreadableRecord, match="says it has 7"):
        codec.decode(header_of(deep) + b"\x02x" + zigzag(-1) + zigzag(7) + zigzag(0))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "3", "[]", '"int"', '["null", "int"]', "{}", '{"type": "record"}', "[" * 100_000, "\ud800",
        '{"type": ["null", "int"]}', '{"type": {"type": {"type": "int"}}}', '{"type": 3}', "NaN", "1" * 10_000,
        json.dumps(forged(fields=3)), json.dumps(forged(fields=[3])), json.dumps(forged(name=[])),
        json.dumps(forged(field("a", "Nowhere"))), json.dumps(forged(field("a", "Split", default={}))),
        json.dumps(forged(field("a", "Nowhere"), __fastavro_parsed=True, __named_schemas={})),
        json.dumps(chained(3_000) | {"name": "Split"}), json.dumps(forged(doc="x" * 300_000)),
        json.dumps(forged(field("a", {"type": "enum", "name": "E", "symbols": 3}))),
    ],
)  # fmt: skip
def test_a_text_that_is_no_schema_of_use_is_not_learnt(text: str) -> None:
    codec = DataclassCodec(Split)
    with harmless():
        assert codec.avro.learn(text) is False
    assert codec.decode(codec.encode(Split("a"))) == Split("a")


def test_a_deep_text_is_not_learnt() -> None:
    for levels in (500, 50_000):
        text = '{"type":"array","items":' * levels + '"int"' + "}" * levels
        with harmless():
            assert DataclassCodec(Split).avro.learn(text) is False


def test_so_many_schemas_are_learnt_and_no_more() -> None:
    codec = DataclassCodec(Split)
    learnt = [codec.avro.learn(json.dumps(forged(field(f"f{n}", "int")))) for n in range(300)]
    assert learnt == [True] * 255 + [False] * 45
    assert codec.decode(codec.encode(Split("a"))) == Split("a")


def test_what_the_library_writes_passes_the_look_at_it() -> None:
    """Every type once, in a schema that is looked at because it is recursive."""
    schema = record(
        "All",
        *(field(kind, kind) for kind in ("null", "boolean", "int", "long", "float", "double", "bytes", "string")),
        field("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        field("fixed", {"type": "fixed", "name": "F", "size": 3}),
        field("again", "F"),
        field("date", {"type": "int", "logicalType": "date"}),
        field("map", {"type": "map", "values": ["long", "string"]}),
        field("next", ["null", "All"]),
        field("array", {"type": "array", "items": "All"}),
    )
    codec = AvroCodec(schema)
    value: dict[str, Any] = {
        "null": None, "boolean": True, "int": -(2**31), "long": -(2**63), "float": 0.5, "double": 0.1,
        "bytes": b"abc", "string": "é", "enum": "B", "fixed": b"abc", "again": b"def", "date": 3,
        "map": {"a": 2**63 - 1, "b": "c"}, "next": None, "array": [],
    }  # fmt: skip
    nested = value | {"next": value, "array": [value, value]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, codec.schemas[0], nested)
    assert codec.encode(nested) == header_of(schema) + out.getvalue()
    codec.decode(codec.encode(nested))
    for cut in range(10, len(codec.encode(value))):
        with pytest.raises(UnreadableRecord):
            codec.decode(codec.encode(value)[:cut])
