"""Records in words: who wrote what under which numbers, and a user's bytes as something a person can read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from ..schemas.acks import FromAttempt, Hello, OperatorEventFrame
from ..schemas.codec import Record
from ..schemas.errors import UnreadableRecord
from ..schemas.events import EventFrame
from ..schemas.frames import unpack
from ..schemas.state import Sender, StateHandle
from .reading import Recorded

PAYLOAD_CHARS_MAX = 80
"""A longer event is cut in a line for people."""
EVENTS_SHOWN_MAX = 3
"""So many events of a frame are shown in a line for people."""

Decode = Callable[[bytes], Any]


class Numbers(NamedTuple):
    """Under which numbers a record stands; None where it has none of that kind."""

    operator: str | None
    subtask: int | None
    epoch: int | None
    attempt: int | None
    sequence: int | None
    count: int | None  # type: ignore[assignment]  # hides tuple.count, which nobody wants here


def kind_of(cls: type) -> str:
    """A record's kind: its class in small letters, ``event-frame``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


def numbers_of(found: Recorded) -> Numbers:
    record = found.record
    topic = found.partition.topic.split(".")
    of_events = topic[-1] == "events"
    operator = topic[-2] if of_events else getattr(record, "operator", None) or None
    subtask = found.partition.index if of_events else getattr(record, "subtask", None)
    epoch, attempt = getattr(record, "epoch", None), getattr(record, "attempt", None)
    if isinstance(record, FromAttempt):
        operator, subtask, attempt, epoch = (
            record.sender.operator, record.sender.subtask, record.sender.attempt, record.sender.epoch,
        )  # fmt: skip
    elif isinstance(record, Hello):
        attempt = found.offset  # the offset of a Hello is the attempt id
    return Numbers(operator, subtask, epoch, attempt, getattr(record, "sequence", None), getattr(record, "count", None))


def events_of(record: Record | None) -> list[bytes] | None:
    """The events within a frame; None for any other record. Raises UnreadableRecord for a damaged frame."""
    if isinstance(record, EventFrame | OperatorEventFrame):
        return unpack(record.count, record.lengths, record.payload)
    return None


def readable(payload: bytes, chars_max: int | None = PAYLOAD_CHARS_MAX) -> str:
    """Text where it is printable UTF-8, else hexadecimal; cut behind ``chars_max`` characters."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    printable = bool(text) and all(c.isprintable() or c in "\n\t" for c in text)
    shown = text.replace("\n", "\\n").replace("\t", "\\t") if printable else f"0x{payload.hex()}" if payload else "''"
    return shown if chars_max is None or len(shown) <= chars_max else f"{shown[:chars_max]}... ({len(payload)} bytes)"


def event_text(event: bytes, decode: Decode | None) -> str:
    """One event for people, as the operator's codec reads it where that is known."""
    if decode is None:
        return readable(event)
    try:
        value = decode(event)
    except UnreadableRecord as error:
        return f"{readable(event)} (not what the codec takes: {error})"
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= PAYLOAD_CHARS_MAX else f"{shown[:PAYLOAD_CHARS_MAX]}... ({len(event)} bytes)"


HEADER = f"{'where':<16} {'time':<23} {'subtask':>7} {'epoch':>5} {'attempt':>7}  {'kind':<21} {'sequence':<11} what"


def line_of(found: Recorded, decode: Decode | None = None) -> str:
    """One record in a line for people."""
    n = numbers_of(found)
    topic = found.partition.topic.rsplit(".", 1)[-1]
    where = f"{topic}/{found.partition.index}@{found.offset}" if topic == "events" else f"{topic}@{found.offset}"
    kind = "unreadable" if found.record is None else kind_of(type(found.record))
    return (
        f"{where:<16} {clock(found.at.timestamp_ms):<23} {_or_dash(n.subtask):>7} {_or_dash(n.epoch):>5}"
        f" {_or_dash(n.attempt):>7}  {kind:<21} {sequence_text(n):<11} {details(found, decode)}"
    ).rstrip()


def clock(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def sequence_text(n: Numbers) -> str:
    if n.sequence is None:
        return "-"
    return f"{n.sequence}..{n.sequence + n.count - 1}" if n.count else str(n.sequence)


def details(found: Recorded, decode: Decode | None = None) -> str:
    """What a record says beside its numbers."""
    if found.record is None:
        return f"{found.unreadable}: {readable(found.at.value or b'')}"
    try:
        events = events_of(found.record)
    except UnreadableRecord as error:
        return f"a damaged frame: {error}"
    if events is not None:
        return _events_text(events, decode)
    shown = []
    for field in dataclasses.fields(found.record):
        value = getattr(found.record, field.name)
        if field.name not in _SHOWN_ELSEWHERE and value not in ("", (), {}, None):
            shown.append(f"{field.name}={_value_text(value)}")
    return " ".join(shown)


_SHOWN_ELSEWHERE = frozenset({"epoch", "attempt", "sequence", "count", "operator", "subtask", "sender"})


def _events_text(events: Sequence[bytes], decode: Decode | None) -> str:
    shown = [event_text(event, decode) for event in events[:EVENTS_SHOWN_MAX]]
    more = len(events) - len(shown)
    return " | ".join([*shown, f"and {more} more"] if more else shown)


def _value_text(value: Any) -> str:
    match value:
        case StateHandle(inline=None):
            return f"{value.size} bytes in {value.location}"
        case StateHandle():
            return f"{value.size} bytes inline"
        case Sender():
            return str(value.subtask_id)
        case Enum():
            return str(value.value)
        case bool():
            return "yes" if value else "no"
        case bytes():
            return readable(value)
        case tuple():
            return f"[{', '.join(_value_text(v) for v in value[:EVENTS_SHOWN_MAX])}]"
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return (
                "("
                + " ".join(f"{f.name}={_value_text(getattr(value, f.name))}" for f in dataclasses.fields(value))
                + ")"
            )
        case str():
            return readable(value.encode(errors="backslashreplace"))
        case _:
            return str(value)


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
