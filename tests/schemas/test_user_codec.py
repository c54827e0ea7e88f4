"""Users' events and states as bytes and back."""

from __future__ import annotations

import dataclasses
import enum
import pickle

import pytest

from penstock.schemas.errors import ConfigurationError, UnreadableRecord
from penstock.schemas.user_codec import NAMED, AvroCodec, BytesCodec, DataclassCodec, JsonCodec, codec_for


class Kind(enum.StrEnum):
    FULL = "full"
    DELTA = "delta"


@dataclasses.dataclass
class Range:
    begin: int
    end: int


@dataclasses.dataclass
class Split:
    path: str
    kind: Kind
    ranges: tuple[Range, ...]
    weight: float | None = None


@dataclasses.dataclass
class SplitV2:
    path: str
    kind: Kind
    ranges: tuple[Range, ...]
    weight: float | None = None
    host: str = "anywhere"


SPLIT = Split("a/b", Kind.DELTA, (Range(1, 2), Range(3, 4)), 0.5)


def record(*fields, name="Point"):
    return {"type": "record", "name": name, "namespace": "n", "fields": list(fields)}


X = {"name": "x", "type": "int"}
Y = {"name": "y", "type": "int", "default": 9}


@pytest.mark.parametrize("value", [b"a", bytearray(b"a"), memoryview(b"a")])
def test_bytes_stay_as_they_are(value):
    assert BytesCodec().encode(value) == b"a"
    assert BytesCodec().decode(b"a") == b"a"


def test_bytes_codec_refuses_anything_else_and_says_what_to_do():
    with pytest.raises(ConfigurationError, match=r"expected bytes, not dict: .*codec"):
        BytesCodec().encode({"a": 1})


def test_json_round_trips_plain_values():
    value = {"a": [1, 2.5, None, "é"], "b": True}
    assert JsonCodec().decode(JsonCodec().encode(value)) == value


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_json_refuses_what_it_cannot_hold(value):
    with pytest.raises(ConfigurationError, match="JSON cannot hold"):
        JsonCodec().encode(value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_unreadable(data):
    with pytest.raises(UnreadableRecord, match="expected JSON, found"):
        JsonCodec().decode(data)


def test_a_dataclass_round_trips_with_everything_in_it():
    codec = DataclassCodec(Split)
    assert codec.decode(codec.encode(SPLIT)) == SPLIT


def test_a_dataclass_codec_refuses_other_values_and_fields_of_other_types():
    codec = DataclassCodec(Split)
    with pytest.raises(ConfigurationError, match="expected a Split, not str"):
        codec.encode("x")
    with pytest.raises(ConfigurationError, match="Split"):
        codec.encode(Split("a", Kind.FULL, (Range("one", 2),)))  # type: ignore[arg-type]


@pytest.mark.parametrize("previous", [Split, DataclassCodec(Split).schema | {"name": "SplitV2"}])
def test_an_earlier_version_is_read_as_todays_class(previous):
    old = DataclassCodec(Split)
    if isinstance(previous, dict):
        data = AvroCodec(previous).encode({"path": "a/b", "kind": "delta", "ranges": [], "weight": 0.5})
    else:
        data = old.encode(dataclasses.replace(SPLIT, ranges=()))
        # a class of another name stands for an earlier version of this one: the name is not part of the fields
        data = AvroCodec({**old.schema, "name": "SplitV2"}).encode(
            {"path": "a/b", "kind": "delta", "ranges": [], "weight": 0.5}
        )
    assert DataclassCodec(SplitV2, [previous]).decode(data) == SplitV2("a/b", Kind.DELTA, (), 0.5, "anywhere")


def test_an_unnamed_version_is_unreadable_and_the_error_says_how_to_name_it():
    data = AvroCodec(record(X)).encode({"x": 1})
    with pytest.raises(UnreadableRecord, match=r"expected Avro 'Point'.*previous="):
        AvroCodec(record(X, Y)).decode(data)


def test_avro_resolves_an_earlier_version():
    data = AvroCodec(record(X)).encode({"x": 1})
    assert AvroCodec(record(X, Y), previous=[record(X)]).decode(data) == {"x": 1, "y": 9}


@pytest.mark.parametrize(
    ("today", "earlier", "problem"),
    [
        (
            record(X, {"name": "z", "type": "int"}),
            record(X),
            "/z: the writer does not have this field, and it has no default",
        ),
        (record({"name": "x", "type": "string"}), record(X), "/x: int cannot be read as string"),
        (record({"name": "x", "type": "int"}), record({"name": "x", "type": "long"}), "/x: long cannot be read as int"),
        (record(X, name="Other"), record(X), "/: record n.Point cannot be read as record n.Other"),
        (record({"name": "x", "type": ["null", "string"]}), record(X), r"/x: int is not in the union \[null, string\]"),
        (record(X), record({"name": "x", "type": ["null", "int"]}), "/x: null cannot be read as int"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "/: B of enum E is gone",
        ),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, r"/\*: string cannot be read as int"),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, r"/\*: string cannot be read as int"),
        (
            {"type": "fixed", "name": "F", "size": 4},
            {"type": "fixed", "name": "F", "size": 5},
            "fixed F of 5 bytes cannot be read as fixed F of 4 bytes",
        ),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "map cannot be read as array"),
    ],
)
def test_a_schema_that_cannot_read_an_earlier_one_is_refused_when_the_codec_is_made(today, earlier, problem):
    with pytest.raises(ConfigurationError, match=problem):
        AvroCodec(today, previous=[earlier])


