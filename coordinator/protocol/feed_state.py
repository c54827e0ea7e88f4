"""What an epoch knows of the batches that queries send to its coordinators (:mod:`.feeds`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...schemas.frames import Packed

FeedKey = tuple[str, str]
"""Operator, and Spark's id of the query."""


@dataclass(slots=True)
class FeedParts:
    """A batch that is being read."""

    sender: str
    batch: int
    parts: int
    size: int
    """Bytes of all its parts, as the sender said; ``read`` never has more."""
    read_at: float
    """Monotonic seconds, when its newest part was read."""
    read: list[Packed] = field(default_factory=list)
    """The events of each part so far. Empty while the coordinator is being called with it."""


@dataclass(slots=True)
class Feeds:
    """The feeds of one epoch, by operator and query."""

    positions: dict[FeedKey, int] = field(default_factory=dict)
    """The highest id of a batch that has had its effect."""
    durable: dict[FeedKey, int] = field(default_factory=dict)
    """Positions in the last completed checkpoint; nowhere above ``positions``."""
    parts: dict[FeedKey, FeedParts] = field(default_factory=dict)
    """Batches whose parts are being read, or that wait for their coordinator."""
    calling: FeedKey | None = None
    """The feed whose batch a coordinator is called with: no checkpoint is triggered meanwhile."""
    waiting: dict[FeedKey, tuple[int, str]] = field(default_factory=dict)
    """Batch and sender of each effect that no completed checkpoint has yet: they wait for their answer."""
