"""A whole job in threads of one process: coordinator and subtasks over any transport, by default one in memory.

For examples and tests. Subtasks are started again as a cluster would; everything else is the code that runs there.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType

from ..coordinator.client import JobClient
from ..coordinator.opening import check_may_start
from ..coordinator.runtime import CoordinatorOptions, CoordinatorOutcome
from ..coordinator.service import CoordinatorService, instances_of
from ..job import Job
from ..schemas.errors import JobFailed
from ..schemas.ids import SubtaskId
from ..schemas.status import JobStatus
from ..subtask_client.runtime import SubtaskRuntime
from ..transport.memory import MemoryBroker, MemoryTransport
from ..transport.ports import Transport

_log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.05


class LocalJob:
    """A job in threads. Use it as a context manager, or ``start`` and ``close`` it.

    >>> with LocalJob(job) as running:                                          # doctest: +SKIP
    ...     running.wait(30)
    """

    def __init__(
        self,
        job: Job,
        transport: Transport | None = None,
        options: CoordinatorOptions | None = None,
        *,
        subtasks: bool = True,
        coordinator: bool = True,
    ) -> None:
        self.job = job
        self.settings = job.settings
        self.transport = transport or MemoryTransport(MemoryBroker())
        self.run_id = uuid.uuid4().hex
        self.client = JobClient(self.transport, job.name, job.prefix)
        self._options = options or CoordinatorOptions()
        self.service = self._service(self._options) if coordinator else None
        self._stop = threading.Event()
        self._threads = (
            [threading.Thread(target=self._run_subtask, args=(s,), daemon=True) for s in self.settings.subtasks()]
            if subtasks
            else []
        )

    def _service(self, options: CoordinatorOptions) -> CoordinatorService:
        made = instances_of(self.settings, self.job.coordinators, self.transport, options)
        return CoordinatorService(made, self.settings.restart)

    def start(self) -> LocalJob:
        self.transport.create_topics(self.settings.topics.specs(self.settings.parallelism))
        if self.service is not None:
            check_may_start(self.settings, self.transport, self._options.restore, self._options.restore_checkpoint)
        if self._threads:
            self.client.announce_run(self.run_id)
        if self.service is not None:
            self.service.start()
        for thread in self._threads:
            thread.start()
        return self

    def wait(self, timeout: float) -> CoordinatorOutcome:
        """How the job ended. Raises TimeoutError after ``timeout`` seconds, and what the coordinator gave up with."""
        assert self.service is not None, "this part of the job has no coordinator"
        outcome = self.service.wait(timeout)
        if outcome is None:
            raise TimeoutError(f"job {self.job.name} has not ended within {timeout:g} s: {self.service.status()}")
        return outcome

    def wait_for(self, condition: Callable[[JobStatus], bool], timeout: float) -> JobStatus:
        """The first status that meets ``condition``; TimeoutError, with the last one, where none does in time."""
        assert self.service is not None, "this part of the job has no coordinator"
        deadline = time.monotonic() + timeout
        while True:
            status = self.service.status()
            if status is not None and condition(status):
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s; the last status: {status}")
            time.sleep(0.01)

    def close(self, timeout: float = 10.0) -> None:
        """Ends what still runs here, without ending the job."""
        self._stop.set()
        if self.service is not None:
            self.service.leave()
            try:
                self.service.wait(timeout)
            except Exception as error:
                _log.info("job=%s: the coordinator had given up: %s", self.job.name, error)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            raise JobFailed(f"threads of job {self.job.name} did not end within {timeout:g} s: {alive}")

    def __enter__(self) -> LocalJob:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def subtask_runtime(self, subtask: SubtaskId, task: str = "") -> SubtaskRuntime:
        """A runtime of one subtask of this run, not started."""
        operator = self.job.operators[subtask.operator]
        return SubtaskRuntime(
            self.settings,
            subtask,
            operator.subtask,
            self.transport,
            run=self.run_id,
            task=task or f"thread-{subtask}",
            codec=operator.codec,
            state_codec=operator.state_codec,
            stop_requested=self._stop,
        )

    def _run_subtask(self, subtask: SubtaskId) -> None:
        while not self._stop.is_set():
            try:
                self.subtask_runtime(subtask).run()
                return
            except BaseException as error:  # sys.exit() too would end a task, not its retries
                _log.warning("job=%s subtask=%s: started again after %r", self.job.name, subtask, error)
                self._stop.wait(_RETRY_PAUSE_S)
