"""The instance's log lines: each carries job, operator, subtask, attempt and checkpoint; at DEBUG, a line per step.

``<`` marks what the core was told, ``>`` what it asked for::

    job=flights operator=reader subtask=1 attempt=52 checkpoint=7 < TriggerCheckpoint@311 n=7
    job=flights operator=reader subtask=1 attempt=52 checkpoint=7 > TakeSnapshot n=7
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from ..schemas.sanitize import LastError
from .protocol import effects as do
from .protocol import inputs as on
from .protocol.core import SubtaskCore

logger = logging.getLogger("penstock.subtask")


class Trace(logging.LoggerAdapter[Any]):
    def __init__(self, core: SubtaskCore) -> None:
        super().__init__(logger, {})
        self._core = core
        self._last_error = LastError()

    def failed(self, what: str, error: Exception) -> None:
        """Log that user code has raised in ``what``."""
        again, traceback = (" again", None) if self._last_error.is_like(error) else ("", error)
        self.warning("%s failed the attempt%s: %s", what, again, error, exc_info=traceback)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        core, subtask = self._core, self._core.config.subtask
        attempt = "-" if core.attempt is None else core.attempt
        checkpoint: Any = "-"
        if core.running is not None:
            cut = core.running.checkpoints.cut
            checkpoint = core.running.checkpoints.begun if cut is None else cut.checkpoint_id
        where = f"job={core.config.job} operator={subtask.operator} subtask={subtask.index} attempt={attempt}"
        return f"{where} checkpoint={checkpoint} {msg}", kwargs

    def told(self, input: on.Input) -> None:
        self.debug("< %s", _input_line(input))

    def asked(self, effect: do.Effect) -> None:
        self.debug("> %s", _effect_line(effect))


def _input_line(input: on.Input) -> str:
    match input:
        case on.RecordRead(offset=offset, record=record):
            return f"{type(record).__name__}@{offset}{_numbers(record)}"
        case on.DataRead(upstream=upstream, offset=offset, record=record):
            return f"{type(record).__name__} of {record.sender.subtask_id}@{upstream}:{offset}{_numbers(record)}"
        case _:
            return f"{type(input).__name__}{_numbers(input)}"


def _effect_line(effect: do.Effect) -> str:
    match effect:
        case do.Write(record=record) | do.WriteHeartbeat(record=record) | do.WriteHello(record=record):
            return f"Write {type(record).__name__}{_numbers(record)}"
        case do.WriteData(receiver=receiver, record=record):
            return f"Write {type(record).__name__} to {receiver}{_numbers(record)}"
        case do.HandleRecords(sender=sender, records=records, offset=offset):
            return f"HandleRecords of {sender}@{offset} count={len(records)}"
        case do.HandleEvents(first_sequence=first, events=events, offset=offset):
            return f"HandleEvents@{offset} sequence={first} count={len(events)}"
        case do.OpenUser(start=start):
            return f"OpenUser{_numbers(start)}"
        case _:
            return f"{type(effect).__name__}{_numbers(effect)}"


_SHOWN = (
    "epoch", "generation", "attempt", "nonce", "checkpoint_id", "sequence", "count", "event_position",
    "handled_through", "sent_sequence", "offset", "end", "location", "finished", "stop", "reason", "cause", "dry",
    "upstream",
)  # fmt: skip


def _numbers(value: object) -> str:
    return "".join(f" {name}={getattr(value, name)}" for name in _SHOWN if hasattr(value, name))
