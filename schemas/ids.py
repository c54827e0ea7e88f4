"""Who is who: the words of the protocol's section 2 as values."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import ConfigurationError

NO_CHECKPOINT = -1
"""The checkpoint id that means: none has completed."""

NO_ATTEMPT = -1
"""The attempt id that means: not addressed to anyone."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
_NAME_LENGTH_MAX = 60


class SubtaskId(NamedTuple):
    """One parallel instance of an operator: its partition in the operator's events topic is ``index``."""

    operator: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here

    def __str__(self) -> str:
        return f"{self.operator}/{self.index}"


class Generation(NamedTuple):
    """One uninterrupted history of a failover region; ordered, and a higher epoch beats any number."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"


def is_name(text: str) -> bool:
    """Whether ``text`` may be part of a topic name."""
    return _NAME.match(text) is not None and len(text) <= _NAME_LENGTH_MAX


def checked_name(what: str, name: object) -> str:
    """``name``, if it may be part of a topic name; else :class:`ConfigurationError` (protocol, section 3)."""
    if not isinstance(name, str):
        raise ConfigurationError(f"the {what} must be a string, not {type(name).__name__}")
    if not is_name(name):
        raise ConfigurationError(
            f"the {what} {name!r} cannot be part of a topic name: use at most {_NAME_LENGTH_MAX} of a-z, 0-9 and '-',"
            " beginning with a letter or digit"
        )
    return name
