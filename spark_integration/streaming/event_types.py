"""An operator's events as a column: Spark's type for the codec's Avro schema, and values as Arrow takes them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ...schemas.errors import ConfigurationError
from ...schemas.user_codec import AvroCodec, BytesCodec, Codec, DataclassCodec

_DECIMAL_DIGITS_MAX = 38

_PRIMITIVES: Mapping[str, Callable[[], DataType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "bytes": BinaryType,
    "fixed": BinaryType,
    "enum": StringType,
}
_LOGICAL: Mapping[tuple[str, str], Callable[[], DataType]] = {
    ("date", "int"): DateType,
    ("timestamp-millis", "long"): TimestampType,
    ("timestamp-micros", "long"): TimestampType,
    ("local-timestamp-millis", "long"): TimestampNTZType,
    ("local-timestamp-micros", "long"): TimestampNTZType,
    ("uuid", "string"): StringType,
}
_NO_SPARK_TYPE = frozenset({"time-millis", "time-micros", "timestamp-nanos", "local-timestamp-nanos"})
"""Logical types that the Avro library may turn into values which no Spark type holds."""

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class EventType:
    """The type of the column ``event``, and how its bytes become values of it."""

    spark: DataType
    nullable: bool = False
    codec: Codec | None = None
    """None: the bytes are the value."""
    convert: Convert | None = None
    """From what the codec gives to what Arrow takes; None where that is the same."""

    def value(self, payload: bytes) -> Any:
        """One event. Raises UnreadableRecord for bytes of another schema."""
        value = payload if self.codec is None else self.codec.decode(payload)
        return value if self.convert is None else self.convert(value)


BINARY = EventType(BinaryType())


def described(codec: Codec) -> str | None:
    """The codec as the source's option ``eventSchema``, in JSON; None where events are bytes to Spark.

    Raises ConfigurationError for an Avro type that has no Spark type.
    """
    avro = codec.avro if isinstance(codec, DataclassCodec) else codec
    if not isinstance(avro, AvroCodec):
        return None
    text = json.dumps([_plain(schema) for schema in avro.schemas])
    event_type(text)
    return text


def event_type(text: str | None) -> EventType:
    """What :func:`described` made; an Avro schema alone will do, and a list is its newest version and earlier ones.

    Raises ConfigurationError for what is no Avro schema, or has no Spark type.
    """
    if text is None:
        return BINARY
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"the option 'eventSchema' is no JSON ({error}): give an Avro schema") from None
    schema, *previous = given if isinstance(given, list) and given else [given]
    if not isinstance(schema, Mapping):
        raise ConfigurationError("the option 'eventSchema' must be an Avro schema, a JSON object")
    codec = AvroCodec(schema, previous)
    spark, nullable, convert = _Types().of(codec.schemas[0], "the event")
    return EventType(spark, nullable, codec, convert)


def why_bytes(codec: Codec) -> str:
    """For a log line: why a column ``event`` has no better type."""
    if isinstance(codec, BytesCodec):
        return "the operator's events are bytes"
    return (
        f"{codec!r} has no Avro schema; a dataclass or an Avro schema as the operator's codec would give typed columns"
    )


def _plain(schema: Any) -> Any:
    """Without what the Avro library adds for itself."""
    if isinstance(schema, Mapping):
        return {k: _plain(v) for k, v in schema.items() if not str(k).startswith("__")}
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema


class _Types:
    """One walk through a schema; knows the names it has met."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._within: list[str] = []

    def of(self, schema: Any, where: str) -> tuple[DataType, bool, Convert | None]:
        """Spark's type, whether it may be null, and the conversion of values."""
        if isinstance(schema, list):
            return self._union(schema, where)
        if isinstance(schema, str):
            if schema not in self._named:
                return self._simple(schema, {}, where)
            schema = self._named[schema]
        kind = schema["type"]
        if isinstance(kind, list | Mapping):
            return self.of(kind, where)
        if "name" in schema:
            self._named[schema["name"]] = schema
        match kind:
            case "record" | "error":
                return self._record(schema, where)
            case "array":
                spark, nullable, convert = self.of(schema["items"], f"an item of {where}")
                return ArrayType(spark, nullable), False, None if convert is None else partial(_each, convert)
            case "map":
                spark, nullable, convert = self.of(schema["values"], f"a value of {where}")
                return MapType(StringType(), spark, nullable), False, partial(_pairs, convert)
            case _:
                if kind in self._named:
                    return self.of(kind, where)
                return self._simple(kind, schema, where)

    def _simple(self, kind: str, schema: Mapping[str, Any], where: str) -> tuple[DataType, bool, Convert | None]:
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            precision = schema.get("precision", 0)
            if not 0 < precision <= _DECIMAL_DIGITS_MAX:
                raise _unmappable(where, f"a decimal of {precision} digits", f"at most {_DECIMAL_DIGITS_MAX} digits")
            return DecimalType(precision, schema.get("scale", 0)), False, None
        if logical in _NO_SPARK_TYPE:
            raise _unmappable(where, str(logical), "a timestamp of micros or millis, a long or a string")
        if (found := _LOGICAL.get((str(logical), kind))) is not None:
            return found(), False, _text if logical == "uuid" else None
        if kind not in _PRIMITIVES:
            raise _unmappable(where, repr(kind), "a primitive type, a record, an array, a map, an enum or a fixed")
        return _PRIMITIVES[kind](), False, None

    def _union(self, branches: list[Any], where: str) -> tuple[DataType, bool, Convert | None]:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            kinds = ", ".join(str(b["type"] if isinstance(b, Mapping) else b) for b in branches)
            raise _unmappable(where, f"a union of {kinds}", "one type, or a union of it with null")
        spark, nullable, convert = self.of(others[0], where)
        optional = len(others) < len(branches)
        if convert is None or not optional:
            return spark, nullable or optional, convert
        return spark, True, lambda value: None if value is None else convert(value)

    def _record(self, schema: Mapping[str, Any], where: str) -> tuple[DataType, bool, Convert | None]:
        name = schema.get("name", "")
        if name in self._within:
            raise _unmappable(where, f"the record {name!r} inside of itself", "a bounded nesting, or None as the codec")
        self._within.append(name)
        columns, converts = [], {}
        for entry in schema["fields"]:
            spark, nullable, convert = self.of(entry["type"], f"field {entry['name']!r} of {where}")
            columns.append(StructField(entry["name"], spark, nullable))
            if convert is not None:
                converts[entry["name"]] = convert
        self._within.pop()
        if not columns:
            raise _unmappable(where, f"the record {name!r} without fields", "at least one field")
        if not converts:
            return StructType(columns), False, None

        def converted(value: Mapping[str, Any]) -> dict[str, Any]:
            return {k: converts[k](v) if k in converts else v for k, v in value.items()}

        return StructType(columns), False, converted


def _each(convert: Convert, items: list[Any]) -> list[Any]:
    return [convert(item) for item in items]


def _pairs(convert: Convert | None, items: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, item if convert is None else convert(item)) for key, item in items.items()]


def _text(value: uuid.UUID | str) -> str:
    return str(value)


def _unmappable(where: str, what: str, instead: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} is {what} in its Avro schema, for which there is no Spark type: use {instead}. Or read the events as"
        " bytes: .option('eventSchema', '')"
    )
