"""Records to bytes and back: Avro single-object encoding (marker, fingerprint of the writer's schema, body).

Every schema ever published stays in ``schemas/avro/`` as ``<topic>.<Record>.<version>.avsc``; a record written under
any of them decodes into today's class. ``python -m penstock.schemas.publish`` writes the files of new versions.
"""

from __future__ import annotations

import io
import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from . import acks, checkpoints, data, events, status
from .derive import Mapper, avro_schema
from .errors import ForeignRecord, UnreadableRecord, WrittenByNewer
from .versions import RELEASE

Record: TypeAlias = (
    events.EventsRecord | acks.AcksRecord | checkpoints.CheckpointLogRecord | status.StatusRecord | data.DataRecord
)
"""Whatever may stand on any of a job's topics."""

MARKER = b"\xc3\x01"
_HEADER_LENGTH = len(MARKER) + 8

_UNIONS: dict[str, Any] = {
    "events": events.EventsRecord,
    "acks": acks.AcksRecord,
    "checkpoints": checkpoints.CheckpointLogRecord,
    "status": status.StatusRecord,
    "data": data.DataRecord,
}


def record_classes() -> dict[str, type]:
    """Every record class by its published name, ``<topic>.<Record>``."""
    return {f"{topic}.{cls.__name__}": cls for topic, union in _UNIONS.items() for cls in union.__args__}


def current_schema(name: str) -> dict[str, Any]:
    """The schema that today's class of that name is written under."""
    return avro_schema(record_classes()[name], "penstock." + name.split(".")[0])


def header_of(schema: dict[str, Any]) -> bytes:
    """What every record written under ``schema`` begins with."""
    return MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


class _Writer(NamedTuple):
    header: bytes
    schema: Any
    mapper: Mapper


class _Reader(NamedTuple):
    name: str
    writer_schema: Any
    reader_schema: Any  # None where it is the writer's own
    mapper: Mapper


@cache
def _writers() -> dict[type, _Writer]:
    return {
        cls: _Writer(header_of(schema := current_schema(name)), fastavro.parse_schema(schema), Mapper(cls))
        for name, cls in record_classes().items()
    }


def prepare() -> None:
    """Builds what decoding needs, which the first record would wait for; a process that is to be forked has it then."""
    _readers()


@cache
def _readers() -> dict[bytes, _Reader]:
    classes, writers = record_classes(), _writers()
    readers = {}
    for name, published in published_schemas():
        if name not in classes:
            continue
        mine = writers[classes[name]]
        header = header_of(published)
        parsed = fastavro.parse_schema(published)
        readers[header] = _Reader(name, parsed, None if header == mine.header else mine.schema, mine.mapper)
    return readers


def published_schemas() -> list[tuple[str, dict[str, Any]]]:
    """Every published schema with its ``<topic>.<Record>`` name, in the order of file names."""
    folder = resources.files(__package__) / "avro"
    files = (
        sorted((f for f in folder.iterdir() if f.name.endswith(".avsc")), key=lambda f: f.name)
        if folder.is_dir()
        else []
    )
    return [(f.name.rsplit(".", 2)[0], json.loads(f.read_text())) for f in files]


def encode(record: Record) -> bytes:
    """The record's bytes under today's schema of its class."""
    writer = _writers()[type(record)]
    out = io.BytesIO()
    out.write(writer.header)
    fastavro.schemaless_writer(out, writer.schema, writer.mapper.to_plain(record))
    return out.getvalue()


def decode(value: bytes | None) -> Record:
    """The record that ``value`` holds.

    Raises :class:`UnreadableRecord` for anything else: no marker, an unknown schema, a body that does not fit it.
    Nothing in it is executed, and no length it claims is believed beyond the bytes that are there.
    """
    if value is None or value[:2] != MARKER or len(value) < _HEADER_LENGTH:
        raise ForeignRecord("not in Avro single-object encoding: a foreign record")
    reader = _readers().get(value[:_HEADER_LENGTH])
    if reader is None:
        fingerprint_hex = value[2:_HEADER_LENGTH][::-1].hex()
        raise WrittenByNewer(f"unknown schema ({fingerprint_hex}): written by a newer Penstock than this ({RELEASE})")
    body = io.BytesIO(value)
    body.seek(_HEADER_LENGTH)
    try:
        plain: Any = fastavro.schemaless_reader(body, reader.writer_schema, reader.reader_schema)
        if body.tell() != len(value):
            raise UnreadableRecord(f"a {reader.name} with {len(value) - body.tell()} bytes left over")
        record: Record = reader.mapper.from_plain(plain)
    except UnreadableRecord:
        raise
    except Exception as error:  # a garbled body fails in as many ways as a decoder has branches
        raise UnreadableRecord(f"a {reader.name} that cannot be decoded: {error!r}") from error
    return record
