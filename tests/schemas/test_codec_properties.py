"""Any value of any published schema comes through; any bytes are a record or an UnreadableRecord, in bounded memory.

Values are made from the published schemas themselves, so that records of older versions are tried as well as new ones.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import math
import tracemalloc
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas import codec
from penstock.schemas.errors import UnreadableRecord
from tests.machines import check
from tests.rounds import rounds
from tests.schemas.values import instances, zigzag

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("round_", rounds())]

PUBLISHED = codec.published_schemas()
CLASSES = list(codec.record_classes().values())
HOSTILE = [0, 1, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**40), -(2**63)]
HARMLESS_BYTES = 4 * 1024 * 1024


def values(schema: Any, named: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Any value that a plain Avro library writes under ``schema``."""
    match schema:
        case list():
            return st.one_of([values(branch, named) for branch in schema])
        case {"type": "record", "name": name, "fields": fields}:
            named[_full_name(schema, name)] = schema
            return st.fixed_dictionaries({field["name"]: values(field["type"], named) for field in fields})
        case {"type": "array", "items": items}:
            return st.lists(values(items, named), max_size=3)
        case {"type": "map", "values": inner}:
            return st.dictionaries(st.text(max_size=5), values(inner, named), max_size=3)
        case {"type": "enum", "name": name, "symbols": symbols}:
            named[_full_name(schema, name)] = schema
            return st.sampled_from(symbols)
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "long":
            return st.integers(-(2**63), 2**63 - 1)
        case "double":
            return st.floats()
        case "string":
            return st.text(max_size=20)
        case "bytes":
            return st.binary(max_size=20)
        case str():
            return values(named[schema], named)
    raise AssertionError(f"what is {schema}?")


def _full_name(schema: dict[str, Any], name: str) -> str:
    return f"{schema['namespace']}.{name}"


VALUES = [values(schema, {}) for _, schema in PUBLISHED]
PARSED = [fastavro.parse_schema(schema) for _, schema in PUBLISHED]
HEADERS = [codec.header_of(schema) for _, schema in PUBLISHED]


def written(which: int, value: Any) -> bytes:
    """The record as a plain Avro library writes it."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, PARSED[which], value)
    return HEADERS[which] + body.getvalue()


def says_the_same(plain: Any, given: Any) -> bool:
    """Whether a decoded value holds every field that was written. Not the product's own mapping."""
    if dataclasses.is_dataclass(given):
        assert isinstance(plain, dict)
        return all(says_the_same(value, getattr(given, name)) for name, value in plain.items())
    if isinstance(given, enum.Enum):
        return bool(plain == given.value)
    if isinstance(given, tuple | list):
        return len(plain) == len(given) and all(says_the_same(p, g) for p, g in zip(plain, given, strict=True))
    if isinstance(given, dict):
        return set(plain) == set(given) and all(says_the_same(plain[key], given[key]) for key in plain)
    if isinstance(given, float):
        return bool(plain == given) or (math.isnan(plain) and math.isnan(given))
    return bool(plain == given) and type(plain) is type(given)


def decoded(value: bytes) -> codec.Record | None:
    """None where it is refused; any other error is a failure."""
    try:
        record = codec.decode(value)
    except UnreadableRecord:
        return None
    assert type(record) in CLASSES
    return record


def test_whatever_was_ever_written_under_a_published_schema_comes_back_as_it_was(round_: int) -> None:
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        for which, (name, _) in enumerate(PUBLISHED):
            plain = data.draw(VALUES[which], label=name)
            value = written(which, plain)
            record = codec.decode(value)
            assert type(record) is codec.record_classes()[name]
            assert says_the_same(plain, record)
            again = codec.encode(record)
            assert codec.encode(codec.decode(again)) == again
            if HEADERS[which] == codec.header_of(codec.current_schema(name)):
                assert again == value

    check(holds, round_, examples=10)


def test_an_arbitrary_record_cut_anywhere_is_refused(round_: int) -> None:
    """A body has no slack: less of it is never another record."""

    @given(st.sampled_from(CLASSES).flatmap(instances), st.data())
    def holds(record: codec.Record, data: st.DataObject) -> None:
        value = codec.encode(record)
        assert decoded(value[: data.draw(st.integers(0, len(value) - 1))]) is None
        assert decoded(value + data.draw(st.binary(min_size=1, max_size=5))) is None

    check(holds, round_, examples=60)


def test_an_arbitrary_record_however_mangled_is_a_record_or_refused_in_little_memory(round_: int) -> None:
    """Hostile lengths and counts are put in wherever an honest one may have stood."""

    @given(st.sampled_from(CLASSES).flatmap(instances), st.data())
    def holds(record: codec.Record, data: st.DataObject) -> None:
        value = bytearray(codec.encode(record))
        for _ in range(data.draw(st.integers(1, 4))):
            begin = data.draw(st.integers(0, len(value)) | st.integers(10, max(10, len(value))))
            end = data.draw(st.integers(begin, max(begin, min(len(value), begin + 4))))
            value[begin:end] = data.draw(st.binary(max_size=6) | st.sampled_from(HOSTILE).map(zigzag))
        tracemalloc.start()
        try:
            back = decoded(bytes(value))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < HARMLESS_BYTES
        if back is not None:
            assert decoded(codec.encode(back)) is not None

    check(holds, round_, examples=120)


def test_any_bytes_behind_any_header_are_a_record_or_refused(round_: int) -> None:
    @given(
        st.sampled_from([b"", codec.MARKER, *HEADERS]),
        st.lists(st.binary(max_size=20) | st.sampled_from(HOSTILE).map(zigzag), max_size=12),
    )
    def holds(header: bytes, body: list[bytes]) -> None:
        decoded(header + b"".join(body))

    check(holds, round_, examples=200)
