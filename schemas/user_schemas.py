"""The Avro schemas of a user's payloads as data: whose they are, how they are named, which can read which.

A codec without a schema (bytes, a codec of the user's own) does not appear; ``json`` appears as that word alone, so
that a change from Avro to it is seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from .compat import Incompatibility, incompatibilities
from .errors import ConfigurationError

JSON = "json"
"""Stands for the JSON codec where a schema's text would stand; it is no JSON text itself."""
SCHEMA_BYTES_MAX = 256 * 1024
"""Of one schema, so that a record of the checkpoint log holds it."""


class Subject(StrEnum):
    """What of an operator is written under a schema."""

    EVENTS = "events"
    """Both ways between coordinator and subtasks."""
    STATE = "state"
    """Of the subtasks and of the coordinator: they share a codec."""
    OUTPUT = "output"
    """What its subtasks emit to other operators."""


@dataclass(frozen=True, slots=True)
class UserSchema:
    """What one subject of an operator is written under today."""

    operator: str
    subject: Subject
    text: str
    """The schema in JSON, keys sorted; or the word ``json``."""

    def __post_init__(self) -> None:
        if len(self.text) > SCHEMA_BYTES_MAX:
            raise ConfigurationError(
                f"the Avro schema of the {self.subject} of operator {self.operator!r} has {len(self.text)} characters;"
                f" at most {SCHEMA_BYTES_MAX}, since it is kept beside the checkpoints"
            )

    @property
    def digest(self) -> str:
        return digest_of(self.text)


def text_of(schema: Mapping[str, Any]) -> str:
    """A schema as JSON text that is the same however it was written down."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def digest_of(text: str) -> str:
    """A name for the schema. Avro's own fingerprint leaves out logical types and defaults, and these count here."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=256)
def problems(reader: str, writer: str) -> tuple[Incompatibility, ...]:
    """Why what was written under the text ``writer`` cannot all be read under ``reader``; empty: it can."""
    if reader == writer:
        return ()
    if JSON in (reader, writer):
        avro, other = ("Avro", "JSON") if reader == JSON else ("JSON", "Avro")
        return (Incompatibility("/", f"was {avro} and is {other}"),)
    return tuple(incompatibilities(json.loads(reader), json.loads(writer)))
