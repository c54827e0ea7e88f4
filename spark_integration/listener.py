"""Hears from Spark, within milliseconds, that a task has ended, and how.

Only a hint: a paused JVM says nothing. Registration and heartbeats over Kafka stay the authority (protocol, section 8).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import SparkContext, java_gateway

from .task import TaskName

_log = logging.getLogger(__name__)

RUN_PROPERTY = "penstock.run"
"""The local property by which a Spark job says which run it belongs to."""

_REASON_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """One Spark task has ended."""

    task: TaskName
    died_of: str | None
    """Why it will be started again; None where it returned normally."""


OnTaskEnded = Callable[[TaskEnded], None]


def listen(context: SparkContext, run: str, on_task_ended: OnTaskEnded) -> bool:
    """Tells ``on_task_ended`` of each task of the run that ends, on a thread of py4j's: it must not block.

    Returns whether it hears; if it does not, deaths are noticed later, by silence.
    """
    try:
        _listener_of(context).runs[run] = on_task_ended
    except Exception as error:  # py4j raises what either side raises
        _log.warning("dead tasks of run %s will be noticed by their silence alone: %s", run, error)
        return False
    return True


def forget(context: SparkContext, run: str) -> None:
    """Nothing more is told of this run."""
    listener = _listeners.get(context)
    if listener is not None:
        listener.forget(run)


class _Listener:
    """The one listener of a SparkContext, for all runs in it; stays as long as the context.

    One that came and went with its run would leak: Spark gives its listener queue a new thread each time that the last
    listener has gone, and py4j gives each JVM thread that calls back a connection and a Python thread that stay.

    Spark gets a dynamic proxy of its listener interface with this object as the handler: unlike a listener that py4j
    makes, it is the same Java object each time it is passed, and can be removed again.
    """

    class Java:
        implements: ClassVar[list[str]] = ["java.lang.reflect.InvocationHandler"]

    def __init__(self, context: SparkContext) -> None:
        self.runs: dict[str, OnTaskEnded] = {}
        self._last_stages: dict[int, str] = {}
        """Of the running Spark jobs of runs, the stage whose tasks are subtasks, and its run. Stages before it compute
        shuffles of DataFrames: their partitions mean something else."""
        self._stages: dict[int, str] = {}
        """Those that are running."""
        gateway: Any = context._gateway
        pyspark_gateway: Any = java_gateway
        pyspark_gateway.ensure_callback_server_started(gateway)
        self._spark: Any = context._jsc.sc()
        loader = self._spark.getClass().getClassLoader()
        interfaces = gateway.new_array(gateway.jvm.java.lang.Class, 1)
        interfaces[0] = loader.loadClass("org.apache.spark.scheduler.SparkListenerInterface")
        self._proxy = gateway.jvm.java.lang.reflect.Proxy.newProxyInstance(loader, interfaces, self)
        self._spark.addSparkListener(self._proxy)
        atexit.register(self._remove)

    def forget(self, run: str) -> None:
        self.runs.pop(run, None)
        self._last_stages = {stage: of for stage, of in self._last_stages.items() if of != run}

    def _remove(self) -> None:
        """At the end of this process: the JVM lives on for a moment, and would complain of nobody answering."""
        with contextlib.suppress(Exception):
            if not self._spark.isStopped():
                self._spark.removeSparkListener(self._proxy)

    # ---- called by the JVM

    def invoke(self, proxy: Any, method: Any, arguments: Any) -> Any:
        """``InvocationHandler.invoke``: every method of the proxy arrives here."""
        match str(method.getName()):
            case "hashCode":
                return id(self) & 0x7FFFFFFF
            case "equals":
                return False
            case "toString":
                return "penstock listener"
            case "onJobStart":
                self._guarded(self._job_started, arguments[0])
            case "onStageSubmitted":
                self._guarded(self._stage_submitted, arguments[0])
            case "onStageCompleted":
                self._guarded(self._stage_completed, arguments[0])
            case "onTaskEnd":
                self._guarded(self._task_ended, arguments[0])
            case _:
                pass
        return None

    def _guarded(self, heard: Callable[[Any], None], event: Any) -> None:
        try:
            heard(event)
        except Exception:
            _log.exception("a Spark event was not understood")

    def _job_started(self, event: Any) -> None:
        properties = event.properties()
        run = None if properties is None else properties.getProperty(RUN_PROPERTY)
        if run in self.runs:
            stages = event.stageInfos()
            last = max(stages.apply(i).stageId() for i in range(stages.size()))  # made behind those that it needs
            self._last_stages[last] = run

    def _stage_submitted(self, event: Any) -> None:
        stage = event.stageInfo().stageId()
        if stage in self._last_stages:  # it may be submitted again
            self._stages[stage] = self._last_stages[stage]

    def _stage_completed(self, event: Any) -> None:
        self._stages.pop(event.stageInfo().stageId(), None)

    def _task_ended(self, event: Any) -> None:
        stage, info = event.stageId(), event.taskInfo()
        told = self.runs.get(self._stages.get(stage, ""))
        if told is None or info is None:
            return
        died_of = None if info.successful() else str(event.reason().toErrorString())[:_REASON_CHARS_MAX]
        told(TaskEnded(TaskName(info.taskId(), stage, info.index()), died_of))


_listeners: weakref.WeakKeyDictionary[SparkContext, _Listener] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _listener_of(context: SparkContext) -> _Listener:
    with _making:
        if context not in _listeners:
            _listeners[context] = _Listener(context)
        return _listeners[context]
