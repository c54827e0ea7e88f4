"""Avro schemas from dataclasses: every type that is supported comes back as it went, any other names its field."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any

import fastavro
import pytest
from hypothesis import given, settings

from penstock.schemas.derive import Mapper, avro_schema
from penstock.schemas.errors import ConfigurationError
from tests.schemas.values import instances


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass(frozen=True)
class Point:
    """A place."""

    x: int
    y: Annotated[int, "upwards"] = 0


@dataclass(frozen=True)
class Everything:
    """One field of each type that has an Avro type."""

    number: int
    fraction: float
    flag: bool
    text: str
    raw: bytes
    colour: Colour
    size: Size
    point: Point
    numbers: tuple[int, ...]
    points: tuple[Point, ...]
    names: list[str]
    nested: list[tuple[Point, ...]]
    weights: dict[str, float]
    places: dict[str, Point]
    colours: dict[str, tuple[Colour, ...]]
    maybe_text: str | None
    maybe_point: Point | None
    maybe_colour: Colour | None
    maybe_points: tuple[Point, ...] | None
    documented: Annotated[int | None, "a sentence"]


def through_avro(record: Any) -> Any:
    """The record after a trip through Avro bytes."""
    schema = fastavro.parse_schema(avro_schema(type(record), "tests"))
    mapper = Mapper(type(record))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, mapper.to_plain(record))
    plain: Any = fastavro.schemaless_reader(io.BytesIO(out.getvalue()), schema, None)
    return mapper.from_plain(plain)


@given(instances(Everything))
@settings(deadline=None)
def test_every_supported_type_comes_back_equal(record: Everything) -> None:
    back = through_avro(record)
    assert back == record
    assert isinstance(back.colour, Colour)
    assert isinstance(back.numbers, tuple)
    assert isinstance(back.names, list)


@given(instances(Point))
def test_a_flat_record_comes_back_equal(record: Point) -> None:
    assert through_avro(record) == record


def types_of(cls: type) -> dict[str, Any]:
    return {entry["name"]: entry["type"] for entry in avro_schema(cls, "tests")["fields"]}


def test_types_are_the_ones_that_other_languages_expect() -> None:
    types = types_of(Everything)
    assert [types[n] for n in ("number", "fraction", "flag", "text", "raw")] == [
        "long",
        "double",
        "boolean",
        "string",
        "bytes",
    ]
    assert types["colour"] == {"type": "enum", "name": "Colour", "namespace": "tests", "symbols": ["red", "blue"]}
    assert types["point"]["fields"][1] == {"name": "y", "type": "long", "doc": "upwards", "default": 0}
    assert types["points"] == {"type": "array", "items": "tests.Point"}
    assert types["weights"] == {"type": "map", "values": "double"}
    assert types["maybe_text"] == ["null", "string"]
    assert types["maybe_colour"] == ["null", "tests.Colour"]


def test_docs_come_from_annotations_and_the_class() -> None:
    schema = avro_schema(Everything, "tests")
    assert schema["doc"] == "One field of each type that has an Avro type."
    assert schema["fields"][-1]["doc"] == "a sentence"


def test_a_class_without_a_docstring_has_no_doc() -> None:
    @dataclass
    class Silent:
        x: int

    assert "doc" not in avro_schema(Silent, "tests")


@dataclass(frozen=True)
class Defaults:
    """Defaults that a later version may add."""

    number: int = 3
    text: str = "t"
    flag: bool = True
    fraction: float = 0.5
    nothing: str | None = None
    empty: tuple[int, ...] = ()
    listed: list[int] = field(default_factory=list)


def test_defaults_of_the_class_are_those_of_the_schema() -> None:
    fields = avro_schema(Defaults, "tests")["fields"]
    assert {f["name"]: f["default"] for f in fields} == {
        "number": 3,
        "text": "t",
        "flag": True,
        "fraction": 0.5,
        "nothing": None,
        "empty": [],
        "listed": [],
    }


class Plain:
    pass


class Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "hint",
    [
        object,
        complex,
        set[int],
        frozenset[str],
        Plain,
        int | str,
        int | str | None,
        tuple[int, str],
        tuple[int],
        dict[int, str],
        Any,
        None,
        list[complex],
        dict[str, Plain],
        tuple[Plain, ...],
        Plain | None,
    ],
    ids=str,
)
def test_a_type_without_an_avro_type_is_refused_and_names_the_field(hint: Any) -> None:
    unsupported: Any = dataclass(type("Unsupported", (), {"__annotations__": {"fine": int, "culprit": hint}}))
    with pytest.raises(ConfigurationError, match=r"Unsupported\.culprit: no Avro type stands for .*; use int, float"):
        avro_schema(unsupported, "tests")


def test_a_class_that_is_no_dataclass_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Plain.* is not a dataclass"):
        avro_schema(Plain, "tests")


def test_an_unsupported_type_deep_inside_names_the_field_that_holds_it() -> None:
    inner: Any = dataclass(type("Inner", (), {"__annotations__": {"culprit": complex}}))
    outer: Any = dataclass(type("Outer", (), {"__annotations__": {"inner": inner}}))
    with pytest.raises(ConfigurationError, match=r"Inner\.culprit"):
        avro_schema(outer, "tests")
