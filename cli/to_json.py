"""Records as plain JSON values."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

from ..checkpoint_log.history import Checkpoint
from ..schemas.state import StateHandle


def plain(value: Any) -> Any:
    """Dataclasses as objects, bytes as text where they are text, else in hexadecimal."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    match value:
        case bytes():
            return text_of(value)
        case Enum():
            return value.value
        case dict():
            return {str(k): plain(v) for k, v in value.items()}
        case tuple() | list() | set() | frozenset():
            return [plain(v) for v in value]
        case _:
            return value


def text_of(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload.hex()


def checkpoint_row(checkpoint: Checkpoint) -> dict[str, Any]:
    """One completed checkpoint in numbers."""
    header = checkpoint.header
    handles = [o.coordinator_state for o in header.operators] + [s.state for s in checkpoint.subtasks.values()]
    return {
        "checkpoint_id": header.checkpoint_id,
        "savepoint": header.savepoint,
        "epoch": header.epoch,
        "triggered_at_ms": header.triggered_at_ms,
        "duration_ms": header.completed_at_ms - header.triggered_at_ms,
        "subtasks": sum(operator.parallelism for operator in header.operators),
        "rescaled_from": header.rescaled_from,
        "finished_subtasks": sum(s.finished for s in checkpoint.subtasks.values()),
        "state_bytes": sum(_size(handle) for handle in handles),
        "stored_states": len(checkpoint.locations()),
    }


def _size(handle: StateHandle | None) -> int:
    return 0 if handle is None else handle.size
