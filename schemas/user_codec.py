"""A user's events and states as bytes and back: raw bytes, JSON, an Avro schema, or a dataclass. Never pickle.

Avro payloads are single-object encoded (marker, fingerprint of the writer's schema, body), so a reader knows under
which version each was written. ``previous`` names the versions that may still stand in a topic or a checkpoint; a
codec whose schema could not read one of them is refused when it is made, not when the first old payload arrives.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

import fastavro

from .bounds import LIST_INSTEAD, OutOfBounds, Parsed, parse, require_shallow
from .codec import MARKER, header_of
from .compat import incompatibilities
from .derive import Mapper, avro_schema
from .errors import ConfigurationError, UnreadableRecord
from .user_schemas import JSON, SCHEMA_BYTES_MAX, text_of

Schema: TypeAlias = Mapping[str, Any]

_HEADER_LENGTH = len(MARKER) + 8
_NAMESPACE = "penstock.user"
_LEARNT_MAX = 256
"""Schemas that one codec reads, at most: they come from a topic."""
_CAUSE_MAX = 500
"""Characters of what the library says: it repeats the whole value."""
_MARKS = ("__fastavro_parsed", "__named_schemas")

_log = logging.getLogger(__name__)


@runtime_checkable
class Codec(Protocol):
    """What stands between a user's objects and the bytes on a topic.

    ``encode`` raises :class:`ConfigurationError` for an object that does not fit, ``decode``
    :class:`UnreadableRecord` for bytes that it cannot explain; neither may run code that it was given as data.
    """

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, data: bytes, /) -> Any: ...


class BytesCodec:
    """Bytes stay as they are; nothing else is accepted."""

    def encode(self, value: Any, /) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise ConfigurationError(
            f"expected bytes, not {type(value).__name__}: return bytes, or give the operator a codec (a dataclass, an"
            " Avro schema or 'json')"
        )

    def decode(self, data: bytes, /) -> bytes:
        return data

    def __repr__(self) -> str:
        return "BytesCodec()"


class JsonCodec:
    """JSON in UTF-8. Tuples come back as lists, keys of objects as strings; NaN is refused."""

    def encode(self, value: Any, /) -> bytes:
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"a {type(value).__name__} that JSON cannot hold: {error}; use plain values, or another codec"
            ) from error

    def decode(self, data: bytes, /) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UnreadableRecord(f"expected JSON, found {_shown(data)}: {error}") from error

    def __repr__(self) -> str:
        return "JsonCodec()"


class AvroCodec:
    """Values of one Avro schema, as an Avro library takes and gives them (records as dicts).

    ``previous``: earlier versions of the schema whose payloads may still be read, resolved into today's by Avro's
    rules. Raises :class:`ConfigurationError` for a schema that is none, that is out of bounds, or that cannot read a
    previous one. Values nest at most 100 deep, and so do types; how many values a payload may hold, says
    :mod:`penstock.schemas.bounds`. Both are checked when a value is encoded and when a payload is decoded.
    """

    def __init__(self, schema: Schema, previous: Iterable[Schema] = ()) -> None:
        self.name = str(schema.get("name", schema.get("type", "value"))) if isinstance(schema, Mapping) else "value"
        self.schema = dict(schema)
        """As it was given."""
        self._own = parse(schema)
        self._schema = self._own.schema
        self._resolving = copy.deepcopy(self._schema)
        _make_defaults_values(self._resolving)
        self._header = header_of(dict(schema))
        self._readers: dict[bytes, Parsed] = {self._header: self._own}
        for old in previous:
            parsed = parse(old)
            problems = incompatibilities(reader=schema, writer=old)
            if problems:
                raise ConfigurationError(
                    f"payloads of an earlier version of {self.name!r} cannot be read any more:"
                    f" {'; '.join(map(str, problems))}. Give new fields a default, keep types or widen them"
                )
            self._readers[header_of(dict(old))] = parsed

    def learn(self, text: str) -> bool:
        """Reads from now on what was written under another schema (in JSON), resolved into its own.

        False, and nothing has changed, where it cannot, where the text is no schema or out of bounds, or where a schema
        of that fingerprint is known already: a later text never takes the place of an earlier one. A schema's
        fingerprint means the same everywhere, so an instance that others use may learn too; from any thread.
        """
        if len(text) > SCHEMA_BYTES_MAX or len(self._readers) >= _LEARNT_MAX:
            return False
        try:
            schema = json.loads(text)
            if not isinstance(schema, dict) or incompatibilities(self.schema, _unmarked(schema)):
                return False
            parsed = parse(_unmarked(schema))
            header = header_of(parsed.schema)
        except Exception as error:  # it comes from a topic, and may be wrong in whatever a schema can be wrong in
            _log.warning("an Avro schema that was recorded for %r is not used: %.500s", self.name, error)
            return False
        if header in self._readers:
            return False
        self._readers[header] = parsed
        return True

    @property
    def schemas(self) -> list[Schema]:
        """Today's schema, then the earlier ones that it reads; parsed."""
        return [reader.schema for reader in self._readers.values()]

    def encode(self, value: Any, /) -> bytes:
        out = io.BytesIO()
        out.write(self._header)
        try:
            if self._own.bounds.recursive:
                require_shallow(value, "the value", LIST_INSTEAD)
            fastavro.schemaless_writer(out, self._schema, value)
            data = out.getvalue()
            self._own.bounds.check(data, _HEADER_LENGTH)
        except OutOfBounds as error:
            raise ConfigurationError(f"a {type(value).__name__} for the Avro schema {self.name!r}: {error}") from error
        except Exception as error:  # a writer fails in as many ways as a value can differ from its schema
            raise ConfigurationError(
                f"a {type(value).__name__} does not fit the Avro schema {self.name!r}: {error!r:.{_CAUSE_MAX}}"
            ) from error
        return data

    def decode(self, data: bytes, /) -> Any:
        header = data[:_HEADER_LENGTH]
        if header not in self._readers:
            self._refuse(data)
        written = self._readers[header]
        body = io.BytesIO(data)
        body.seek(_HEADER_LENGTH)
        try:
            written.bounds.check(data, _HEADER_LENGTH, resolved=written is not self._own)
            if written is self._own:
                value = fastavro.schemaless_reader(body, self._schema, None)
            else:  # defaults are shared
                value = copy.deepcopy(fastavro.schemaless_reader(body, written.schema, self._resolving))
        except OutOfBounds as error:
            raise UnreadableRecord(f"expected Avro {self.name!r}, found a body that is refused: {error}") from error
        except Exception as error:  # a garbled body fails in as many ways as a decoder has branches
            raise UnreadableRecord(
                f"expected Avro {self.name!r}, found a body that is none: {error!r:.{_CAUSE_MAX}}"
            ) from error
        if body.tell() != len(data):
            raise UnreadableRecord(f"expected Avro {self.name!r}, found {len(data) - body.tell()} bytes behind it")
        return value

    def _refuse(self, data: bytes) -> NoReturn:
        if data[:2] != MARKER or len(data) < _HEADER_LENGTH:
            raise UnreadableRecord(
                f"expected Avro {self.name!r} in single-object encoding, found {_shown(data)}: another codec wrote it?"
            )
        raise UnreadableRecord(
            f"expected Avro {self.name!r}, found a schema not known here (fingerprint"
            f" {data[2:_HEADER_LENGTH][::-1].hex()}), and none that the job has recorded: name the version that"
            " wrote it in previous=[...]"
        )

    def __repr__(self) -> str:
        return f"AvroCodec({self.name!r})"


