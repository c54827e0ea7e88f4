"""Bounds of what goes into one record."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.record_limits import RECORD_HEADROOM, record_limits
from penstock.schemas.frames import FRAME_EVENTS_MAX

from .driver import job_settings


@pytest.mark.parametrize("record_bytes", [RECORD_HEADROOM + 2_000, 64 * 1024])
def test_a_full_frame_fills_a_small_record_and_fits_into_it(record_bytes: int) -> None:
    limits = record_limits(job_settings(frame_bytes_max=2**20), record_bytes)
    lengths = 4 * min(limits.frame_events, FRAME_EVENTS_MAX)
    assert limits.frame_bytes == limits.merged_bytes == limits.part_bytes == (record_bytes - RECORD_HEADROOM) // 2
    assert limits.frame_bytes + lengths + RECORD_HEADROOM <= record_bytes
