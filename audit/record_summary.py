"""Records in a few words, for people who look for one by its offset."""

from __future__ import annotations

from dataclasses import fields

from ..schemas.codec import Record
from ..schemas.state import Sender, StateHandle

_SHOWN = frozenset({
    "epoch", "generation", "attempt", "nonce", "checkpoint_id", "sequence", "count", "run", "sender", "operator",
    "subtask", "event_position", "handled_through", "sent_sequence", "restored_checkpoint_id", "command", "part",
    "parts", "offset", "outcome", "next_checkpoint_id", "expected_sequence",
})  # fmt: skip

NOTHING = "nothing readable"


def told(record: Record | None) -> str:
    """Its name, and of its fields those by which it is known."""
    if record is None:
        return NOTHING
    shown = (f"{f.name} {_value(getattr(record, f.name))}" for f in fields(record) if f.name in _SHOWN)
    return f"{type(record).__name__} ({', '.join(shown)})"


def _value(value: object) -> str:
    match value:
        case Sender():
            return f"{value.subtask_id} attempt {value.attempt} generation {value.full_generation}"
        case StateHandle():
            return f"{value.size} bytes"
        case _:
            return str(value)
