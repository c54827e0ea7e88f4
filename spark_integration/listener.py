"""Hears from Spark, within milliseconds, that a task has died.

Only a hint: a paused JVM says nothing. Registration and heartbeats over Kafka stay the authority (protocol, section 8).
"""

from __future__ import annotations

import logging
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
class TaskFailure:
    """One task that did not return normally."""

    task: TaskName
    reason: str


class TaskListener:
    """Tells of each failed task of one run.

    It hangs in Spark's shared listener queue, whose one thread needs one connection for all runs: py4j gives each JVM
    thread that calls back a connection, and a Python thread, that stay.
    """

    # Spark is given a dynamic proxy of its listener interface, with this object as the handler: unlike a listener that
    # py4j makes, it is one Java object each time it is passed, and so it can be removed again.
    class Java:
        implements: ClassVar[list[str]] = ["java.lang.reflect.InvocationHandler"]

    def __init__(self, context: SparkContext, run: str) -> None:
        self._context = context
        self._run = run
        self._on_failure: Callable[[TaskFailure], None]
        self._stages: set[int] = set()
        self._proxy: Any = None

    def start(self, on_failure: Callable[[TaskFailure], None]) -> bool:
        """Whether it hears; if it does not, failures are noticed later.

        ``on_failure`` is called on a thread of py4j's, and must not block.
        """
        self._on_failure = on_failure
        gateway: Any = self._context._gateway
        try:
            pyspark_gateway: Any = java_gateway
            pyspark_gateway.ensure_callback_server_started(gateway)  # one for all; stays until the gateway goes
            spark = self._context._jsc.sc()
            loader = spark.getClass().getClassLoader()
            interfaces = gateway.new_array(gateway.jvm.java.lang.Class, 1)
            interfaces[0] = loader.loadClass("org.apache.spark.scheduler.SparkListenerInterface")
            self._proxy = gateway.jvm.java.lang.reflect.Proxy.newProxyInstance(loader, interfaces, self)
            spark.addSparkListener(self._proxy)
        except Exception as error:  # py4j raises what either side raises
            _log.warning("failed tasks of run %s will be noticed by their silence alone: %s", self._run, error)
            return False
        return True

    def stop(self) -> None:
        """Nothing is told any more. Not to be called from ``on_failure``."""
        if self._proxy is None:
            return
        try:
            self._context._jsc.sc().removeSparkListener(self._proxy)
        except Exception as error:  # the context may have been stopped
            _log.debug("the listener of run %s was not removed: %s", self._run, error)
        self._proxy = None

    # ---- called by the JVM

    def invoke(self, proxy: Any, method: Any, arguments: Any) -> Any:
        """``InvocationHandler.invoke``: every method of the proxy arrives here."""
        match str(method.getName()):
            case "hashCode":
                return id(self) & 0x7FFFFFFF
            case "equals":
                return False
            case "toString":
                return f"penstock listener of run {self._run}"
            case "onStageSubmitted":
                self._guarded(self._stage_submitted, arguments[0])
            case "onTaskEnd":
                self._guarded(self._task_ended, arguments[0])
            case _:
                pass
        return None

    def _guarded(self, heard: Callable[[Any], None], event: Any) -> None:
        try:
            heard(event)
        except Exception:
            _log.exception("run %s: a Spark event was not understood", self._run)

    def _stage_submitted(self, event: Any) -> None:
        properties = event.properties()
        if properties is not None and properties.getProperty(RUN_PROPERTY) == self._run:
            self._stages.add(event.stageInfo().stageId())

    def _task_ended(self, event: Any) -> None:
        stage, info = event.stageId(), event.taskInfo()
        if stage not in self._stages or info is None or info.successful():
            return
        reason = str(event.reason().toErrorString())[:_REASON_CHARS_MAX]
        self._on_failure(TaskFailure(TaskName(info.taskId(), stage, info.index()), reason))
