"""Records survive the way to bytes and back; whatever else stands on a topic is an UnreadableRecord, quickly."""

from __future__ import annotations

import io
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.schemas import codec
from penstock.schemas.acks import Failed, Heartbeat
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart
from penstock.schemas.data import RecordFrame
from penstock.schemas.errors import UnreadableRecord
from penstock.schemas.state import Sender
from tests.schemas.golden_files import golden, published
from tests.schemas.values import example, instances

CLASSES = sorted(codec.record_classes().items())
NAMES = [name for name, _ in CLASSES]
HEADERS = [golden(schema)[:10] for schema in published()]
LENGTHS = [0, 1, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**40), -(2**63)]

HARMLESS_S = 1.0
HARMLESS_BYTES = 4 * 1024 * 1024


def decodes_or_refuses(value: bytes) -> codec.Record | None:
    """What the bytes hold, or None where the codec refuses them in the one way that it may."""
    try:
        return codec.decode(value)
    except UnreadableRecord:
        return None


def zigzag(number: int) -> bytes:
    """An Avro long."""
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    rest &= 2**64 - 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


@pytest.mark.parametrize(("name", "cls"), CLASSES, ids=NAMES)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_record_comes_back_equal(name: str, cls: type, data: st.DataObject) -> None:
    record = data.draw(instances(cls))
    back = codec.decode(codec.encode(record))
    assert back == record
    assert type(back) is cls


@pytest.mark.parametrize(("name", "cls"), CLASSES, ids=NAMES)
def test_a_plain_avro_library_reads_what_the_codec_writes(name: str, cls: type) -> None:
    body = io.BytesIO(codec.encode(example(cls))[10:])
    schema = codec.current_schema(name)
    read: Any = fastavro.schemaless_reader(body, fastavro.parse_schema(schema), None)
    assert set(read) == {field["name"] for field in schema["fields"]}


def test_a_tombstone_is_unreadable() -> None:
    with pytest.raises(UnreadableRecord, match="foreign record"):
        codec.decode(None)


@pytest.mark.parametrize("value", [b"", b"\xc3", b"\xc3\x01", b"\xc3\x01" + bytes(7), b'{"json": true}', b"\x00" * 50])
def test_bytes_without_the_marker_are_a_foreign_record(value: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="foreign record"):
        codec.decode(value)


def test_an_unknown_fingerprint_is_named_as_registries_print_it() -> None:
    with pytest.raises(UnreadableRecord, match=r"unknown schema \(0807060504030201\)"):
        codec.decode(b"\xc3\x01" + bytes(range(1, 9)) + b"body")


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused(value: bytes) -> None:
    assert decodes_or_refuses(value) is None


@given(st.sampled_from(HEADERS), st.binary(max_size=300))
@settings(max_examples=1500, deadline=None)
def test_random_bytes_behind_a_valid_header_decode_to_a_record_or_are_refused(header: bytes, body: bytes) -> None:
    record = decodes_or_refuses(header + body)
    assert record is None or type(record) in codec.record_classes().values()


@pytest.mark.parametrize("schema", published())
def test_every_truncation_of_a_record_is_refused(schema: str) -> None:
    value = golden(schema)
    accepted = [length for length in range(len(value)) if decodes_or_refuses(value[:length]) is not None]
    assert accepted == []


@pytest.mark.parametrize("schema", published())
def test_bytes_behind_a_record_are_refused(schema: str) -> None:
    with pytest.raises(UnreadableRecord, match="1 bytes left over"):
        codec.decode(golden(schema) + b"\x00")


@pytest.mark.parametrize("schema", published())
def test_a_flipped_bit_gives_a_record_or_is_refused(schema: str) -> None:
    value = bytearray(golden(schema))
    for at in range(len(value) * 8):
        value[at // 8] ^= 1 << at % 8
        decodes_or_refuses(bytes(value))
        value[at // 8] ^= 1 << at % 8


@given(st.data())
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_record_with_bytes_replaced_inserted_or_removed_gives_a_record_or_is_refused(data: st.DataObject) -> None:
    value = bytearray(golden(data.draw(st.sampled_from(published()))))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(value)))
        end = data.draw(st.integers(begin, min(len(value), begin + 8)))
        value[begin:end] = data.draw(st.binary(max_size=12) | st.sampled_from(LENGTHS).map(zigzag))
    decodes_or_refuses(bytes(value))


SENDER = zigzag(1) + b"a" + zigzag(0) * 4
HOSTILE = {
    "a byte string's length": (RecordFrame, SENDER + zigzag(0) * 2, b"abcd"),
    "a string's length": (Failed, SENDER, b"abcd"),
    "the first string's length": (Failed, b"", b""),
    "an array's count, of records": (CheckpointPart, zigzag(0) * 3, b"\x00" * 64),
    "an array's count, at the end": (CheckpointPart, zigzag(0) * 3, b""),
    "an array's count, of numbers": (CheckpointCompleted, zigzag(0) * 8, b"\x00" * 64),
    "a map's count": (Heartbeat, SENDER + zigzag(0) * 4, b"\x00" * 64),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("length", LENGTHS)
def test_no_claimed_length_is_believed_beyond_the_bytes_that_are_there(what: str, length: int) -> None:
    cls, before, behind = HOSTILE[what]
    header = codec.encode(example(cls))[:10]
    begun = time.monotonic()
    tracemalloc.start()
    try:
        decodes_or_refuses(header + before + zigzag(length) + behind)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < HARMLESS_BYTES
    assert time.monotonic() - begun < HARMLESS_S


def test_a_number_that_never_ends_is_refused() -> None:
    with pytest.raises(UnreadableRecord):
        codec.decode(codec.encode(example(Failed))[:10] + SENDER + b"\xff" * 1_000_000)


def size_at_least(schema: Any) -> int:
    """How many bytes the smallest value of a type takes."""
    match schema:
        case {"type": "record", "fields": fields}:
            return sum(size_at_least(field["type"]) for field in fields)
        case "null":
            return 0
        case _:
            return 1


def array_items(schema: Any) -> Iterator[Any]:
    match schema:
        case {"type": "record", "fields": fields}:
            for field in fields:
                yield from array_items(field["type"])
        case {"type": "array", "items": items}:
            yield items
            yield from array_items(items)
        case {"type": "map", "values": values}:
            yield from array_items(values)
        case list():
            for branch in schema:
                yield from array_items(branch)


def test_no_array_holds_items_of_no_bytes() -> None:
    """A count of 2**62 such items would be believed: nothing runs out while they are read."""
    for name, schema in codec.published_schemas():
        assert all(size_at_least(items) > 0 for items in array_items(schema)), name


def test_what_a_refusal_says_names_the_record() -> None:
    value = codec.encode(Failed(Sender("reader", 0, 1, 2, 3), "cause"))
    with pytest.raises(UnreadableRecord, match=r"^a acks\.Failed that cannot be decoded: "):
        codec.decode(value[:-1])
