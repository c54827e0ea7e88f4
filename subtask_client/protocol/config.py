"""What a subtask's core is told once: who it is, and the bounds it keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...schemas.acks import Hello, SchemaDigest
from ...schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX
from ...schemas.ids import SubtaskId
from ...schemas.versions import CURRENT, Versions

RECORD_HEADROOM_BYTES = 4 * 1024
"""What a frame takes above its events' bytes, generously: sender, counts, schema header, the log's own overhead."""


@dataclass(frozen=True, slots=True)
class CoreConfig:
    job: str
    subtask: SubtaskId
    run: str
    task: str = ""
    host: str = ""
    inline_state_max: int = 128 * 1024
    """Bytes up to which a state travels in its CheckpointAck."""
    frame_events_max: int = FRAME_EVENTS_MAX
    frame_bytes_max: int = FRAME_BYTES_MAX
    event_bytes_max: int = 1024 * 1024 - RECORD_HEADROOM_BYTES
    """Bytes that one event to the coordinator, or one record, may have."""
    senders: tuple[SubtaskId, ...] = ()
    """Channels into this subtask."""
    receivers: tuple[SubtaskId, ...] = ()
    """Channels out of it."""
    unaligned: bool = False
    aligned_timeout: float = math.inf
    """Seconds after which an alignment turns unaligned."""
    start_timeout: float = 120.0
    """Seconds that a Hello waits for its answer while the broker can be reached."""
    layout: Mapping[str, int] = field(default_factory=dict)
    """Parallelism of each of the job's operators."""
    schemas: tuple[SchemaDigest, ...] = ()
    """Under which Avro schemas it writes the user's payloads."""
    versions: Versions = CURRENT

    def hello(self, nonce: str, previous: int, completed: int) -> Hello:
        own = self.versions
        return Hello(
            *self.subtask,
            self.run,
            nonce,
            self.task,
            self.host,
            dict(self.layout),
            own.protocol,
            previous,
            own.release,
            self.schemas,
            completed,
        )
