"""Brings the two halves of a run together: when the coordinator ends so do its tasks, and the other way round.

One thread per run. It hears of failed tasks, passes them on as hints, has silent tasks killed, and sees to it that a
run ends as a whole and says why.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from pyspark import SparkContext

from ..checkpoint_log.history import History
from ..client.job_client import JobClient
from ..coordinator.service import CoordinatorService
from ..schemas.acks import FailureHint
from ..schemas.checkpoints import JobOutcome
from ..schemas.codec import encode
from ..schemas.errors import JobError, JobFailed, RunReplaced, TransportError
from ..schemas.ids import SubtaskId
from ..schemas.settings import JobSettings
from ..schemas.status import ENDED, Ending, JobStatus
from ..transport.kafka import KafkaConfig
from ..transport.ports import Partition, Transport, Writer
from . import listener
from .listener import TaskEnded
from .results import JobResult
from .rows import InputChanged
from .slot_watch import SlotWatch
from .spark_job import SparkJob
from .task import TaskCannotBegin, TaskName
from .unanswered_hellos import LateHellos
from .worker_environment import wrong_environment

_log = logging.getLogger(__name__)

TICK_S = 0.1
DEATHS_MAX = 8
"""So often in a row may a subtask's task die without the subtask having run in between: Spark would go on for ever."""
OTHER_SIDE_S = 15.0
"""Seconds after which the job's log is asked why all tasks have returned, if the coordinator has not said so."""
ANSWER_S = 5.0
"""A broker that takes longer over a status has stalled."""
CANCEL_S = 30.0
LEAVE_S = 15.0
_LIVING = ("running", "finished")


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run consists of, in the driver."""

    settings: JobSettings
    run_id: str
    kafka: KafkaConfig
    transport: Transport
    service: CoordinatorService | None
    """None where the coordinator runs elsewhere."""
    client: JobClient
    spark_job: SparkJob
    slots: SlotWatch
    stop_timeout_s: float


class Told(Enum):
    """Who tells the tasks to return."""

    BY_OUR_COORDINATOR = "those that it knew when it ended"
    BY_A_SUCCESSOR = "all of them, also those that say Hello later"
    BY_NOBODY = "they are cancelled"


@dataclass(frozen=True, slots=True)
class _Conclusion:
    """How the run ends: with an error, or with the ending."""

    error: Exception | None
    ending: JobOutcome
    cause: str
    told: Told


class Supervisor:
    """One run's watch. ``done`` is set when everything of it has ended; then ``error`` or ``result`` says how."""

    def __init__(self, context: SparkContext, parts: RunParts) -> None:
        self.parts = parts
        self.done = threading.Event()
        self.error: Exception | None = None
        self.result: JobResult | None = None
        self._context = context
        self._subtasks = parts.settings.subtasks()
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._conclusion: _Conclusion | None = None
        self._deaths: Counter[SubtaskId] = Counter()
        self._died_at_ms: dict[SubtaskId, float] = {}
        self._last_death = ""
        self._returned: set[SubtaskId] = set()
        """Those whose task has returned."""
        self._unheard: set[SubtaskId] = set()
        """Those whose task has died; when the coordinator has ended: whose Hello it may not have answered."""
        self._looked_at = 0.0
        self._hints: Writer | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-run-{parts.settings.name}", daemon=True)

    def start(self) -> None:
        listener.listen(self._context, self.parts.run_id, self.task_ended)
        self.parts.spark_job.start()
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # ---- from any thread

    def task_ended(self, ended: TaskEnded) -> None:
        """Spark says that a task has ended."""
        self._posted.put(lambda: self._take_end(ended))

    def kill_task(self, subtask: SubtaskId, task: str, cause: str) -> None:
        """The coordinator takes an attempt for silent, or stuck (:attr:`CoordinatorOptions.on_silent`)."""
        self._posted.put(lambda: self.parts.spark_job.kill_task(task, f"{subtask}: {cause}"))

    def give_up_on_tasks(self, cause: str) -> None:
        """Nobody answers: ends the run by cancelling its tasks."""
        self._posted.put(lambda: self._conclude(_Conclusion(None, JobOutcome.STOPPED, cause, Told.BY_NOBODY)))

    def ending(self) -> bool:
        """Whether the run is on its way to its end, and nobody will answer a command any more."""
        service = self.parts.service
        return self._conclusion is not None or self.done.is_set() or (service is not None and service.done())

    # ---- the watch

    def _run(self) -> None:
        try:
            conclusion = self._watch()
            self._wind_down(conclusion)
            self.error = conclusion.error
            if conclusion.error is None:
                self.result = JobResult(conclusion.ending, conclusion.cause, self.parts.run_id, self._status())
            level = logging.INFO if conclusion.error is None else logging.WARNING
            _log.log(level, "job=%s run=%s ends: %s", self.parts.settings.name, self.parts.run_id, conclusion.cause)
        except Exception as error:
            _log.exception("job=%s run=%s: its watch broke off", self.parts.settings.name, self.parts.run_id)
            self.error = error
        finally:
            self._close()
            self.done.set()

    def _watch(self) -> _Conclusion:
        while self._conclusion is None:
            self._serve()
            self._forget_deaths()
            self._look_for_changed_input()
            self.parts.slots.look()
            if self._conclusion is not None:
                break
            service, spark_job = self.parts.service, self.parts.spark_job
            if service is not None and service.done():
                self._conclude(self._of_coordinator(service))
            elif spark_job.done():
                self._conclude(self._of_tasks())
        assert self._conclusion is not None
        return self._conclusion

    def _serve(self) -> None:
        """Does what was posted; waits a tick for the first of it."""
        try:
            action = self._posted.get(timeout=TICK_S)
            while True:
                action()
                action = self._posted.get_nowait()
        except queue.Empty:
            pass

    def _conclude(self, conclusion: _Conclusion) -> None:
        self._conclusion = self._conclusion or conclusion

    def _of_coordinator(self, service: CoordinatorService) -> _Conclusion:
        try:
            outcome = service.wait(0.0)
            assert outcome is not None
        except Exception as error:
            return _failed(error, str(error), Told.BY_NOBODY)
        match outcome.ending:
            case Ending.FINISHED | Ending.STOPPED:
                return _Conclusion(None, JobOutcome(outcome.ending), outcome.cause, Told.BY_OUR_COORDINATOR)
            case Ending.FENCED:
                return self._replaced(outcome.cause)
            case Ending.FAILED:
                return self._failed_job(outcome.cause)
            case Ending.LEFT:  # somebody has asked the coordinator alone to leave
                return _Conclusion(None, JobOutcome.STOPPED, outcome.cause, Told.BY_NOBODY)
            case never:
                assert_never(never)

    def _replaced(self, cause: str) -> _Conclusion:
        text = f"run {self.parts.run_id} of job {self.parts.settings.name!r} has been replaced by a newer one: {cause}"
        return _failed(RunReplaced(text), text, Told.BY_A_SUCCESSOR)

    def _failed_job(self, cause: str) -> _Conclusion:
        if self._last_death and "registered within" in cause:
            cause += f"; the last task that died: {self._last_death}"
        text = f"job {self.parts.settings.name!r} failed: {cause}"
        return _failed(JobFailed(text), text, Told.BY_OUR_COORDINATOR)

    def _of_tasks(self) -> _Conclusion:
        """The Spark job has ended: by an error, or because somebody has told every task to return."""
        error = self.parts.spark_job.error
        if error is not None:
            text = f"the Spark job of job {self.parts.settings.name!r} ended: {_first_lines(error)}"
            failed = JobFailed(text)
            failed.__cause__ = error
            return _failed(failed, text, Told.BY_NOBODY)
        if self.parts.service is not None:
            return self._coordinator_follows(self.parts.service)
        return self._as_told_elsewhere()

    def _coordinator_follows(self, service: CoordinatorService) -> _Conclusion:
        """Wait for the coordinator, as long as its last records take: it ends, is fenced or gives up by itself.

        One that hangs in user code does none of these. A newer run in the log is evidence enough then.
        """
        look_at = time.monotonic() + OTHER_SIDE_S
        while self._conclusion is None and not service.done():
            self._serve()
            if time.monotonic() >= look_at:
                _log.warning("job=%s run=%s: all tasks have returned (%s), the coordinator has not ended yet",
                             self.parts.settings.name, self.parts.run_id, self._reasons())  # fmt: skip
                history = self._history()
                if history is not None and (newer := self._newer_run(history)) is not None:
                    return newer
                look_at = time.monotonic() + OTHER_SIDE_S
        return self._conclusion or self._of_coordinator(service)

    def _as_told_elsewhere(self) -> _Conclusion:
        """Find in the status, or else in the log, why the tasks returned. Wait for a broker that does not answer."""
        look_at = time.monotonic() + OTHER_SIDE_S
        while self._conclusion is None:
            asked_at = time.monotonic()
            status = self._status()
            if status is not None and status.run not in ("", self.parts.run_id):
                return self._replaced(f"run {status.run} is at work")
            if status is not None and status.state in ENDED:
                return self._ended_elsewhere(JobOutcome(status.state), status.cause)
            if status is None or time.monotonic() > asked_at + ANSWER_S:
                look_at = time.monotonic() + OTHER_SIDE_S  # its coordinator waited as well
            elif asked_at >= look_at and (history := self._history()) is not None:
                return self._by_the_log(history)
            self._serve()
        return self._conclusion

    def _by_the_log(self, history: History) -> _Conclusion:
        if (newer := self._newer_run(history)) is not None:
            return newer
        if history.finished is not None:
            return self._ended_elsewhere(history.finished.outcome, history.finished.cause)
        return self._failed_job(
            f"all tasks of run {self.parts.run_id} were told to return ({self._reasons()}), but the job's log names"
            f" neither an end of the job nor a newer run. Look at its coordinator (penstock status"
            f" {self.parts.settings.name})"
        )

    def _ended_elsewhere(self, outcome: JobOutcome, cause: str) -> _Conclusion:
        if outcome is JobOutcome.FAILED:
            return self._failed_job(cause)
        return _Conclusion(None, outcome, cause, Told.BY_OUR_COORDINATOR)

    def _newer_run(self, history: History) -> _Conclusion | None:
        claimed = history.run
        if claimed is None or claimed.run == self.parts.run_id:
            return None
        return self._replaced(f"run {claimed.run} has been claimed")

    def _history(self) -> History | None:
        try:
            return self.parts.client.history()
        except (JobError, TransportError) as error:
            _log.info("job=%s: its checkpoint log cannot be read: %s", self.parts.settings.name, error)
            return None

    def _reasons(self) -> str:
        return "; ".join(sorted({told.reason for told in self.parts.spark_job.returns}))[:1000]

    # ---- tasks that die

    def _take_end(self, ended: TaskEnded) -> None:
        subtask = self._subtasks[ended.task.partition]
        if ended.died_of is None:
            self._returned.add(subtask)
        else:
            self._unheard.add(subtask)
            if self._conclusion is None:
                self._take_death(subtask, ended.task, ended.died_of)

    def _take_death(self, subtask: SubtaskId, task: TaskName, reason: str) -> None:
        _log.warning("job=%s subtask=%s: %s died: %s", self.parts.settings.name, subtask, task, _summary(reason))
        _log.debug("job=%s subtask=%s: all that Spark says: %s", self.parts.settings.name, subtask, reason)
        self._last_death = f"{task}: {reason}"
        self._write_hint(subtask, task, reason)
        self._deaths[subtask] += 1
        self._died_at_ms[subtask] = time.time() * 1000
        if TaskCannotBegin.__name__ in reason:
            self._conclude(self._hopeless(subtask, reason))
        elif (advice := wrong_environment(reason)) is not None:
            self._conclude(self._hopeless(subtask, advice))
        elif InputChanged.__name__ in reason:
            self._conclude(self._hopeless(subtask, _summary(reason, 4_000)))
        elif self._deaths[subtask] >= DEATHS_MAX:
            many = f"its task died {DEATHS_MAX} times without the subtask having run in between; the last time:"
            self._conclude(self._hopeless(subtask, f"{many} {reason}"))

    def _hopeless(self, subtask: SubtaskId, cause: str) -> _Conclusion:
        text = f"subtask {subtask} of job {self.parts.settings.name!r} cannot run on Spark: {cause}"
        return _failed(JobFailed(text), text, Told.BY_NOBODY)

    def _write_hint(self, subtask: SubtaskId, task: TaskName, reason: str) -> None:
        cause = f"{task} died: {_summary(reason)}"
        hint = FailureHint(subtask.operator, subtask.index, self.parts.run_id, str(task), cause)
        try:
            if self._hints is None:
                self._hints = self.parts.transport.writer()
            self._hints.append(Partition(self.parts.settings.topics.acks, 0), encode(hint))
        except TransportError as error:
            _log.info("no failure hint was written: %s", error)
            writer, self._hints = self._hints, None
            if writer is not None:
                writer.close(0.0)

    def _forget_deaths(self) -> None:
        """A subtask that has run since its last task died may die again."""
        if not self._deaths or time.monotonic() < self._looked_at + 1.0:
            return
        self._looked_at = time.monotonic()
        status = self._status()
        for operator in () if status is None else status.operators:
            for seen in operator.subtasks:
                subtask = SubtaskId(operator.operator, seen.subtask)
                died_at_ms = self._died_at_ms.get(subtask)
                if died_at_ms is not None and seen.phase in _LIVING and status and status.at_ms > died_at_ms:
                    del self._deaths[subtask], self._died_at_ms[subtask]

    def _look_for_changed_input(self) -> None:
        """What an attempt failed of for good: Spark does not hear of its task's end while it computes rows."""
        service = self.parts.service
        if service is None or not self.parts.spark_job.has_inputs:
            return
        status = service.status()
        if status is not None and InputChanged.__name__ in status.last_failure:
            text = f"job {self.parts.settings.name!r} cannot go on: {status.last_failure}"
            self._conclude(_failed(JobFailed(text), text, Told.BY_NOBODY))

    # ---- the end

    def _wind_down(self, conclusion: _Conclusion) -> None:
        service, spark_job = self.parts.service, self.parts.spark_job
        if service is not None:
            service.leave()
        with self._looking_for_late_hellos(conclusion.told) as look:
            self._await_tasks(self.parts.stop_timeout_s, lambda: look() or self._none_will_return(conclusion.told))
        if not spark_job.done():
            spark_job.cancel(conclusion.cause)
            self._await_tasks(CANCEL_S, lambda: False)
            if not spark_job.done():
                _log.error(
                    "job=%s run=%s: tasks still run %g s after they were cancelled; what they write does not count",
                    self.parts.settings.name, self.parts.run_id, CANCEL_S,
                )  # fmt: skip
        if service is not None:
            self._await_coordinator(service)

    def _await_tasks(self, timeout_s: float, in_vain: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.parts.spark_job.done() and time.monotonic() < deadline and not in_vain():
            self._serve()

    def _none_will_return(self, told: Told) -> bool:
        """Whether every task that still runs waits for somebody who has left."""
        match told:
            case Told.BY_NOBODY:
                return True
            case Told.BY_A_SUCCESSOR:
                return False
            case Told.BY_OUR_COORDINATOR:
                return len(self._returned | self._unheard) == len(self._subtasks)
            case never:
                assert_never(never)

    @contextlib.contextmanager
    def _looking_for_late_hellos(self, told: Told) -> Iterator[Callable[[], None]]:
        """Finds out whom the coordinator, as it ended, has not told to return."""
        status = self._status()
        if told is not Told.BY_OUR_COORDINATOR or status is None:
            yield lambda: None
            return
        known = {
            SubtaskId(operator.operator, seen.subtask): seen
            for operator in status.operators
            for seen in operator.subtasks
            if seen.phase != "absent"
        }
        self._unheard = set(self._subtasks) - set(known)
        answered = {subtask: seen.attempt for subtask, seen in known.items() if seen.phase != "waiting"}
        try:
            hellos = LateHellos(self.parts.transport, self.parts.settings.topics.acks, self.parts.run_id, answered)
        except TransportError as error:
            _log.info("job=%s: late Hellos are not looked for: %s", self.parts.settings.name, error)
            yield lambda: None
            return
        with contextlib.closing(hellos):
            yield lambda: self._unheard.update(hellos.poll())

    def _await_coordinator(self, service: CoordinatorService) -> None:
        try:
            if service.wait(LEAVE_S) is None:
                _log.error("job=%s: its coordinator did not leave within %g s", self.parts.settings.name, LEAVE_S)
        except Exception as error:
            _log.debug("job=%s: the coordinator had given up: %s", self.parts.settings.name, error)

    def _close(self) -> None:
        listener.forget(self._context, self.parts.run_id)
        if self._hints is not None:
            self._hints.close(0.0)
        self.parts.transport.close()

    def _status(self) -> JobStatus | None:
        if self.parts.service is not None:
            return self.parts.service.status()
        try:
            return self.parts.client.status()
        except TransportError as error:
            _log.debug("no status: %s", error)
            return None


def _failed(error: Exception, cause: str, told: Told) -> _Conclusion:
    return _Conclusion(error, JobOutcome.FAILED, cause, told)


def _first_lines(error: Exception) -> str:
    lines = str(getattr(error, "java_exception", None) or error).strip().splitlines()
    return f"{type(error).__name__}: " + " ".join(line.strip() for line in lines[:30])[:4000]


def _summary(reason: str, chars_max: int = 500) -> str:
    """Of a Python task's traceback the error at its end; what Spark adds and what the JVM was doing helps nobody."""
    lines = reason.partition("\n\tat ")[0].strip().splitlines()
    lines = [line for line in lines if not line.strip().startswith("SQLSTATE:")]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    if frames:
        error = " ".join(line.strip() for line in lines[frames[-1] + 1 :] if not line.startswith("    "))
    else:
        error = " ".join(line.strip() for line in lines if line.strip(" ."))
    return (error or reason)[:chars_max]
