"""What names a batch, for whatever has to do something once for it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BatchToken:
    """The same for every run of one batch, and never for another one. ``str`` of it will do as a transaction id."""

    job: str
    """``<prefix>.<job>``."""
    operator: str
    checkpoint_id: int
    """The job's checkpoint at the batch's end; -1 before the first."""
    batch_id: int
    """Spark's number of the batch: counts up from 0 within one checkpointLocation."""
    query_id: str
    """Spark's id of the query; stands in its checkpointLocation."""
    history: str
    """The job's life: another one after it has been purged."""
    stream: str = field(init=False)
    """The same for every batch of the query, and never for another query. With it, ``batch_id`` only ever grows."""

    def __post_init__(self) -> None:
        origin = f"{self.history}\n{self.query_id}".encode()
        digest = hashlib.blake2b(origin, digest_size=6).hexdigest()
        object.__setattr__(self, "stream", f"{self.job}.{self.operator}.{digest}")

    def __str__(self) -> str:
        return f"{self.stream}.c{self.checkpoint_id}.b{self.batch_id}"

    def place_of(self, name: str) -> tuple[int, int] | None:
        """Batch id and checkpoint in a name that begins with a token of this query; None in any other name."""
        if not name.startswith(f"{self.stream}."):
            return None
        found = re.match(r"c(-?\d+)\.b(\d+)\.", name[len(self.stream) + 1 :])
        return None if found is None else (int(found[2]), int(found[1]))
