"""Users' Avro under arbitrary schemas: any bytes are a value or an UnreadableRecord, any text is learnt or not.

Schemas are recursive, and of items that take no bytes, far more often than a user's are.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.codec import MARKER, header_of
from penstock.schemas.errors import ConfigurationError, UnreadableRecord
from penstock.schemas.user_codec import AvroCodec, DataclassCodec, JsonCodec
from tests.harmless import measured
from tests.machines import check
from tests.rounds import rounds
from tests.schemas.values import zigzag

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("round_", rounds())]

HOSTILE = [0, 1, 2, 3, 2**16, 2**31 - 1, 2**32, 2**40, 2**63 - 1, -1, -2, -(2**31), -(2**40), -(2**63)]
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = [
    {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
]


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """A record of records; each may be named again further on, within itself too."""
    names: list[str] = []

    def kind(depth: int) -> Any:
        choice = draw(st.integers(0, 9))
        if choice <= 2 or depth > 4:
            return draw(st.sampled_from([*PRIMITIVES, "null"]))
        if choice == 3 and names:
            return draw(st.sampled_from(names))
        if choice == 4:
            return {"type": "array", "items": kind(depth + 1)}
        if choice == 5:
            return {"type": "map", "values": kind(depth + 1)}
        if choice == 6:
            named = ["null", draw(st.sampled_from(names))] if names else ["null", "long"]
            return named if draw(st.booleans()) else named[::-1]
        if choice == 7:
            return draw(st.sampled_from(LOGICAL))
        if choice == 8:
            name = f"N{len(names)}"
            names.append(name)
            if draw(st.booleans()):
                return {"type": "fixed", "name": name, "size": draw(st.sampled_from([0, 1, 16, 2**40]))}
            return {"type": "enum", "name": name, "symbols": ["A", "B"]}
        return record(depth + 1)

    def record(depth: int) -> dict[str, Any]:
        name = f"N{len(names)}"
        names.append(name)
        fields = [{"name": f"f{n}", "type": kind(depth)} for n in range(draw(st.integers(0, 4)))]
        return {"type": "record", "name": name, "fields": fields}

    return record(0)


PIECES = st.binary(max_size=12) | st.sampled_from(HOSTILE).map(zigzag)
BODIES = st.lists(st.tuples(PIECES, st.sampled_from([1, 1, 1, 1, 5, 400, 20_000])), max_size=6).map(
    lambda pieces: b"".join(piece * times for piece, times in pieces)
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["f0", "f1", "f2", "f3"]), inner, max_size=4)
    ),
)


def codec_of(schema: dict[str, Any]) -> AvroCodec | None:
    try:
        codec: AvroCodec = measured(schema, AvroCodec, schema)
    except ConfigurationError:
        return None
    return codec


def decoded(codec: Any, payload: bytes, what: object) -> tuple[bool, Any]:
    try:
        return True, measured((what, payload), codec.decode, payload)
    except UnreadableRecord:
        return False, None


def test_any_body_under_any_schema_is_a_value_or_refused_in_little_time_and_memory(round_: int) -> None:
    @given(schemas(), st.lists(BODIES, min_size=1, max_size=8))
    def holds(schema: dict[str, Any], bodies: list[bytes]) -> None:
        codec = codec_of(schema)
        for body in bodies if codec is not None else ():
            came, value = decoded(codec, header_of(schema) + body, schema)
            if came:
                try:
                    measured((schema, value), codec.encode, value)
                except ConfigurationError:
                    continue  # a decimal of more digits than its precision, for one

    check(holds, round_, examples=60)


def test_any_value_is_encoded_or_refused_and_what_is_encoded_is_decoded(round_: int) -> None:
    @given(schemas(), TREES, st.sampled_from([0, 0, 1, 60, 3_000]))
    def holds(schema: dict[str, Any], value: Any, levels: int) -> None:
        codec = codec_of(schema)
        for _ in range(levels):
            value = {"f0": value, "f1": []}
        try:
            payload = None if codec is None else measured((schema, value), codec.encode, value)
        except ConfigurationError:
            payload = None
        if payload is not None:
            assert decoded(codec, payload, schema)[0]

    check(holds, round_, examples=60)


@dataclasses.dataclass
class Point:
    f0: int = 0
    f1: list[Point] = dataclasses.field(default_factory=list)
    f2: str | None = None


POINT = DataclassCodec(Point).schema


def test_whatever_is_learnt_a_dataclass_decodes_or_refuses(round_: int) -> None:
    """The fields of the class, with forged ones behind them: such a schema is learnt, and bounds what it explains."""

    @given(schemas(), st.lists(BODIES, min_size=1, max_size=4), st.integers(0, 3))
    def holds(schema: dict[str, Any], bodies: list[bytes], kept: int) -> None:
        codec = DataclassCodec(Point)
        forged = {**POINT, "fields": [*POINT["fields"][:kept], {"name": "more", "type": schema}]}
        learnt = measured(forged, codec.avro.learn, json.dumps(forged))
        honest = [b"\x04", b"\x00", b"\x00"][:kept]
        for body in bodies:
            for start in (b"", b"".join(honest)):
                came, value = decoded(codec, header_of(forged) + start + body, forged)
                assert learnt or not came
                assert not came or isinstance(value, Point)

    check(holds, round_, examples=40)


def test_any_text_is_learnt_or_not_and_never_an_error(round_: int) -> None:
    words = st.sampled_from([*PRIMITIVES, "record", "array", "map", "fixed", "enum", "N0", "penstock.user.Point", ""])
    keys = st.sampled_from(
        ["type", "name", "namespace", "fields", "items", "values", "symbols", "size", "default", "aliases",
         "logicalType", "__fastavro_parsed", "__named_schemas"]
    )  # fmt: skip
    json_like = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | words,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
    )

    @given(json_like, st.text(max_size=30), st.sampled_from(list(POINT)), st.integers(0, 2), BODIES)
    def holds(forged: Any, text: str, key: str, where: int, body: bytes) -> None:
        codec = DataclassCodec(Point)
        spoilt = json.loads(json.dumps(POINT))
        (spoilt if where == 0 else spoilt["fields"][where])[key] = forged
        for each in (text, json.dumps(forged), json.dumps(spoilt)):
            assert measured(each, codec.avro.learn, each) in (True, False)
        for header in list(codec.avro._readers):
            decoded(codec, header + body, spoilt)

    check(holds, round_, examples=80)


def test_any_bytes_are_json_or_refused(round_: int) -> None:
    texts = st.binary(max_size=40) | st.sampled_from([b"[", b'{"a":', b"1", b"-", b'"\\u']).map(lambda b: b * 20_000)

    @given(texts)
    def holds(data: bytes) -> None:
        decoded(JsonCodec(), data, "json")
        decoded(AvroCodec(POINT), data, "avro")
        decoded(AvroCodec(POINT), MARKER + data, "avro")

    check(holds, round_, examples=60)
