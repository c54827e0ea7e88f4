"""A whole job in threads of one process: coordinator and subtasks over any transport, by default one in memory.

For examples and tests. Subtasks are started again as a cluster would; everything else is the code that runs there.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any

from ..client.batch_sender import QueryBatch, send_batch
from ..client.job_client import JobClient
from ..coordinator.options import CoordinatorOptions
from ..coordinator.preflight import check_may_start, require_history
from ..coordinator.service import CoordinatorService
from ..job import Job
from ..schemas.errors import ConfigurationError, JobFailed
from ..schemas.frames import pack, split
from ..schemas.ids import SubtaskId
from ..schemas.status import End, JobStatus
from ..subtask_client.runtime import SubtaskRuntime
from ..transport.memory import MemoryBroker, MemoryTransport
from ..transport.ports import Transport
from .checks import check_logs
from .faults import Faults
from .hosts import COORDINATOR_THREAD, CoordinatorProcess, SubtaskProcess
from .transport import FaultyTransport

_log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.05
_PATIENCE_S = 10.0
_TOLD_MAX = 40
_STATUS_INTERVAL_S = 0.02
"""Without options: so that waiting for a status takes no longer."""


class LocalJob:
    """A job in threads. Use it as a context manager, or ``start`` and ``close`` it.

    >>> with LocalJob(job) as running:                                          # doctest: +SKIP
    ...     running.wait(30)

    The coordinator and each subtask have a view of the transport of their own, under ``faults``: faults know them as
    ``coordinator`` and ``operator/index``, and ``running.client`` as ``client``. A subtask that dies is started again,
    as Spark does; one that its coordinator reports silent is killed first, as the Spark runner does, unless
    ``kills_silent`` is false.
    """

    def __init__(
        self,
        job: Job,
        transport: Transport | None = None,
        options: CoordinatorOptions | None = None,
        *,
        subtasks: bool = True,
        coordinator: bool = True,
        faults: Faults | None = None,
        kills_silent: bool = True,
    ) -> None:
        self.job = job
        self.settings = job.settings
        self.transport = transport or MemoryTransport(MemoryBroker())
        if isinstance(self.transport, FaultyTransport) and faults is None:
            faults = self.transport.faults
        self.faults = faults if faults is not None else Faults()
        self.run_id = uuid.uuid4().hex
        self._inner = self.transport.inner if isinstance(self.transport, FaultyTransport) else self.transport
        self._client_view = self._view("client")
        self.client = JobClient(self._client_view, job.name, job.prefix)
        self._options = options or CoordinatorOptions(status_interval_s=_STATUS_INTERVAL_S)
        if kills_silent and subtasks and self._options.on_silent is None:
            self._options = replace(self._options, on_silent=self._kill_silent)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._coordinators: list[CoordinatorProcess] = []
        """All there were; the newest is last."""
        self._processes: list[SubtaskProcess] = []
        self._current: dict[SubtaskId, SubtaskProcess] = {}
        self._has_subtasks = subtasks
        if coordinator:
            self._coordinators.append(self._coordinator_process())

    def _view(self, process: str) -> FaultyTransport:
        return FaultyTransport(self._inner, self.faults, process=process)

    def _coordinator_process(self) -> CoordinatorProcess:
        return CoordinatorProcess(self.job, self._view("coordinator"), self._options)

    @property
    def service(self) -> CoordinatorService | None:
        """The coordinator's host, the newest where there were several; None for a job without its coordinator."""
        return self._coordinators[-1].service if self._coordinators else None

    def start(self) -> LocalJob:
        if self._options.must_exist:
            require_history(self.settings, self._inner)
        self._inner.create_topics(self.settings.topic_specs)
        if self.service is not None:
            restore = self._options.restore, self._options.restore_checkpoint
            check_may_start(self.settings, self._inner, *restore, self.job.coordinators)
        if self._has_subtasks:
            self.client.announce_run(self.run_id)
        for coordinator in self._coordinators:
            coordinator.start()
        if self._has_subtasks:
            for subtask in self.settings.subtasks():
                self._start_subtask(subtask)
        return self

    # ---- waiting and looking

    def wait(self, timeout: float) -> End:
        """How the job ended. Raises TimeoutError after ``timeout`` seconds, and what the coordinator gave up with."""
        service = self._service()
        outcome = service.wait(timeout)
        if outcome is None:
            raise TimeoutError(f"job {self.job.name} has not ended within {timeout:g} s: {service.status()}")
        return outcome

    def wait_for(self, condition: Callable[[JobStatus], bool], timeout: float) -> JobStatus:
        """The first status that meets ``condition``; TimeoutError, with the last one, where none does in time.

        Raises at once what the coordinator has given up with.
        """
        deadline = time.monotonic() + timeout
        while True:
            service = self._service()
            given_up = service.done()
            status = service.status()
            if status is not None and condition(status):
                return status
            if given_up:
                service.wait(0)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s; the last status: {status}")
            time.sleep(0.01)

    def _service(self) -> CoordinatorService:
        service = self.service
        assert service is not None, "this part of the job has no coordinator"
        return service

    def check(self) -> None:
        """Checks from the logs alone that no event is missing or repeated and that every checkpoint is a cut.

        Raises :class:`LogsContradict`; see :func:`penstock.testing.check_logs`. At any time, also while the job runs.
        """
        view = self._view("check")  # drops are holes here too; no other fault applies
        view.process.spare()
        check_logs(view, self.settings)

    def describe(self) -> str:
        """What a person wants to see when a test has failed: status, what is waited for, processes, faults."""
        lines = [f"job {self.job.name}, faults with seed {self.faults.seed}"]
        status = self.service.status() if self.service is not None else None
        if status is not None:
            lines.append(
                f"  {status.state} in epoch {status.epoch}, checkpoint {status.last_completed} completed last,"
                f" {status.failovers_region} region and {status.failovers_global} global failovers"
            )
            lines += [f"  last failure: {status.last_failure}"] if status.last_failure else []
            lines += [f"  checkpoint {p.checkpoint_id} waits for {p.waits_for}" for p in status.pending]
            lines += [
                f"  {operator.operator}/{s.subtask}: {s.phase}, attempt {s.attempt}, gateway {s.gateway}, sent"
                f" {s.sent}, handled {s.handled}, held {s.held}, received {s.received}, {s.step or 'unknown step'}"
                for operator in status.operators
                for s in operator.subtasks
            ]
        if self.service is not None and self.service.done():
            try:
                lines.append(f"  the coordinator has ended: {self.service.wait(0)}")
            except Exception as error:
                lines.append(f"  the coordinator has given up: {error!r}")
        with self._lock:
            processes = [c.view.process for c in self._coordinators] + [p.view.process for p in self._processes]
        lines.append("  processes: " + ", ".join(map(str, processes)))
        injected = self.faults.injected
        lines += [f"  ({len(injected) - _TOLD_MAX} faults before these)"] if len(injected) > _TOLD_MAX else []
        lines += [f"  injected {fault}" for fault in injected[-_TOLD_MAX:]]
        lines += [f"  NOT injected: {fault}" for fault in self.faults.waiting]
        return "\n".join(lines)

    def send_batch(
        self, operator: str, events: Iterable[Any], batch_id: int = 0, *, query: str = "query", timeout: float = 30.0
    ) -> int:
        """Send a batch as the streaming sink does, and return the checkpoint that has its effect.

        -1: it had it before. Raises JobError where the coordinator refuses the batch, or does not answer in time.
        """
        if operator not in self.job.operators:
            known = ", ".join(self.job.operators)
            raise ConfigurationError(f"job {self.job.name} has no operator {operator!r}; it has: {known}")
        codec = self.job.operators[operator].codec
        frames = [pack(run) for run in split([codec.encode(event) for event in events])]
        batch = QueryBatch(operator, query, batch_id, frames)
        return send_batch(self.client, self._client_view, batch, timeout).checkpoint_id

    # ---- processes that die, freeze, and are replaced

    def crash_subtask(self, operator: str, subtask: int, *, restart: bool = True) -> None:
        """The subtask's process dies, as after SIGKILL, and is started again unless ``restart`` is false.

        Nothing it writes from now on reaches a log, and its object is not closed. User code that is just running
        cannot be stopped in a thread: it runs to its end, and nothing follows.
        """
        process = self._process(operator, subtask)
        process.crash()
        if restart:
            self._start_subtask(process.subtask, _RETRY_PAUSE_S)

    def start_subtask(self, operator: str, subtask: int) -> None:
        """Starts another process of a subtask, whatever became of the one before: crashed, frozen, or alive.

        The later one wins; one that is frozen or alive finds that it has been superseded.
        """
        self._start_subtask(SubtaskId(operator, subtask))

    def freeze_subtask(self, operator: str, subtask: int, timeout: float = _PATIENCE_S) -> None:
        """Stops the subtask's process at its next transport call, heartbeats included, and waits until it is there."""
        process = self._process(operator, subtask)
        process.view.freeze()
        process.view.process.wait_until_stopped(lambda thread: thread is process.thread, timeout)

    def thaw_subtask(self, operator: str, subtask: int) -> None:
        """Every frozen process of the subtask goes on, also one that has a successor by now."""
        with self._lock:
            processes = [p for p in self._processes if p.subtask == SubtaskId(operator, subtask)]
        for process in processes:
            if process.view.process.frozen:
                process.view.thaw()

    def crash_coordinator(self) -> None:
        """The coordinator's process dies, as after SIGKILL. Nobody starts it again: :meth:`replace_coordinator`."""
        self._coordinators[-1].crash()

    def replace_coordinator(self) -> CoordinatorService:
        """Starts another coordinator process, whatever became of the one before; it takes the job over from the log."""
        process = self._coordinator_process()
        with self._lock:
            self._coordinators.append(process)
        return process.start()

    def freeze_coordinator(self, timeout: float = _PATIENCE_S) -> None:
        """Stops the coordinator's process at its next transport call, and waits until it is there."""
        process = self._coordinators[-1].view
        process.freeze()
        process.process.wait_until_stopped(lambda thread: thread.name == COORDINATOR_THREAD, timeout)

    def thaw_coordinator(self) -> None:
        """Every frozen coordinator goes on, also one that has a successor by now."""
        for process in self._coordinators:
            if process.view.process.frozen:
                process.view.thaw()

    def _kill_silent(self, subtask: SubtaskId, task: str, cause: str) -> None:
        """What the runner does on Spark: it kills the task, and Spark starts it again."""
        with self._lock:
            silent = [p for p in self._processes if p.task == task and p is self._current.get(subtask)]
        for process in silent:
            _log.warning("job=%s subtask=%s: killed as silent: %s", self.job.name, subtask, cause)
            process.crash()
            self._start_subtask(subtask, _RETRY_PAUSE_S)

    # ---- subtasks

    def subtask_runtime(self, subtask: SubtaskId, task: str = "") -> SubtaskRuntime:
        """A runtime of one subtask of this run, not started."""
        process = SubtaskProcess(self.job, subtask, self._view(str(subtask)), task or f"thread-{subtask}")
        return process.runtime(self.run_id)

    def _process(self, operator: str, subtask: int) -> SubtaskProcess:
        self.settings.operator(operator)
        try:
            return self._current[SubtaskId(operator, subtask)]
        except KeyError:
            raise KeyError(f"subtask {operator}/{subtask} does not run here") from None

    def _start_subtask(self, subtask: SubtaskId, pause_s: float = 0.0) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            number = sum(p.subtask == subtask for p in self._processes)
            task = f"thread-{subtask}" + (f"-{number}" if number else "")
            process = SubtaskProcess(self.job, subtask, self._view(str(subtask)), task)
            self._processes.append(process)
            self._current[subtask] = process
            process.thread = threading.Thread(
                target=self._run_subtask, args=(process, pause_s), name=f"penstock-{task}", daemon=True
            )
            process.thread.start()

    def _run_subtask(self, process: SubtaskProcess, pause_s: float) -> None:
        process.stop.wait(pause_s)
        while not process.stop.is_set():
            try:
                process.runtime(self.run_id).run()
                return
            except BaseException as error:  # sys.exit() too would end a task, not its retries
                if self._current[process.subtask] is not process or process.view.process.dead:
                    _log.info("job=%s subtask=%s: a former process left: %r", self.job.name, process.subtask, error)
                    return
                _log.warning("job=%s subtask=%s: started again after %r", self.job.name, process.subtask, error)
                process.stop.wait(_RETRY_PAUSE_S)

    # ---- the end

    def close(self, timeout: float = _PATIENCE_S) -> None:
        """Ends what still runs here, without ending the job. No fault applies to it any more."""
        with self._lock:
            self._stop.set()
            coordinators, processes = list(self._coordinators), list(self._processes)
        self._client_view.process.spare()
        for process in processes:
            process.leave()
        for coordinator in coordinators:
            coordinator.leave()
        self.faults.wake()
        for coordinator in coordinators:
            if coordinator.started:
                try:
                    coordinator.service.wait(timeout)
                except Exception as error:
                    _log.info("job=%s: the coordinator had given up: %s", self.job.name, error)
        deadline = time.monotonic() + timeout
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        alive = [process.task for process in processes if process.alive]
        if alive:
            raise JobFailed(f"threads of job {self.job.name} did not end within {timeout:g} s: {alive}")

    def __enter__(self) -> LocalJob:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
