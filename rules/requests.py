"""What `penstock request` may ask of the rules of an operator."""

from __future__ import annotations

from typing import Any, TypeAlias

from ..errors import ConfigurationError

Request: TypeAlias = tuple[str, Any]

_REQUESTS = '{"set": [...]}, {"rollback": VERSION}, {"show": true} or {"history": true}'


def request_of(given: Any) -> Request:
    """Return what is asked, and its argument; raises ConfigurationError for anything else."""
    if isinstance(given, dict) and len(given) == 1:
        ((what, argument),) = given.items()
        match what:
            case "set":
                return what, argument
            case "rollback" if isinstance(argument, int) and not isinstance(argument, bool):
                return what, argument
            case "show" | "history" if argument is True:
                return what, argument
            case _:
                pass
    raise ConfigurationError(f"{given!r:.200} is no request about rules; use one of {_REQUESTS}")
