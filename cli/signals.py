"""Ctrl-C and SIGTERM: both interrupt the command, which then ends what it began, in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .exits import Exit


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def catch_interrupts() -> None:
    """KeyboardInterrupt for both signals."""
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


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """For a body that must not be broken off: both signals interrupt at its end. A second one leaves at once.

    Handlers that the body puts in are gone afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        if came:
            os._exit(Exit.INTERRUPTED)
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception as error:
        if came:  # it may well have failed of what interrupts us: a signal to the whole group reaches a JVM too
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
