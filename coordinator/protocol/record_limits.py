"""How much goes into one record: the broker's limit, shared out among what the coordinator writes."""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX, RECORD_BYTES_MAX
from ...schemas.settings import JobSettings

RECORD_HEADROOM = 2_048
"""Bytes that a frame around one event, or a part around one snapshot, may take."""

_OPERATOR_BYTES = 256
_PART_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Bounds within which every record fits, whatever the settings ask for."""

    frame_events: int = FRAME_EVENTS_MAX
    frame_bytes: int = FRAME_BYTES_MAX
    merged_events: int = FRAME_EVENTS_MAX
    merged_bytes: int = FRAME_BYTES_MAX
    """Of frames that a gateway has held and joins."""
    part_bytes: int = _PART_BYTES_MAX
    """Of one part of a checkpoint; a single state or inbox frame above it is a part of its own."""
    states_bytes: int = RECORD_BYTES_MAX // 2
    """Of all coordinators' inline states together: they share one record."""
    feeds_bytes: int = RECORD_BYTES_MAX // 8
    """Of the positions of all feeds, in the same record."""


def record_limits(settings: JobSettings, record_bytes_max: int) -> RecordLimits:
    """A frame's lengths take 4 bytes an event beside its payload: half of a record for either."""
    half = max(1, (record_bytes_max - RECORD_HEADROOM) // 2)
    return RecordLimits(
        frame_events=max(1, min(settings.frame_events_max, half // 4)),
        frame_bytes=min(settings.frame_bytes_max, half),
        merged_events=max(1, min(FRAME_EVENTS_MAX, half // 4)),
        merged_bytes=min(FRAME_BYTES_MAX, half),
        part_bytes=min(_PART_BYTES_MAX, half),
        states_bytes=max(0, record_bytes_max - RECORD_HEADROOM - _OPERATOR_BYTES * len(settings.operators)),
        feeds_bytes=record_bytes_max // 8,
    )
