"""Follows a run on Spark until it ends, on a display."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..schemas.status import JobStatus
from ..spark_integration import JobHandle, JobResult, local_session
from .display import Display
from .exits import Exit
from .signals import interrupts_caught, interrupts_deferred

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.15
STOP_TIMEOUT_S = 60.0


class Running:
    """What is told of a run by pages that are served from before it begins until behind its end."""

    def __init__(self) -> None:
        self._handle: JobHandle | None = None

    @contextmanager
    def told(self, handle: JobHandle) -> Iterator[None]:
        """It is told of while the body runs."""
        self._handle = handle
        try:
            yield
        finally:
            self._handle = None

    def status(self) -> JobStatus | None:
        handle = self._handle
        return None if handle is None else handle.status()

    def numbers(self) -> dict[str, dict[str, float]]:
        handle = self._handle
        return {} if handle is None else handle.numbers()


@contextmanager
def spark_session(slots: int, name: str) -> Iterator[Any]:
    """A local Spark of so many slots, gone afterwards."""
    with interrupts_caught():
        spark: Any = None
        try:
            # A JVM whose start is broken off would stay for ever. And once Spark has begun, it has put in a handler of
            # its own, which cancels the tasks before anybody could ask them to stop.
            with interrupts_deferred():
                spark = local_session(slots, app_name=name)
            yield spark
        finally:
            if spark is not None:
                _stop(spark)


def _stop(spark: Any) -> None:
    try:
        spark.stop()
    except Exception as error:  # py4j raises one of several errors, by where its connection was
        _log.info("the JVM had ended before its Spark session: %s", error)


def follow(handle: JobHandle, display: Display, progress: Callable[[], str] = str) -> JobResult:
    """Returns how the run ended, or raises what it ended with. Ctrl-C stops the job by message, and goes through."""
    try:
        return _wait(handle, display, progress)
    except KeyboardInterrupt:
        display.say("stopping the job in order; Ctrl-C again leaves at once")
        try:
            handle.stop(timeout=STOP_TIMEOUT_S)
            _wait(handle, display, progress)
        except KeyboardInterrupt:
            os._exit(Exit.INTERRUPTED)  # Spark, its workers and an embedded broker end with this process
        raise


def _wait(handle: JobHandle, display: Display, progress: Callable[[], str]) -> JobResult:
    while True:
        try:
            result = handle.wait(LOOK_EVERY_S)
        except TimeoutError:
            result = None
        display.update(handle.status(), progress())
        if result is not None:
            return result
