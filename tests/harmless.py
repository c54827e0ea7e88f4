"""Processor time and memory that one hostile input may take."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

HARMLESS_BYTES = 64 * 1024 * 1024
HARMLESS_S = 60.0
"""Processor seconds, far above what it takes."""


class Slowest:
    """Figures of a run of many inputs; a program may read them."""

    inputs = 0
    seconds = 0.0
    peak = 0
    what: object = None

    @classmethod
    def note(cls, seconds: float, peak: int, what: object) -> None:
        cls.inputs += 1
        cls.peak = max(cls.peak, peak)
        if seconds > cls.seconds:
            cls.seconds, cls.what = seconds, what


def measured(what: object, call: Any, *args: Any) -> Any:
    """Raises what ``call`` raises; fails where it takes more time or memory than a small input may."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        return call(*args)
    finally:
        seconds, peak = time.thread_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        Slowest.note(seconds, peak, what)
        assert seconds < HARMLESS_S, what
        assert peak < HARMLESS_BYTES, what