def _unmarked(schema: Any) -> Any:
    """The schema without the library's own marks: it would believe a text that says it has been parsed."""
    if isinstance(schema, dict):
        return {key: _unmarked(value) for key, value in schema.items() if key not in _MARKS}
    return [_unmarked(item) for item in schema] if isinstance(schema, list) else schema


def _make_defaults_values(schema: Any) -> None:
    """In place: the library gives a default as JSON has it, which is a text where bytes are meant."""
    if isinstance(schema, dict):
        default, kind = schema.get("default"), schema.get("type")
        first = kind[0] if isinstance(kind, list) and kind else kind
        first = first["type"] if isinstance(first, dict) else first
        if isinstance(default, str) and first in ("bytes", "fixed"):
            schema["default"] = default.encode("latin-1")
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _make_defaults_values(inner)


class DataclassCodec:
    """Instances of one dataclass; its Avro schema is derived from its fields (:mod:`penstock.schemas.derive`).

    ``previous``: dataclasses with the fields of earlier versions, or earlier Avro schemas. What is decoded is always
    an instance of ``cls``.
    """

    def __init__(self, cls: type, previous: Iterable[type | Schema] = ()) -> None:
        self.cls = cls
        self._mapper = Mapper(cls) if dataclasses.is_dataclass(cls) else None
        name = getattr(cls, "__name__", repr(cls))
        schemas = [{**avro_schema(old, _NAMESPACE), "name": name} if isinstance(old, type) else old for old in previous]
        self.avro = AvroCodec(avro_schema(cls, _NAMESPACE), schemas)
        """What its bytes are."""

    @property
    def schema(self) -> dict[str, Any]:
        """The derived Avro schema: what ``previous`` of a later version may name."""
        return avro_schema(self.cls, _NAMESPACE)

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, self.cls) or self._mapper is None:
            raise ConfigurationError(f"expected a {self.cls.__name__}, not {type(value).__name__}")
        try:
            plain = self._mapper.to_plain(value)
        except Exception as error:  # a field that holds something else than its type says
            raise ConfigurationError(f"a {self.cls.__name__} whose fields do not fit its types: {error!r}") from error
        return self.avro.encode(plain)

    def decode(self, data: bytes, /) -> Any:
        plain = self.avro.decode(data)
        assert self._mapper is not None
        try:
            return self._mapper.from_plain(plain)
        except Exception as error:  # the class's own __post_init__ may refuse
            raise UnreadableRecord(f"expected a {self.cls.__name__}, found values it refuses: {error!r}") from error

    def __repr__(self) -> str:
        return f"DataclassCodec({self.cls.__name__})"


