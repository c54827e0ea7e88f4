"""A Spark task without Penstock that is killed again and again. A module of its own: what it imports, it waits for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark import TaskContext


def die(notes: Path, kills: int, lives_s: float, messages: Iterator[int]) -> Iterator[None]:
    """For ``mapPartitions``. Notes the monotonic second of each beginning and end; the last attempt returns."""
    began = time.monotonic()
    context = TaskContext.get()
    assert context is not None
    number = context.attemptNumber()
    (notes / f"began-{number}").write_text(repr(began))
    time.sleep(lives_s)
    if number < kills:
        (notes / f"ended-{number}").write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    yield from ()
