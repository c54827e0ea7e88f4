"""Ctrl-C and SIGTERM: both interrupt the command, which then ends what it began, in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def catch_interrupts() -> None:
    """KeyboardInterrupt for both signals. To be called again after Spark has begun, which puts in a handler of its own
    that cancels the tasks before anybody could ask them to stop."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def interrupts_caught() -> Iterator[None]:
    """Both signals as KeyboardInterrupt, and as before afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    catch_interrupts()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
