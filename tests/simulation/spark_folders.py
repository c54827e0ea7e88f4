"""What a Spark query keeps in its checkpointLocation, and outlives it: the offset log and the commit log."""

from __future__ import annotations

import json

from penstock.spark_integration.streaming.offsets import StreamOffset


class SparkFolders:
    """Both logs take a batch once, as Spark's do: whoever comes second finds it there, and its query fails."""

    def __init__(self, initial: StreamOffset) -> None:
        self.initial = initial
        self._offsets: dict[int, str] = {}
        self._commits: list[int] = []

    @property
    def newest(self) -> int:
        """The newest stored batch; -1: none."""
        return max(self._offsets, default=-1)

    @property
    def newest_committed(self) -> int:
        return max(self._commits, default=-1)

    def offset(self, batch: int) -> StreamOffset:
        """Where a batch ends; in front of the first one: where the query begins."""
        return StreamOffset.parse(json.loads(self._offsets[batch])) if batch >= 0 else self.initial

    def store(self, batch: int, end: StreamOffset) -> bool:
        """Whether nobody had stored that batch before."""
        if batch in self._offsets:
            return False
        self._offsets[batch] = json.dumps(end.to_dict())
        return True

    def commit(self, batch: int) -> bool:
        """Whether nobody had committed that batch before."""
        if batch in self._commits:
            return False
        self._commits.append(batch)
        return True

    def lose_last_commit(self) -> None:
        """A commit that never reached the disk, or that somebody deleted."""
        self._commits.remove(self.newest_committed)
