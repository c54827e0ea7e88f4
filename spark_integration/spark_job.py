"""The one Spark job of a run: a task per subtask, all operators in one stage.

Rows of a DataFrame reach the tasks of their operator through that very stage: its last stage's partitions stand beside
those of the operators without an input, in one union. So partitions, deaths and kills mean the same for all of them.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from pyspark import SparkContext
from pyspark.rdd import RDD

from .dataframe_input import PreparedInputs
from .listener import RUN_PROPERTY
from .task import SubtaskReturn, TaskName, TaskPlan, run_partition

_log = logging.getLogger(__name__)


class SparkJob:
    """Runs on a thread of its own from :meth:`start` until every task has returned, or until :meth:`cancel`."""

    def __init__(self, context: SparkContext, plan: TaskPlan, inputs: PreparedInputs) -> None:
        self.tag = f"penstock-run-{plan.run}"
        self.returns: list[SubtaskReturn] = []
        """How the subtasks ended, once all of them have."""
        self.error: Exception | None = None
        """Why Spark gave up."""
        self._context = context
        self._plan = plan
        self._inputs = inputs
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-spark-{plan.settings.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def has_inputs(self) -> bool:
        """Whether some of its tasks get rows of a DataFrame."""
        return bool(self._inputs.by_operator)

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
            for name, value in self._inputs.sql_settings.items():  # as Spark does for its own queries
                context.setLocalProperty(name, value)
            self.returns = self._tasks().collect()
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()

    def _tasks(self) -> RDD[SubtaskReturn]:
        """Partitions in the order of ``settings.subtasks()``."""
        operators = [self._of_operator(o.name, o.parallelism) for o in self._plan.settings.operators]
        return operators[0] if len(operators) == 1 else self._context.union(operators)

    def _of_operator(self, operator: str, parallelism: int) -> RDD[SubtaskReturn]:
        given = self._inputs.by_operator.get(operator)
        # A list, and no range: that would have each task read its empty input first, whose end comes 40 ms late.
        partitions: RDD[Any] = (
            self._context.parallelize([None] * parallelism, parallelism) if given is None else given.partitions
        )
        return partitions.mapPartitionsWithIndex(partial(run_partition, self._plan, operator))
