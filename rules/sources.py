"""The source of rule sets as a job declares it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigurationError
from .source_port import Source

TOPIC = "topic:"
_URL_USER = re.compile(r"//[^/@]*@")


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
        elif not self.topic:
            raise ConfigurationError("the source of rules names no topic: use 'topic:NAME'")
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
