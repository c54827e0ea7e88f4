"""What a driver holds of a run: wait for it, look at it, ask it, stop it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..job import Job
from ..schemas.errors import JobError, PenstockError
from ..schemas.status import CommandReply, JobStatus
from .display import displayed
from .results import JobResult
from .supervisor import RunParts, Supervisor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger(__name__)

_LOOK_S = 0.05


class JobHandle:
    """A run of a job on Spark. As a context manager it stops the run at the end of the block; its topics stay.

    Every method may be called from any thread. Durations are seconds.
    """

    def __init__(self, job: Job, parts: RunParts, supervisor: Supervisor) -> None:
        self.run_id = parts.run_id
        self._job = job
        self._parts = parts
        self._supervisor = supervisor

    def __repr__(self) -> str:
        return f"<JobHandle of job {self._job.name!r}, run {self.run_id}: {'ended' if self.done else 'running'}>"

    def _repr_html_(self) -> str:
        status = self.status()
        return escape(repr(self)) if status is None else status._repr_html_()

    @property
    def done(self) -> bool:
        """Whether the run has ended: its coordinator here and all of its Spark tasks."""
        return self._supervisor.done.is_set()

    def wait(self, timeout: float | None = None) -> JobResult:
        """How the run ended, well: finished or stopped.

        Raises RunReplaced where a newer run has taken over, JobFailed with the cause where the job or its Spark job
        could not go on, JobRefused or StateError where the coordinator could not start or go on from what stands, and
        TimeoutError after ``timeout`` seconds (the run goes on).
        """
        if not self._supervisor.done.wait(timeout):
            raise TimeoutError(f"job {self._job.name!r} has not ended within {timeout:g} s: {self._described()}")
        self._supervisor.join(1.0)
        if self._supervisor.error is not None:
            raise self._supervisor.error
        assert self._supervisor.result is not None
        return self._supervisor.result

    def status(self) -> JobStatus | None:
        """The newest status: of the coordinator in this driver, else as written to the topic. None before the first."""
        if self._parts.service is not None:
            return self._parts.service.status()
        return self._parts.client.status()

    def numbers(self) -> dict[str, dict[str, float]]:
        """The users' own metrics, by operator, where the coordinator runs in this driver."""
        runtime = None if self._parts.service is None else self._parts.service.runtime
        return {} if runtime is None else runtime.numbers()

    def wait_for(self, condition: Callable[[JobStatus], bool], timeout: float) -> JobStatus:
        """The first status that meets ``condition``.

        Raises TimeoutError after ``timeout`` seconds, and what :meth:`wait` raises when the run ends badly before.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = self.done
            status = self.status()
            if status is not None and condition(status):
                return status
            if ended:
                result = self.wait(0.0)
                raise JobError(f"job {self._job.name!r} ended first ({result.ending}: {result.cause})")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s: {self._described()}")
            time.sleep(_LOOK_S)

    def watch(self, timeout: float | None = None, every: float = 1.0) -> None:
        """Show the newest status until the run has ended, or for ``timeout`` seconds; the run goes on.

        A notebook redraws one table ``every`` so many seconds. Elsewhere a line is printed when it has changed.
        Interrupt it to look away: the run goes on then, too.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        show = displayed()
        while True:
            ended = self.done
            status = self.status()
            if status is not None:
                show(status)
            left = every if deadline is None else min(every, deadline - time.monotonic())
            if ended or left <= 0:
                return
            self._supervisor.done.wait(left)

    def savepoint(self, timeout: float = 120.0) -> int:
        """Takes a savepoint and returns its checkpoint id. Raises JobError where it is refused, or late."""
        reply = self._asked(lambda: self._parts.client.savepoint(timeout))
        if reply is None:
            raise JobError(f"no savepoint: {self._described()}")
        if not reply.accepted:
            raise JobError(f"no savepoint of job {self._job.name!r}: {reply.outcome}")
        return reply.checkpoint_id

    def request(self, operator: str, payload: Any, timeout: float = 30.0) -> Any:
        """What ``handle_request`` of the operator's coordinator answers; both go through the operator's codec.

        Raises ConfigurationError for an operator that does not exist, JobError where the request is refused, raises
        over there, or is not answered in time.
        """
        self._job.settings.operator(operator)
        codec = self._job.operators[operator].codec
        data = codec.encode(payload)
        reply = self._asked(lambda: self._parts.client.request(operator, data, timeout))
        if reply is None:
            raise JobError(f"no answer from operator {operator!r}: {self._described()}")
        if not reply.accepted:
            raise JobError(f"operator {operator!r} of job {self._job.name!r} refused a request: {reply.outcome}")
        return codec.decode(reply.payload)

    def write_stream(self, frame: DataFrame, operator: str, **options: object) -> DataStreamWriter:
        """Return a writer that sends the batches of a streaming query to the operator's coordinator, each once.

        Give it a ``checkpointLocation`` and start it. The column ``event`` has what the operator's codec reads; the
        coordinator gets it in ``handle_batch``. ``options`` are the sink's: ``coordinatorTimeout=300``,
        ``eventSchema=""`` (events are encoded already). Raises ConfigurationError for another column, operator or
        option.
        """
        from .streaming.writing import stream_writer  # needs the extra for streaming

        self._job.settings.operator(operator)
        return stream_writer(frame, self._job, operator, self._parts.kafka, options)

    def stop(self, savepoint: bool = False, timeout: float = 60.0) -> JobResult:
        """Stops the run, after taking a savepoint if wanted, and returns when all of it has ended.

        By a command over the topic. Where no coordinator answers within ``timeout`` seconds the tasks are cancelled;
        but with ``savepoint`` the run goes on then, and goes on too when the savepoint fails: JobError says so.
        Raises what :meth:`wait` raises where the run ends otherwise meanwhile.
        """
        if not self._supervisor.ending():
            try:
                reply = self._asked(lambda: self._parts.client.stop(savepoint=savepoint, timeout_s=timeout))
            except PenstockError as error:
                if savepoint:
                    raise
                _log.warning("job=%s: stopped by cancelling its tasks: %s", self._job.name, error)
                self._supervisor.give_up_on_tasks(f"cancelled by its driver: {error}")
            else:
                if reply is not None and not reply.accepted:
                    raise JobError(f"job {self._job.name!r} was not stopped: {reply.outcome}")
        return self.wait()

    def __enter__(self) -> JobHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.done:
            return
        try:
            self.stop()
        except PenstockError as ended:
            if error is None and self._supervisor.error is None:
                raise
            _log.warning("job=%s: its run ended on the way out of its block: %s", self._job.name, ended)

    def _asked(self, ask: Callable[[], CommandReply]) -> CommandReply | None:
        """The reply; None where the run ends first."""
        answers: list[CommandReply | Exception] = []

        def asking() -> None:
            try:
                answers.append(ask())
            except Exception as error:
                answers.append(error)

        thread = threading.Thread(target=asking, name=f"penstock-ask-{self._job.name}", daemon=True)
        thread.start()
        while thread.is_alive() and not self._supervisor.done.is_set():
            thread.join(_LOOK_S)
        thread.join(_LOOK_S)
        if not answers:
            return None
        if isinstance(answers[0], Exception):
            if self._supervisor.done.is_set():
                return None
            raise answers[0]
        return answers[0]

    def _described(self) -> str:
        if self.done:
            error, result = self._supervisor.error, self._supervisor.result
            return f"the run has ended: {error if error is not None else result and result.cause}"
        status = self.status()
        if status is None:
            return "no status yet"
        pending = "; ".join(f"checkpoint {p.checkpoint_id} waits for {p.waits_for}" for p in status.pending)
        absent = [
            f"{operator.operator}/{seen.subtask} is {seen.phase}"
            for operator in status.operators
            for seen in operator.subtasks
            if seen.phase not in ("running", "finished")
        ]
        return ", ".join([f"it is {status.state}", *absent, *filter(None, [pending, status.cause])])