CodecSpec: TypeAlias = "type | str | Schema | Codec | None"


NAMED: Mapping[str, Callable[[], Codec]] = {"bytes": BytesCodec, "json": JsonCodec}
"""Codecs that have a name."""


def codec_for(spec: CodecSpec) -> Codec:
    """Return the codec for None, ``bytes``, a name in :data:`NAMED`, a dataclass, an Avro schema, or a codec itself.

    Raises :class:`ConfigurationError` for anything else.
    """
    if spec is None or spec is bytes:
        return BytesCodec()
    if isinstance(spec, str) and spec in NAMED:
        return NAMED[spec]()
    if isinstance(spec, type):
        if dataclasses.is_dataclass(spec):
            return DataclassCodec(spec)
    elif isinstance(spec, Mapping):
        return AvroCodec(spec)
    elif isinstance(spec, Codec):
        return spec
    raise ConfigurationError(
        f"{spec!r} is no codec: use {', '.join(map(repr, NAMED))}, a dataclass, an Avro schema, or an object with"
        " encode and decode; None is 'bytes'"
    )


def recorded_as(codec: Codec) -> str | None:
    """The codec's Avro schema as text, "json" for JSON, None where nothing is known of what it writes."""
    match codec:
        case JsonCodec():
            return JSON
        case AvroCodec():
            return text_of(codec.schema)
        case DataclassCodec():
            return text_of(codec.avro.schema)
        case _:
            return None


def learn(codec: Codec, text: str) -> bool:
    """As :meth:`AvroCodec.learn`, where the codec has a schema."""
    avro = codec.avro if isinstance(codec, DataclassCodec) else codec
    return isinstance(avro, AvroCodec) and text != JSON and avro.learn(text)


def _shown(data: bytes) -> str:
    return f"{len(data)} bytes beginning with {data[:12]!r}"
