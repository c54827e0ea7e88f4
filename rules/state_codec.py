"""A codec for both states of a rules operator: its coordinator's, and those of the user's subtasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .. import Codec
from ..errors import ConfigurationError, UnreadableRecord

_MARK = b"\x00penstock.rules\x00"


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """The state of the coordinator, as JSON has it."""

    plain: dict[str, Any]


class StateCodec:
    """The user's codec for the states of subtasks, which stay as they are; JSON behind a mark for the coordinator's."""

    def __init__(self, user: Codec) -> None:
        self._user = user

    def encode(self, value: Any, /) -> bytes:
        if isinstance(value, CoordinatorState):
            return _MARK + json.dumps(value.plain, separators=(",", ":"), ensure_ascii=False).encode()
        data = self._user.encode(value)
        if data.startswith(_MARK):
            raise ConfigurationError(f"a state of a subtask cannot begin with {_MARK!r}: rules mark their own with it")
        return data

    def decode(self, data: bytes, /) -> Any:
        if not data.startswith(_MARK):
            return self._user.decode(data)
        try:
            return CoordinatorState(json.loads(data[len(_MARK) :]))
        except ValueError as error:
            raise UnreadableRecord(f"expected the state of a rules coordinator: {error}") from error

    def __repr__(self) -> str:
        return repr(self._user)
