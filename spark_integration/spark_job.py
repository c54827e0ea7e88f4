"""The one Spark job of a run: a task per subtask, all operators in one stage."""

from __future__ import annotations

import logging
import threading
from functools import partial

from pyspark import SparkContext

from .listener import RUN_PROPERTY
from .task import SubtaskReturn, TaskName, TaskPlan, run_partition

_log = logging.getLogger(__name__)


class SparkJob:
    """Runs on a thread of its own from :meth:`start` until every task has returned, or until :meth:`cancel`."""

    def __init__(self, context: SparkContext, plan: TaskPlan) -> None:
        self.tag = f"penstock-run-{plan.run}"
        self.returns: list[SubtaskReturn] = []
        """How the subtasks ended, once all of them have."""
        self.error: Exception | None = None
        """Why Spark gave up."""
        self._context = context
        self._plan = plan
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-spark-{plan.settings.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def done(self) -> bool:
        return self._ended.is_set()

    def cancel(self, reason: str) -> None:
        """Kills the tasks; the fallback where a message does not reach them. Returns before they have ended."""
        _log.info("job=%s: cancelling its Spark job: %s", self._plan.settings.name, reason)
        try:
            self._context.cancelJobsWithTag(self.tag)
        except Exception as error:  # the context may be gone, and the tasks with it
            _log.warning("job=%s: its Spark job could not be cancelled: %s", self._plan.settings.name, error)

    def kill_task(self, task: str, reason: str) -> None:
        """Ends one task, named as in Hello; Spark starts it again."""
        name = TaskName.parse(task)
        if name is None:
            return
        try:
            killed = self._context._jsc.sc().killTaskAttempt(name.task_attempt_id, True, reason)
        except Exception as error:
            _log.warning("job=%s: %s could not be killed: %s", self._plan.settings.name, name, error)
        else:
            _log.warning("job=%s: %s %s: %s", self._plan.settings.name, name,
                         "killed" if killed else "had ended already", reason)  # fmt: skip

    def _run(self) -> None:
        context, settings = self._context, self._plan.settings
        count = len(settings.subtasks())
        try:
            # Local to this thread, so that neither a user's job group nor ours reaches into the other.
            context.addJobTag(self.tag)
            context.setInterruptOnCancel(True)
            context.setLocalProperty(RUN_PROPERTY, self._plan.run)
            context.setJobDescription(f"penstock job {settings.name}: {count} subtasks of run {self._plan.run}")
            tasks = context.parallelize(range(count), count).mapPartitionsWithIndex(partial(run_partition, self._plan))
            self.returns = tasks.collect()
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()
