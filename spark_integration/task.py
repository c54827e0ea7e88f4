"""What one Spark task does: it is one subtask. Runs in a Python worker; knows nothing of the driver's side.

The plan is plain data. Kafka handles are made in here, because neither a pickle nor a fork carries one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark import TaskContext
from pyspark.cloudpickle import loads

from ..schemas.errors import SubtaskError
from ..schemas.ids import SubtaskId
from ..schemas.settings import JobSettings
from ..schemas.user_codec import Codec
from ..subtask_client.api import Subtask
from ..subtask_client.routing import KeyFunction
from ..subtask_client.runtime import SubtaskRuntime
from ..transport.kafka import KafkaConfig, KafkaTransport

_log = logging.getLogger(__name__)

RETRY_PAUSE_MAX_S = 2.0
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
    """All that a task is told. Partition i of the Spark job is the i-th of ``settings.subtasks()``."""

    settings: JobSettings
    kafka: KafkaConfig
    run: str
    operators: Mapping[str, bytes]
    """Each operator's pickled :class:`OperatorParts`: unpickled by the task, so that an error there has a name."""


@dataclass(frozen=True, slots=True)
class SubtaskReturn:
    """How a subtask returned normally."""

    subtask: SubtaskId
    ending: str
    reason: str


def run_partition(plan: TaskPlan, partition: int, _: Iterator[Any]) -> Iterator[SubtaskReturn]:
    """For ``mapPartitionsWithIndex``."""
    yield run_subtask(plan, partition)


def run_subtask(plan: TaskPlan, partition: int) -> SubtaskReturn:
    """The whole of one task. What it raises, Spark retries; what returns is done."""
    context = TaskContext.get()
    assert context is not None, "a task has a context"
    name = TaskName(context.taskAttemptId(), context.stageId(), context.partitionId())
    if context.attemptNumber() > 1:  # the first retry is at once, one that keeps failing must not spin
        time.sleep(min(RETRY_PAUSE_MAX_S, 0.1 * context.attemptNumber()))
    subtask = plan.settings.subtasks()[partition]
    parts = _load(plan, subtask)
    transport = KafkaTransport.from_config(plan.kafka)
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
        ).run()
    finally:
        transport.close()
    _log.info("job=%s subtask=%s: %s returns: %s", plan.settings.name, subtask, name, outcome.reason)
    return SubtaskReturn(subtask, outcome.ending.value, outcome.reason)


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
