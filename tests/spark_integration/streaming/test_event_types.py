"""Which Spark type an operator's events have, and that values come through."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from penstock.schemas.errors import ConfigurationError
from penstock.schemas.user_codec import AvroCodec, BytesCodec, DataclassCodec, JsonCodec
from penstock.spark_integration.streaming.event_types import described, event_type


def record(*fields: tuple[str, Any], name: str = "Thing") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


UTC = dt.UTC
NESTED = record(("x", "long"), name="Point")
MAPPED = [
    ("boolean", "boolean", True),
    ("int", "int", -1),
    ("long", "bigint", 2**40),
    ("float", "float", 0.5),
    ("double", "double", 0.1),
    ("string", "string", "ü"),
    ("bytes", "binary", b"\0"),
    ({"type": "fixed", "name": "F", "size": 2}, "binary", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B"),
    ({"type": "array", "items": "int"}, "array<int>", [1, 2]),
    ({"type": "array", "items": ["null", "int"]}, "array<int>", [1, None]),
    ({"type": "map", "values": "long"}, "map<string,bigint>", {"a": 1}),
    ({"type": "map", "values": {"type": "map", "values": "int"}}, "map<string,map<string,int>>", {"a": {"b": 1}}),
    ({"type": "array", "items": {"type": "map", "values": "int"}}, "array<map<string,int>>", [{"b": 1}, {}]),
    (["null", "string"], "string", None),
    (["string", "null"], "string", "s"),
    (["null", {"type": "map", "values": "int"}], "map<string,int>", None),
    (["long"], "bigint", 3),
    (NESTED, "struct<x:bigint>", {"x": 1}),
    (["null", NESTED], "struct<x:bigint>", None),
    ({"type": "int", "logicalType": "date"}, "date", dt.date(2024, 2, 29)),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        "timestamp",
        dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
    ),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        "timestamp",
        dt.datetime(2024, 2, 29, 1, 2, 3, 456000, tzinfo=UTC),
    ),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp_ntz",
        dt.datetime(2024, 2, 29, 1, 2, 3, 456789),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "decimal(9,2)",
        Decimal("1234567.89"),
    ),
    ({"type": "string", "logicalType": "of-somebody-else"}, "string", "s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("avro", "spark", "value"), MAPPED, ids=[f"{spark}-{i}" for i, (_, spark, _) in enumerate(MAPPED)]
)
def test_an_avro_type_has_its_spark_type_and_its_values(avro: Any, spark: str, value: Any) -> None:
    codec = AvroCodec(record(("value", avro)))
    found = event_type(described(codec))
    assert found.spark.simpleString() == f"struct<value:{spark}>"
    arrow = pa.array([found.value(codec.encode({"value": value}))], to_arrow_type(found.spark, timezone="UTC"))
    (back,) = arrow.to_pylist(maps_as_pydicts="strict")
    assert back == {"value": value}


def test_a_uuid_is_a_string() -> None:
    codec = AvroCodec(record(("id", {"type": "string", "logicalType": "uuid"})))
    found = event_type(described(codec))
    value = uuid.uuid4()
    assert found.spark.simpleString() == "struct<id:string>"
    assert found.value(codec.encode({"id": value})) == {"id": str(value)}


def test_what_may_be_missing_is_nullable_and_nothing_else() -> None:
    found = event_type(described(AvroCodec(record(("a", "int"), ("b", ["null", "int"]), ("c", ["int"])))))
    assert [field.nullable for field in found.spark.fields] == [False, True, False]  # type: ignore[attr-defined]
    assert not found.nullable


class Kind(enum.StrEnum):
    NEW = "new"


@dataclasses.dataclass
class Inner:
    number: int


@dataclasses.dataclass
class Outer:
    kind: Kind
    inner: Inner | None
    again: tuple[Inner, ...]
    by_name: dict[str, Inner]


def test_a_dataclass_is_a_struct_of_its_fields() -> None:
    codec = DataclassCodec(Outer)
    found = event_type(described(codec))
    assert found.spark.simpleString() == (
        "struct<kind:string,inner:struct<number:bigint>,again:array<struct<number:bigint>>,"
        "by_name:map<string,struct<number:bigint>>>"
    )
    sent = Outer(Kind.NEW, Inner(1), (Inner(2), Inner(3)), {"x": Inner(4)})
    arrow = pa.array([found.value(codec.encode(sent))], to_arrow_type(found.spark, timezone="UTC"))
    assert arrow.to_pylist(maps_as_pydicts="strict") == [
        {
            "kind": "new",
            "inner": {"number": 1},
            "again": [{"number": 2}, {"number": 3}],
            "by_name": {"x": {"number": 4}},
        }
    ]


def test_events_of_an_earlier_version_are_read_as_todays() -> None:
    old = record(("a", "int"))
    new = {
        **record(("a", "long")),
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "-"}],
    }
    found = event_type(described(AvroCodec(new, previous=[old])))
    assert found.spark.simpleString() == "struct<a:bigint,b:string>"
    assert found.value(AvroCodec(old).encode({"a": 1})) == {"a": 1, "b": "-"}
    assert found.value(AvroCodec(new).encode({"a": 2, "b": "x"})) == {"a": 2, "b": "x"}


@pytest.mark.parametrize("codec", [BytesCodec(), JsonCodec()])
def test_events_without_an_avro_schema_are_binary(codec: Any) -> None:
    assert described(codec) is None
    assert event_type(None).spark.simpleString() == "binary"
    assert event_type(None).value(b"x") == b"x"


LIST = record(("next", ["null", "List"]), name="List")


@pytest.mark.parametrize(
    ("avro", "message"),
    [
        (record(("a", ["int", "string"])), "field 'a' of the event is a union of int, string"),
        (record(("a", ["null", "int", "string"])), "union of null, int, string"),
        (record(("a", "null")), "field 'a' of the event is 'null'"),
        (record(("a", ["null"])), "union of null"),
        (LIST, "the record 'List' inside of itself"),
        (record(), "the record 'Thing' without fields"),
        (record(("a", {"type": "int", "logicalType": "time-millis"})), "is time-millis"),
        (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 50})), "a decimal of 50 digits"),
        (record(("a", {"type": "array", "items": ["int", "null", "long"]})), "an item of field 'a' of the event"),
        (record(("a", {"type": "map", "values": ["int", "long"]})), "a value of field 'a' of the event"),
    ],
)
def test_a_type_that_spark_does_not_have_is_refused_where_it_stands(avro: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{message}.*no Spark type: use .*Or read the events as bytes"):
        described(AvroCodec(avro))


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"type": "nothing"}'])
def test_an_option_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Avro schema|eventSchema"):
        event_type(text)
