"""Partitions that nobody leads: why a request for them has no answer, though brokers are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from confluent_kafka import KafkaException

from .ports import Partition

NAMED_MAX = 3
LOOK_TIMEOUT_S = 2.0


class Leaders:
    """What a client has heard of leaders: which partitions have none, and since when it knows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Partition, float] = {}

    def see(self, metadata: Any) -> None:
        """Note what a client's ``list_topics`` has returned."""
        now = self._clock()
        for name, topic in metadata.topics.items():
            for index, partition in topic.partitions.items():
                at = Partition(name, index)
                if partition.leader < 0:
                    self._since.setdefault(at, now)
                else:
                    self._since.pop(at, None)

    def look(self, client: Any, topics: Collection[str]) -> None:
        """Ask for these topics, within some seconds; without an answer nothing is known."""
        try:
            for topic in topics:
                self.see(client.list_topics(topic, timeout=LOOK_TIMEOUT_S))
        except KafkaException:
            return

    def told(self, topics: Iterable[str]) -> str:
        """Say which partitions of these topics have no leader, "" for none."""
        known = set(topics)
        gone = sorted((at, since) for at, since in self._since.items() if at.topic in known)
        if not gone:
            return ""
        now = self._clock()
        told = [
            f"partition {at.index} of topic {at.topic} has no leader, since {now - since:.0f} s or longer"
            for at, since in gone[:NAMED_MAX]
        ]
        more = f", and {len(gone) - NAMED_MAX} more" if len(gone) > NAMED_MAX else ""
        return f"{'; '.join(told)}{more}. Start the brokers that have its copies (penstock doctor names them)"
