"""The processes of a :class:`LocalJob`: a subtask's, a coordinator's, each with its own view of the transport."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import Any, TypeVar

from ..coordinator.api import OperatorCoordinator
from ..coordinator.host import CoordinatorSpec
from ..coordinator.options import CoordinatorOptions
from ..coordinator.service import CoordinatorService, instances_of
from ..job import Job
from ..schemas.ids import SubtaskId
from ..subtask_client.api import Subtask
from ..subtask_client.runtime import SubtaskRuntime
from .transport import FaultyTransport

COORDINATOR_THREAD = "penstock-coordinator"
"""What a CoordinatorService calls the thread that coordinates."""

U = TypeVar("U", Subtask, OperatorCoordinator)


class _Objects:
    """The user's objects of one process, so that a crash does not close them: SIGKILL would not either."""

    def __init__(self) -> None:
        self._made: list[Any] = []
        self._forgotten = False

    def keep(self, made: U) -> U:
        self._made = [*self._made[-15:], made]
        if self._forgotten:
            self.forget()
        return made

    def forget(self) -> None:
        self._forgotten = True
        for made in self._made:
            with contextlib.suppress(AttributeError):  # of a class with __slots__: its close() is called
                made.close = _nothing


class SubtaskProcess:
    """One process of one subtask; several may live at once, as on a cluster."""

    def __init__(self, job: Job, subtask: SubtaskId, view: FaultyTransport, task: str) -> None:
        self.subtask, self.view, self.task = subtask, view, task
        self.stop = threading.Event()
        self.thread: threading.Thread | None = None
        self._job = job
        self._objects = _Objects()

    def runtime(self, run_id: str) -> SubtaskRuntime:
        operator = self._job.operators[self.subtask.operator]
        return SubtaskRuntime(
            self._job.settings,
            self.subtask,
            lambda: self._objects.keep(operator.subtask()),
            self.view,
            run=run_id,
            task=self.task,
            codec=operator.codec,
            state_codec=operator.state_codec,
            output_codec=operator.output_codec,
            input_codecs=operator.input_codecs,
            keys=operator.keys,
            stop_requested=self.stop,
        )

    def crash(self) -> None:
        self._objects.forget()
        self.view.crash()  # first: what its runtime wants to say on leaving reaches nobody
        self.stop.set()

    def leave(self) -> None:
        """The end of the test: a process that is alive leaves in order, a frozen one just ends."""
        if self.view.process.frozen:
            self.crash()
        self.view.process.spare()
        self.stop.set()

    def join(self, timeout: float) -> None:
        if self.thread is not None:
            self.thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class CoordinatorProcess:
    """One coordinator process: a service that starts instance after instance."""

    def __init__(self, job: Job, view: FaultyTransport, options: CoordinatorOptions) -> None:
        self.view = view
        self.started = False
        self._objects = _Objects()
        specs = {name: self._kept(spec) for name, spec in job.coordinators.items()}
        self.service = CoordinatorService(instances_of(job.settings, specs, view, options), job.settings.restart)

    def start(self) -> CoordinatorService:
        self.started = True
        return self.service.start()

    def _kept(self, spec: CoordinatorSpec) -> CoordinatorSpec:
        if (make := spec.factory) is None:
            return spec
        return replace(spec, factory=lambda: self._objects.keep(make()))

    def crash(self) -> None:
        self._objects.forget()
        self.view.crash()
        self.service.leave()

    def leave(self) -> None:
        if self.view.process.frozen:
            self.crash()
        self.view.process.spare()
        self.service.leave()


def _nothing() -> None:
    """In place of the close() of an object whose process has been killed."""