@pytest.mark.parametrize(
    ("today", "earlier"),
    [
        (record({"name": "x", "type": "long"}), record(X)),
        (record({"name": "x", "type": ["null", "int"]}), record(X)),
        (record({"name": "xx", "aliases": ["x"], "type": "int"}), record(X)),
        (record(), record(X)),
        (
            record({"name": "next", "type": ["null", "n.Point"]}),
            record({"name": "next", "type": ["null", "Point"]}),
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["B"]},
        ),
    ],
)  # fmt: skip
def test_compatible_changes_are_accepted(today, earlier):
    AvroCodec(today, previous=[earlier])


def test_what_is_no_schema_is_refused():
    with pytest.raises(ConfigurationError, match="not an Avro schema"):
        AvroCodec({"type": "record"})


def test_a_value_that_does_not_fit_its_schema_is_refused():
    with pytest.raises(ConfigurationError, match="does not fit the Avro schema 'Point'"):
        AvroCodec(record(X)).encode({"x": "one"})


@pytest.mark.parametrize("data", [b"", b"garbage of some length", pickle.dumps(SPLIT)])
def test_foreign_bytes_are_unreadable_and_nothing_in_them_is_run(data):
    with pytest.raises(UnreadableRecord, match="expected Avro 'Split' in single-object encoding"):
        DataclassCodec(Split).decode(data)


def test_a_cut_off_or_continued_body_is_unreadable():
    codec = DataclassCodec(Split)
    data = codec.encode(SPLIT)
    for cut in range(10, len(data)):
        with pytest.raises(UnreadableRecord):
            codec.decode(data[:cut])
    with pytest.raises(UnreadableRecord, match="1 bytes behind it"):
        codec.decode(data + b"x")


class Own:
    def encode(self, value):
        return b""

    def decode(self, data):
        return None


@pytest.mark.parametrize(
    ("spec", "kind"),
    [(None, BytesCodec), (bytes, BytesCodec), ("json", JsonCodec), (Split, DataclassCodec), (record(X), AvroCodec)],
)
def test_codec_for_knows_the_short_forms(spec, kind):
    assert isinstance(codec_for(spec), kind)


def test_codec_for_takes_a_codec_as_it_is():
    own = Own()
    assert codec_for(own) is own


@pytest.mark.parametrize("spec", ["pickle", int, 3, object()])
def test_codec_for_refuses_the_rest_and_names_what_there_is(spec):
    with pytest.raises(ConfigurationError, match="is no codec: use 'bytes', 'json', a dataclass"):
        codec_for(spec)


def test_every_codec_that_is_offered_by_name_is_taken():
    assert {name: type(codec_for(name)) for name in NAMED} == {"bytes": BytesCodec, "json": JsonCodec}
