"""What rule sets are read from: the port that the file and the topic fill."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import ConfigurationError

TOPIC = "topic:"
_URL_USER = re.compile(r"//[^/@]*@")


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


class Source(Protocol):
    """Where rule sets stand. Calls come from worker threads, one after the other."""

    def look(self, position: Any) -> Look:
        """Read what stands after ``position`` (None: from the beginning), within a few seconds; raise if it cannot."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """A source as the job declares it: plain values."""

    url: str = field(repr=False)
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    bytes_max: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url:
            raise ConfigurationError(f"the source of rules must be a text such as 'topic:rules', not {self.url!r}")
        if self.topic is None:
            if self.kafka:
                raise ConfigurationError(f"kafka settings are for a source 'topic:NAME', and this one is {self.shown}")
            from .file_source import require_file_system

            require_file_system(self.url, self.shown)
        elif not self.kafka.get("bootstrap.servers"):
            raise ConfigurationError(
                f"the source {self.url!r} needs its broker: Rules(..., kafka={{'bootstrap.servers': 'host:port'}})"
            )

    @property
    def topic(self) -> str | None:
        """The topic's name; None for a file."""
        return self.url.removeprefix(TOPIC) if self.url.startswith(TOPIC) else None

    @property
    def shown(self) -> str:
        """The source for people, without a user's name and password."""
        return _URL_USER.sub("//***@", self.url)

    def open(self) -> Source:
        if self.topic is not None:
            from .topic_source import TopicSource

            return TopicSource(self.topic, dict(self.kafka))
        from .file_source import FileSource

        return FileSource(self.url, self.shown, self.bytes_max)
