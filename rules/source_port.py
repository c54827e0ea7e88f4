"""What rule sets are read from: the port that the file and the topic fill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """One rule set as it was read, not checked yet."""

    origin: str
    """Where it stands, for people."""
    text: bytes | None
    """None for a record without a value."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a source has brought."""

    position: Any
    """Where the next look begins; plain, for the coordinator's state."""
    found: list[Found] = field(default_factory=list)
    """In order."""
    is_caught_up: bool = True
    """Whether there was no more to read."""
    trouble: str = ""
    """Why there is nothing to read, where that is not an error: the file is not there."""


class Source(Protocol):
    """Where rule sets stand. Calls come from worker threads, one after the other."""

    def look(self, position: Any) -> Look:
        """Read what stands after ``position`` (None: from the beginning), within a few seconds; raise if it cannot."""

    def close(self) -> None: ...
