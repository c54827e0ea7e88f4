"""A coordinator and its host: starts another instance when one breaks off, within the restart budget (section 4)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..schemas.errors import (
    JobFailed,
    JobHasFinished,
    JobRefused,
    NotAuthorized,
    OutcomeUnknown,
    PenstockError,
    StateError,
)
from ..schemas.settings import JobSettings, RestartStrategy, Restore
from ..schemas.status import End, Ending, JobStatus
from ..transport.ports import Transport
from .host import CoordinatorSpec
from .options import CoordinatorOptions
from .outcome_thread import OutcomeThread
from .protocol.restarts import RestartBudget
from .runtime import CoordinatorRuntime

_log = logging.getLogger(__name__)

MakeRuntime = Callable[[bool], CoordinatorRuntime]
"""Makes an instance; told whether it is the first, because a later one resumes whatever the first was told."""


def instances_of(
    settings: JobSettings,
    coordinators: Mapping[str, CoordinatorSpec],
    transport: Transport,
    options: CoordinatorOptions | None = None,
) -> MakeRuntime:
    """Makes instances of one job's coordinator: the first as ``options`` say, later ones go on where it broke off."""
    first_options = options or CoordinatorOptions()
    later_options = replace(first_options, restore=Restore.LATEST, restore_checkpoint=-1, continues=True)

    def make(first: bool) -> CoordinatorRuntime:
        return CoordinatorRuntime(settings, coordinators, transport, first_options if first else later_options)

    return make


class CoordinatorService:
    """A job's coordinator on a thread of its own, until the job ends, another host takes over, or ``leave``.

    An instance that breaks off for another reason (a commit without an answer, a broker that is gone for too long, a
    bug) is followed by a new one; being fenced or refused is final, and so is a right that the broker refuses.
    """

    def __init__(self, make_runtime: MakeRuntime, restart: RestartStrategy) -> None:
        self._make_runtime = make_runtime
        self._budget = RestartBudget(restart)
        self._runtime: CoordinatorRuntime | None = None
        self._leaving = threading.Event()
        self._thread = OutcomeThread("coordinator", self._run_instances)

    def start(self) -> CoordinatorService:
        self._thread.start()
        return self

    @property
    def runtime(self) -> CoordinatorRuntime | None:
        """The current instance."""
        return self._runtime

    def status(self) -> JobStatus | None:
        """The newest status, None before the first instance was made."""
        return None if self._runtime is None else self._runtime.status()

    def leave(self) -> None:
        """Ends the instance but not the job."""
        self._leaving.set()
        if self._runtime is not None:
            self._runtime.leave()

    def done(self) -> bool:
        return self._thread.done()

    def wait(self, timeout: float | None = None) -> End | None:
        """How it ended, None where it has not within ``timeout`` seconds.

        Raises what made it give up: JobRefused, NotAuthorized, StateError, JobFailed past the restart budget.
        """
        return self._thread.wait(timeout)

    def _run_instances(self) -> End:
        first = True
        while True:
            before, self._runtime = self._runtime, self._make_runtime(first)
            if before is not None:
                self._runtime.follow(before)
            if self._leaving.is_set():
                self._runtime.leave()
            try:
                return self._runtime.run()
            except JobHasFinished as finished:
                if first:
                    raise
                return End(Ending(finished.outcome), finished.cause)  # its predecessor came that far
            except (JobRefused, NotAuthorized, StateError):
                raise
            except Exception as error:
                unknown = isinstance(error, OutcomeUnknown)  # of its very first commit: only a successor can tell
                if first and isinstance(error, PenstockError) and not self._runtime.began and not unknown:
                    raise
                if self._leaving.is_set():
                    return End(Ending.LEFT, f"its host asked it to leave, and it broke off: {error}")
                self._pause(error)
                if self._leaving.is_set():
                    return End(Ending.LEFT, "its host asked it to leave before it was started again")
            first = first and not self._runtime.began

    def _pause(self, error: Exception) -> None:
        delay = self._budget.spend(time.monotonic())
        if delay is None:
            raise JobFailed(f"the coordinator broke off too often; the last cause: {error}") from error
        _log.warning("the coordinator broke off and is started again in %.1f s", delay, exc_info=error)
        self._leaving.wait(delay)
