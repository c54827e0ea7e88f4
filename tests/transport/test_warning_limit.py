"""Warnings about single records, of which a topic may hold any number."""

from __future__ import annotations

import logging

import pytest

from penstock.transport.warning_limit import INTERVAL_S, WARNINGS_MAX, WarningLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_warnings_above_the_bound_are_counted_and_their_number_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    warnings = WarningLimit(logging.getLogger("test"), "records", clock)
    for offset in range(1_000):
        warnings.warn("record %d", offset)
    assert len(caplog.records) == WARNINGS_MAX
    clock.now += INTERVAL_S
    warnings.warn("record %d", 1_000)
    warnings.tell()
    assert [record.getMessage() for record in caplog.records[WARNINGS_MAX:]] == [
        f"{1_000 - WARNINGS_MAX} more warnings about records were left out",
        "record 1000",
    ]
