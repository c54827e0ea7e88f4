"""Bounds of what goes into one record."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.room import RECORD_HEADROOM, room_in
from penstock.schemas.frames import FRAME_EVENTS_MAX

from .driver import job_settings


@pytest.mark.parametrize("record_bytes", [RECORD_HEADROOM + 2_000, 64 * 1024])
def test_a_full_frame_fills_a_small_record_and_fits_into_it(record_bytes: int) -> None:
    room = room_in(job_settings(frame_bytes_max=2**20), record_bytes)
    lengths = 4 * min(room.frame_events, FRAME_EVENTS_MAX)
    assert room.frame_bytes == room.merged_bytes == room.part_bytes == (record_bytes - RECORD_HEADROOM) // 2
    assert room.frame_bytes + lengths + RECORD_HEADROOM <= record_bytes
