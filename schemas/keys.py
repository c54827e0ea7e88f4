"""To which subtask a key belongs: stable over versions, processes and parallelism (protocol, section 9).

A key's bytes are the Avro encoding of a union of what a key may be (below); their CRC-32 modulo ``max_parallelism`` is
its key group; subtask ``i`` of ``n`` owns the groups ``g`` with ``g * n // max_parallelism == i``, a run of neighbours.
So a job with another parallelism moves whole groups.
"""

from __future__ import annotations

import struct
import zlib
from typing import TypeAlias

from .errors import ConfigurationError

Key: TypeAlias = "bool | int | float | bytes | str | tuple[Key, ...] | None"

_NULL, _BOOLEAN, _LONG, _DOUBLE, _BYTES, _STRING, _ARRAY = (bytes([2 * branch]) for branch in range(7))
"""Branches of the union, as Avro writes them."""


def key_bytes(key: Key) -> bytes:
    """A key's Avro encoding; ConfigurationError for what cannot be a key."""
    match key:
        case None:
            return _NULL
        case bool():
            return _BOOLEAN + bytes([key])
        case int():
            return _LONG + _long(key)
        case float():
            return _DOUBLE + struct.pack("<d", key + 0.0)  # -0.0 equals 0.0, and is one key with it
        case str():
            text = key.encode()
            return _STRING + _long(len(text)) + text
        case bytes():
            return _BYTES + _long(len(key)) + key
        case tuple():
            parts = b"".join(map(key_bytes, key))
            return _ARRAY + (_long(len(key)) + parts if key else b"") + b"\0"
    raise ConfigurationError(
        f"a {type(key).__name__} cannot be a key: use None, bool, int, float, bytes, str, or a tuple of these"
    )


def key_group(key: Key, groups: int) -> int:
    kind = type(key)
    if kind is str:
        text = key.encode()  # type: ignore[union-attr]
        if len(text) < _SHORT:
            return zlib.crc32(text, _STRING_CRCS[len(text)]) % groups
    elif kind is bytes and len(key) < _SHORT:  # type: ignore[arg-type]
        return zlib.crc32(key, _BYTES_CRCS[len(key)]) % groups  # type: ignore[arg-type]
    return zlib.crc32(key_bytes(key)) % groups


def subtask_of_group(group: int, groups: int, parallelism: int) -> int:
    return group * parallelism // groups


def _long(value: int) -> bytes:
    """Avro's long: zigzag, then seven bits a byte, the lowest first."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ConfigurationError(f"the key {value} does not fit 64 bits; use a str")
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SHORT = 64
_STRING_CRCS, _BYTES_CRCS = ([zlib.crc32(branch + _long(n)) for n in range(_SHORT)] for branch in (_STRING, _BYTES))
"""Of what stands before a key's own bytes, by their number: the CRC of what most keys are goes on from there."""
