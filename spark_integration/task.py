"""What one Spark task does: it is one subtask. Runs in a Python worker; knows nothing of the driver's side.

The plan is plain data. Kafka handles are made in here, because neither a pickle nor a fork carries one.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark import TaskContext
from pyspark.cloudpickle import loads

from ..schemas.errors import BrokerUnreachable, SubtaskError
from ..schemas.ids import SubtaskId
from ..schemas.plan import Role
from ..schemas.settings import JobSettings
from ..schemas.user_codec import Codec
from ..subtask_client.api import Subtask
from ..subtask_client.routing import KeyFunction
from ..subtask_client.rows import EndsTask
from ..subtask_client.runtime import SubtaskRuntime
from ..transport.kafka import KafkaConfig, KafkaTransport
from ..transport.requirements import require_rights
from .rows import ArrowRows, RowsPlan

_log = logging.getLogger(__name__)

RETRY_PAUSE_MAX_S = 2.0
RIGHTS_TIMEOUT_S = 5.0
_TASK_NAME = re.compile(r"spark task (\d+) \(stage (\d+), partition (\d+)\)\Z")


class TaskCannotBegin(SubtaskError):
    """A Spark task could not get as far as being a subtask: user code that cannot be loaded in a worker, say."""


class TaskName(NamedTuple):
    """What a Spark task is called in Hello, in failure hints and when it is to be killed."""

    task_attempt_id: int
    """Unique within one SparkContext."""
    stage: int
    partition: int

    def __str__(self) -> str:
        return f"spark task {self.task_attempt_id} (stage {self.stage}, partition {self.partition})"

    @classmethod
    def parse(cls, text: str) -> TaskName | None:
        """The name that ``text`` spells, None where it is not one of ours."""
        found = _TASK_NAME.match(text)
        return None if found is None else cls(*map(int, found.groups()))


class OperatorParts(NamedTuple):
    """What of an operator runs in tasks."""

    factory: Callable[[], Subtask]
    codec: Codec
    state_codec: Codec
    output_codec: Codec
    input_codecs: Mapping[str, Codec]
    keys: Mapping[str, KeyFunction]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """All that a task is told. Partition i of the Spark job's stage is the i-th of ``settings.subtasks()``."""

    settings: JobSettings
    kafka: KafkaConfig
    run: str
    operators: Mapping[str, bytes]
    """Each operator's pickled :class:`OperatorParts`: unpickled by the task, so that an error there has a name."""
    rows: Mapping[str, RowsPlan] = field(default_factory=dict)
    """Of the operators whose subtasks get rows of a DataFrame."""


@dataclass(frozen=True, slots=True)
class SubtaskReturn:
    """How a subtask returned normally."""

    subtask: SubtaskId
    reason: str


def run_partition(plan: TaskPlan, operator: str, index: int, messages: Iterator[Any]) -> Iterator[SubtaskReturn]:
    """For ``mapPartitionsWithIndex``, over the partitions of one operator; ``messages`` are its rows, if it has any."""
    subtask = SubtaskId(operator, index)
    rows = _rows(plan, subtask, messages)
    try:
        yield run_subtask(plan, subtask, rows)
        if rows is None:
            deque(messages, 0)  # read to its end, or Spark would not use the worker again
    finally:
        if rows is not None:
            rows.close()


def run_subtask(plan: TaskPlan, subtask: SubtaskId, rows: ArrowRows | None = None) -> SubtaskReturn:
    """The whole of one task. What it raises, Spark retries; what returns is done."""
    context = TaskContext.get()
    assert context is not None, "a task has a context"
    began = time.monotonic()
    try:
        return _run_subtask(plan, subtask, rows, context)
    except (Exception, SystemExit):
        time.sleep(pause_before_retry(context.attemptNumber(), time.monotonic() - began))
        raise


def pause_before_retry(attempt_number: int, lived_s: float) -> float:
    """Seconds that a task which raises waits before Spark learns of it: one that raises again and again must not spin.

    One that dies is tried again as fast as Spark can, and so is one that raises after it has lived for a while.
    """
    if attempt_number == 0 or lived_s >= RETRY_PAUSE_MAX_S:
        return 0.0
    return min(RETRY_PAUSE_MAX_S, 0.1 * (attempt_number + 1))


def _run_subtask(plan: TaskPlan, subtask: SubtaskId, rows: ArrowRows | None, context: TaskContext) -> SubtaskReturn:
    name = TaskName(context.taskAttemptId(), context.stageId(), context.partitionId())
    parts = _load(plan, subtask)
    transport = KafkaTransport.from_config(plan.kafka)

    def check_rights() -> None:
        with suppress(BrokerUnreachable):  # the subtask waits for it
            require_rights(plan.settings, transport, [Role.SUBTASK], RIGHTS_TIMEOUT_S)

    try:
        outcome = SubtaskRuntime(
            plan.settings,
            subtask,
            parts.factory,
            transport,
            run=plan.run,
            task=str(name),
            codec=parts.codec,
            state_codec=parts.state_codec,
            output_codec=parts.output_codec,
            input_codecs=parts.input_codecs,
            keys=parts.keys,
            rows=rows,
        ).run(check_rights)
    except EndsTask as ends:
        raise ends.error from None
    finally:
        transport.close()
    _log.info("job=%s subtask=%s: %s returns: %s", plan.settings.name, subtask, name, outcome.reason)
    return SubtaskReturn(subtask, outcome.reason)


def _rows(plan: TaskPlan, subtask: SubtaskId, messages: Iterator[bytes]) -> ArrowRows | None:
    if subtask.operator not in plan.rows:
        return None
    try:
        return ArrowRows(plan.rows[subtask.operator], subtask, messages)
    except ImportError as error:
        raise TaskCannotBegin(
            f"subtask {subtask} of job {plan.settings.name!r} gets the rows of a DataFrame, which needs pyarrow in the"
            f" workers' Python: {error}. Install it there"
        ) from error


def _load(plan: TaskPlan, subtask: SubtaskId) -> OperatorParts:
    try:
        parts = loads(plan.operators[subtask.operator])
        assert isinstance(parts, OperatorParts)
        return parts
    except Exception as error:
        raise TaskCannotBegin(
            f"the code of operator {subtask.operator!r} of job {plan.settings.name!r} cannot be loaded in a Spark"
            f" worker: {type(error).__name__}: {error}. Install what it imports in the workers' Python, or send it"
            " along with SparkContext.addPyFile"
        ) from error
